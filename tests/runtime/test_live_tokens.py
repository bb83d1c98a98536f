"""What a deployment answers is, token for token, what generate() answers: every modality, topology and route."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from has.core.deployment import Deployment
from has.gateway.port import Encode, Prefill, Stepped
from has.models.names import BUNDLED
from has.runtime.pool import WarmPool
from has.runtime.start import open_service
from tests.runtime.live import answer, deployment, job, reference

pytestmark = pytest.mark.live


def ask(pool: WarmPool, plan: Deployment, jobs: list) -> tuple[list[list[int]], list]:
    """Answers to all jobs at once, and all that passed between gateway and workers."""
    log: list = []

    async def run() -> list[list[int]]:
        service = await open_service(
            plan, pool, media_rate=50.0, online=False, tap=lambda entry, _: log.append(entry)
        )
        try:
            return await asyncio.gather(*(answer(service, one) for one in jobs))
        finally:
            assert await service.drain(10)
            assert pool.arena.used_bytes == 0, "every region was given back"
            await pool.rest()

    return asyncio.run(run()), log


@pytest.mark.parametrize("model", BUNDLED)
def test_local_and_remote_prefill_answer_as_generate(pools, model: str) -> None:
    jobs = [job(model, i, media=1 + i % 2) for i in range(3)] + [job(model, 9, media=0)]
    answers, log = ask(pools(model), deployment(model), jobs)
    assert answers == [reference(model, one) for one in jobs]
    routes = [entry.remote for entry in log if isinstance(entry, Prefill)]
    assert {True, False} == set(routes), "both routes were taken"
    shares = {entry.share_percent for entry in log if isinstance(entry, Encode)}
    assert shares == {50.0}


@pytest.mark.parametrize(
    ("model", "topology"),
    [
        ("tiny-image", "e_pd"),
        ("tiny-image", "monolithic"),
        ("tiny-video", "e_pd"),
        ("tiny-audio", "monolithic"),
    ],
)
def test_mixed_workers_answer_as_generate(pools, model: str, topology: str) -> None:
    jobs = [job(model, i, media=1 + i % 2) for i in range(3)] + [job(model, 9, media=0)]
    # A budget below a prompt's length: prefill goes in chunks, beside whatever decodes then.
    plan = deployment(model, topology, max_num_batched_tokens=48)
    answers, log = ask(pools(model), plan, jobs)
    assert answers == [reference(model, one) for one in jobs]
    chunks = Counter(
        request
        for entry in log
        if isinstance(entry, Stepped)
        for stage, _, requests in entry.parts
        if stage == "prefill"
        for request in requests
    )
    assert max(chunks.values()) > 1, "a prompt above the budget goes in chunks"


@pytest.mark.parametrize("offload", [0.0, 1.0])
def test_all_local_and_all_remote(pools, offload: float) -> None:
    model = "tiny-image"
    alloc = {"encode": 2, "prefill": 1 if offload else 0, "decode": 1 if offload else 2}
    jobs = [job(model, i) for i in range(3)]
    answers, log = ask(pools(model), deployment(model, prefill_offload=offload, alloc=alloc), jobs)
    assert answers == [reference(model, one) for one in jobs]
    assert {entry.remote for entry in log if isinstance(entry, Prefill)} == {bool(offload)}


def test_sampling_depends_on_the_seed_and_not_on_the_route(pools) -> None:
    model = "tiny-image"
    asked = job(model, 1, temperature=1.0, top_p=0.9, seed=7)
    jobs = [asked, asked, replace(asked, seed=8)]
    there, _ = ask(pools(model), deployment(model), jobs)
    here, _ = ask(pools(model), deployment(model, "monolithic"), jobs)
    assert there == here
    assert there[0] == there[1] != there[2]
    assert there[0] != reference(model, asked)


def test_one_token_ends_at_prefill(pools) -> None:
    model = "tiny-image"
    jobs = [job(model, i, max_tokens=1) for i in range(2)]
    answers, log = ask(pools(model), deployment(model), jobs)
    assert answers == [reference(model, one) for one in jobs]
    assert not any(isinstance(entry, Stepped) for entry in log)

"""Media of one request, encoded by several workers at once: the answer is that of generate(), whoever dies."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from has.gateway.port import Back, Encode, Lost, Prefill
from tests.runtime.live import answer, deployment, job, reference
from tests.runtime.test_faults import Trial, killer

pytestmark = pytest.mark.live
MODEL = "tiny-image"
TWO_ENCODERS = {"encode_fanout": 2, "encode_batch": 1}
SPLITS = {
    "local": {"alloc": {"encode": 2, "prefill": 0, "decode": 2}, "prefill_offload": 0.0},
    "remote": {"alloc": {"encode": 2, "prefill": 1, "decode": 1}, "prefill_offload": 1.0},
}


def is_fanout(entry) -> bool:
    return isinstance(entry, Encode) and entry.is_fanout


@pytest.mark.parametrize("split", [*SPLITS, "e_pd"])
def test_several_encoders_answer_as_one(pools, split: str) -> None:
    pool = pools(MODEL)
    topology, fields = ("e_pd", {}) if split == "e_pd" else ("disaggregated", SPLITS[split])
    plan = deployment(MODEL, topology, **{**fields, **TWO_ENCODERS})
    # The last sends media of the first again: with a cache, a part may be known to the worker that gets it.
    first = job(MODEL, 1, media=3)
    jobs = [first, job(MODEL, 2, media=2), replace(first, media=first.media[::-1])]

    async def run() -> list[list[int]]:
        trial = Trial(pool, plan, encoder_cache_bytes=1 << 20)
        async with trial as service:
            answers = [await answer(service, one) for one in jobs]
            assert pool.arena.used_bytes == 0
        fanned = [entry for entry in trial.log if is_fanout(entry)]
        assert [entry.items for entry in fanned] == [((1, 3),), ((1, 2),), ((1, 3),)]
        assert {entry.remote for entry in trial.log if isinstance(entry, Prefill)} <= {split == "remote"}
        return answers

    assert asyncio.run(run()) == [reference(MODEL, one) for one in jobs]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("who", ["helper", "home"])
def test_an_encoder_killed_amid_its_part_is_not_noticed(pools, split: str, who: str) -> None:
    pool = pools(MODEL)
    plan = deployment(MODEL, **{**SPLITS[split], **TWO_ENCODERS})
    jobs = [job(MODEL, i, media=2) for i in range(2)]

    def kill(entry) -> None:
        killer(pool, "encode", entry.worker if who == "helper" else 1 - entry.worker)(entry)

    async def run() -> list[list[int]]:
        trial = Trial(pool, plan, when=is_fanout, then=kill)
        async with trial as service:
            answers = await asyncio.gather(*(answer(service, one) for one in jobs))
            await trial.seen(Back)
            assert sum(isinstance(entry, Lost) for entry in trial.log) == 1
            async with asyncio.timeout(20):
                while pool.arena.used_bytes:  # what ran on with a first attempt gives its memory back too
                    await asyncio.sleep(0.01)
            return answers

    assert asyncio.run(run()) == [reference(MODEL, one) for one in jobs]


def test_a_client_that_leaves_while_two_encode_for_it_leaves_nothing(pools) -> None:
    pool = pools(MODEL)
    plan = deployment(MODEL, **{**SPLITS["remote"], **TWO_ENCODERS})

    async def run() -> list[int]:
        trial = Trial(pool, plan)
        async with trial as service:
            stream = await service.submit(job(MODEL, 1, media=2))
            async with asyncio.timeout(20):
                while not any(is_fanout(entry) for entry in trial.log):
                    await asyncio.sleep(0.001)
            await stream.aclose()
            async with asyncio.timeout(20):
                while pool.arena.used_bytes:
                    await asyncio.sleep(0.01)
            return await answer(service, job(MODEL, 2, media=2))

    assert asyncio.run(run()) == reference(MODEL, job(MODEL, 2, media=2))

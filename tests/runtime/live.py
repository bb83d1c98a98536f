"""Jobs against a pool, and what `generate()` answers to the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from has.core.deployment import Deployment
from has.device.nominal import Costs, Nominal
from has.gateway.job import Job, MediaBytes, MediaRef, Message
from has.gateway.service import Service
from has.models.media import decode_media
from has.models.names import BUNDLED
from has.models.synthetic import media_bytes, synthetic_media
from has.models.text import chat_prompt
from has.runtime.pool import WarmPool
from tests.models.cases import Case, generate, loaded


def table(model: str, decode_s: float = 0.001) -> Nominal:
    """Costs low enough for tests to be quick; what is computed does not depend on them."""

    def flat(seconds: float) -> Costs:
        return Costs((1,), (64,), ((seconds,),))

    costs = {"encode": flat(0.004), "prefill": flat(0.004), "decode": flat(decode_s)}
    return Nominal(model, 0.8, 0.2, costs)


@cache
def warm_pool(model: str) -> WarmPool:
    """The pool of four GPUs that all tests share: loading a model takes seconds, another role milliseconds.

    It ends with the tests' process.
    """
    return WarmPool(model, 4, nominal=table(model))


@pytest.fixture
def pools() -> Callable[[str], WarmPool]:
    return warm_pool


def deployment(model: str, topology: str = "disaggregated", **fields: Any) -> Deployment:
    given: dict[str, Any] = {
        "disaggregated": {
            "alloc": {"encode": 1, "prefill": 1, "decode": 2},
            "encode_batch": 2,
            "prefill_offload": 0.5,
            "sm_table": [{"batch": 1, "encode_sm": 50}],
        },
        "e_pd": {"alloc": {"encode": 2, "prefill_decode": 2}, "encode_batch": 2},
        "monolithic": {"alloc": {"all": 4}},
    }[topology]
    common = {
        "version": 1,
        "model": model,
        "topology": topology,
        "gpus": 4,
        "slo": {"ttft_ms": 5000, "tpot_ms": 500},
        "preprocess_workers": 2,
        "dispatch": "round_robin",
        "max_num_seqs": 16,
    }
    return Deployment.model_validate({**common, **given, **fields})


def medium(model: str, index: int) -> MediaBytes:
    kind = BUNDLED[model]
    data = media_bytes(kind, synthetic_media(kind, model, index))
    return MediaBytes(kind, data if isinstance(data, bytes) else tuple(data))  # type: ignore[arg-type]


def job(model: str, index: int, media: int = 1, **fields: Any) -> Job:
    items = tuple(medium(model, 100 * index + k) for k in range(media))
    content = (*(MediaRef(k) for k in range(media)), f"What is number {index}?")
    return Job((Message("user", content),), items, **{"max_tokens": 10, **fields})


@cache
def reference(model: str, asked: Job) -> list[int]:
    """The answer of transformers' own generate() to the same bytes."""
    items = [decode_media(m.kind, m.data, model) for m in asked.media]
    content = [
        {"type": items[part.index].kind} if isinstance(part, MediaRef) else {"type": "text", "text": part}
        for part in asked.messages[0].content
    ]
    ids, _ = chat_prompt([{"role": "user", "content": content}], [item.tokens for item in items])
    return generate(loaded(model), Case(items, ids), asked.max_tokens or 0)


async def answer(service: Service, asked: Job) -> list[int]:
    return [event.token_id async for event in await service.submit(asked)]

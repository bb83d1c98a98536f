"""Every field of every file, with every kind of wrong value: a noun that can be worked with, or one clear message."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest

from has.core.deployment import Deployment
from has.core.profile import Profile, ProfileMetadata
from has.core.space import SearchSpace
from has.core.workload import Workload
from has.errors import HasError, InputError
from has.files.validate import validate
from has.search.space import enumerate_space
from has.sim.run import simulate

DEPLOYMENT: dict[str, Any] = {
    "version": 1,
    "model": "tiny-image",
    "topology": "disaggregated",
    "gpus": 8,
    "alloc": {"encode": 2, "prefill": 2, "decode": 4},
    "tensor_parallel": {"encode": 1, "prefill": 1, "decode": 1, "local_prefill": 1},
    "encode_batch": 4,
    "prefill_offload": 0.5,
    "offload_unit": "request",
    "fill_probability": 0.6,
    "encode_slowdown_budget": 0.2,
    "sm_table": [{"batch": 1, "encode_sm": 20}, {"batch": 2, "encode_sm": 30.5}],
    "rate": 6.0,
    "slo": {"ttft_ms": 2000, "tpot_ms": 50, "attainment": 0.9},
    "dtype": "bfloat16",
    "max_wait_ms": 100.0,
    "encode_fanout": 2,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "max_prefill_requests": 8,
    "max_queue": 100,
    "kv_tokens": 10_000,
    "gpu_memory_utilization": 0.9,
    "preprocess_workers": 2,
    "dispatch": "random",
    "rate_estimate": "known",
    "first_token": "prefill",
    "gpus_per_node": 8,
    "hardware": {"encode": "L40S"},
    "evidence": {"run": "results/x", "numbers": [1, 2.5]},
}
WORKLOAD: dict[str, Any] = {
    "version": 1,
    "name": "w",
    "description": "text",
    "arrivals": {"process": "gamma", "rate": 6.0, "cv": 1.5},
    "requests": [
        {
            "weight": 1.0,
            "modality": "image",
            "items": {"choice": {1: 0.6, 2: 0.4}},
            "media_tokens": {"lognormal": {"p50": 64, "p99": 128}, "min": 4, "max": 200},
            "prompt_tokens": {"normal": {"mean": 30, "sd": 5}},
            "output_tokens": {"uniform": [2, 8]},
            "slo": {"ttft_ms": 100, "tpot_ms": 10},
        },
        {"modality": "text", "prompt_tokens": {"empirical": [3, 4]}, "output_tokens": 5},
    ],
    "slo": {"ttft_ms": 2000, "tpot_ms": 50, "attainment": 0.9},
}
SPACE: dict[str, Any] = {
    "version": 1,
    "alloc": {"encode": [1, 2], "prefill": [0, 2], "decode": [1, 2]},
    "tensor_parallel": {"encode": [1], "prefill": [1, 2], "decode": [1]},
    "encode_batch": [1, 4],
    "prefill_offload": {"min": 0.0, "max": 1.0, "step": 0.5},
    "topologies": ["disaggregated", "e_pd"],
}
METADATA: dict[str, Any] = {
    "version": 1,
    "device": "d",
    "model": "tiny-image",
    "source": "measured",
    "engine": "has",
    "sm_count": 132,
    "memory_bytes": 80_000_000_000,
    "dtype": "bfloat16",
    "tensor_parallel": 1,
    "partition_mechanism": "green contexts",
    "weights_bytes": {"encoder": 10**9, "lm": 10**10},
    "kv_bytes_per_token": 100_000,
    "error": 0.1,
    "driver": "570",
    "date": "2026-01-01",
    "notes": {"a": [1]},
}
ROWS = [
    {"stage": s, "sm_percent": 100, "batch": 1, "tokens": 64, "latency_s": t}
    for s, t in (("encode", 0.05), ("prefill", 0.04), ("decode", 0.01))
]
PROFILE: dict[str, Any] = {"metadata": METADATA, "rows": ROWS}

deep: Any = []
for _ in range(200):
    deep = [deep]
WRONG: list[Any] = [
    *("text", "", "1", True, 0, -1, 1.5, 10**30, 10**400, math.nan, math.inf, -math.inf, 1e-300, 1e300),
    *(None, [], {}, [None], {"x": 1}, {"a": {"b": [math.nan]}}, deep, object()),
]


def paths(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in plain data, the inner nodes too."""
    if at:
        yield at
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        yield from paths(value, (*at, key))


def with_value(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(data)
    owner = changed
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = value
    return changed


def checked(cls: type[Any], data: Any) -> Any:
    """The noun, or None where the one error is as clear as it should be."""
    try:
        return validate(cls, data, "file.yaml")
    except InputError as error:
        wrong = error
    said = str(wrong)
    assert said.startswith("file.yaml")
    assert wrong.field in said
    assert len(said) < 4000
    assert "pydantic" not in said.lower()
    assert "Traceback" not in said
    return None


def variants(data: Any) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    for path in paths(data):
        for value in WRONG:
            yield path, value, with_value(data, path, value)


GOOD = (
    validate(Deployment, DEPLOYMENT, "d"),
    validate(Profile, PROFILE, "p"),
    validate(Workload, WORKLOAD, "w"),
)


def works(deployment: Deployment, profile: Profile, workload: Workload) -> None:
    try:
        figures = simulate(deployment, profile, workload, requests=5)
    except HasError:
        return
    assert figures["requests"] == 5 == figures["completed"] + figures["failed"]


@pytest.mark.parametrize("field", DEPLOYMENT)
def test_a_deployment(field: str) -> None:
    for path, _, data in variants(DEPLOYMENT):
        if path[0] == field and (deployment := checked(Deployment, data)) is not None:
            works(deployment, *GOOD[1:])


@pytest.mark.parametrize("field", WORKLOAD)
def test_a_workload(field: str) -> None:
    for path, _, data in variants(WORKLOAD):
        if path[0] == field and (workload := checked(Workload, data)) is not None:
            works(*GOOD[:2], workload)


def test_a_space() -> None:
    for _, _, data in variants(SPACE):
        if (space := checked(SearchSpace, data)) is not None:
            assert isinstance(enumerate_space(space, 4), list)


def test_a_profile() -> None:
    for path, _, data in variants(PROFILE):
        if (profile := checked(Profile, data)) is not None and path[0] == "metadata":
            works(GOOD[0], profile, GOOD[2])
    for _, _, data in variants(METADATA):
        checked(ProfileMetadata, data)

"""Workloads and spaces refuse what has no meaning."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from has.core.space import SearchSpace
from has.core.workload import Workload

ENTRY: dict[str, Any] = {
    "modality": "image",
    "media_tokens": {"lognormal": {"p50": 576, "p99": 2880}, "max": 4096},
    "prompt_tokens": 60,
    "output_tokens": {"uniform": [1, 9]},
}


def make(entry: dict[str, Any] | None = None, **changes: Any) -> Workload:
    fields = {"version": 1, "arrivals": {"process": "poisson", "rate": 6}, "requests": [entry or ENTRY]}
    return Workload.model_validate({**fields, **changes})


def test_a_bare_number_is_a_constant() -> None:
    entry = make().requests[0]
    assert entry.prompt_tokens.constant == 60
    assert entry.prompt_tokens.kind == "constant"


@pytest.mark.parametrize(
    "entry",
    [
        {**ENTRY, "modality": "text"},
        {**ENTRY, "image_px": [640, 480]},
        {**ENTRY, "media_tokens": {"lognormal": {"p50": 10, "p99": 5}}},
        {**ENTRY, "media_tokens": {"uniform": [5, 1]}},
        {**ENTRY, "media_tokens": {"choice": {1: 0, 2: 0}}},
        {**ENTRY, "media_tokens": {"choice": {1: -1, 2: 2}}},
        {**ENTRY, "media_tokens": {"normal": {"mean": 1, "sd": 1}, "uniform": [1, 2]}},
        {**ENTRY, "media_tokens": -5},
        {**ENTRY, "media_tokens": True},
        {**ENTRY, "media_tokens": {"empirical": []}},
        {**ENTRY, "fps": 2},
        {**ENTRY, "weight": 0},
        {**ENTRY, "weight": -1},
    ],
)
def test_an_entry_without_meaning_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make(entry)


@pytest.mark.parametrize(
    "arrivals",
    [
        {"process": "gamma", "rate": 1},
        {"process": "poisson", "rate": 1, "cv": 2},
        {"process": "poisson", "rate": 0},
        {"process": "trace"},
        {"process": "constant", "file": "t.csv"},
        {"process": "poisson", "time_scale": 2.0},
    ],
)
def test_arrivals_without_meaning_are_refused(arrivals: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make(arrivals=arrivals)


def test_a_trace_brings_its_own_requests() -> None:
    with pytest.raises(ValidationError, match="requests"):
        make(arrivals={"process": "trace", "file": "t.csv"})
    assert make(arrivals={"process": "trace", "file": "t.csv"}, requests=[]).requests == ()


def test_the_default_space_is_the_documented_one() -> None:
    space = SearchSpace(version=1)
    assert space.encode_batch == (1, 2, 4, 6, 8, 12, 16)
    assert (space.prefill_offload.min, space.prefill_offload.max, space.prefill_offload.step) == (0, 1, 0.1)
    assert space.topologies == ("disaggregated", "e_pd", "monolithic")
    assert space.tensor_parallel.decode == (1,)


@pytest.mark.parametrize(
    "changes",
    [
        {"alloc": {"encode": [3, 1]}},
        {"encode_batch": [1, 1]},
        {"encode_batch": []},
        {"encode_batch": [0]},
        {"tensor_parallel": {"encode": [2]}},
        {"prefill_offload": {"min": 0.5, "max": 0.1}},
        {"prefill_offload": {"step": 0}},
        {"topologies": ["pd"]},
    ],
)
def test_a_space_without_meaning_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SearchSpace.model_validate({"version": 1, **changes})

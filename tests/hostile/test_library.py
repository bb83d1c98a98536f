"""Library arguments of every wrong kind: an InputError that names the argument, before anything is done."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.workload import Workload
from has.errors import InputError
from has.files.trace import load_trace
from has.files.validate import validate
from has.search.run import search
from has.sim.draw import at_rate, draw_requests
from has.sim.run import run_records, simulate

PROFILE = validate(
    Profile,
    {
        "metadata": {"version": 1, "device": "d", "model": "m", "source": "measured"},
        "rows": [
            {"stage": stage, "sm_percent": 100, "batch": 1, "tokens": 64, "latency_s": 0.01}
            for stage in ("encode", "prefill", "decode")
        ],
    },
)
WORKLOAD = validate(
    Workload,
    {
        "version": 1,
        "arrivals": {"process": "poisson", "rate": 5.0},
        "requests": [{"modality": "image", "media_tokens": 64, "prompt_tokens": 8, "output_tokens": 4}],
        "slo": {"ttft_ms": 1000, "tpot_ms": 50},
    },
)
DEPLOYMENT = validate(
    Deployment,
    {
        "version": 1,
        "model": "m",
        "topology": "monolithic",
        "gpus": 2,
        "alloc": {"all": 2},
        "slo": {"ttft_ms": 1000, "tpot_ms": 50},
    },
)
REQUESTS = draw_requests(WORKLOAD, requests=10)
HUGE = 10**5000
NUMBERS: list[Any] = ["1", True, -1, math.nan, math.inf, HUGE, [], {}, object(), 1 + 0j]


def refused(call: Any, name: str, **arguments: Any) -> None:
    with pytest.raises(InputError) as error:
        call(**arguments)
    assert name in f"{error.value.where} {error.value.field}"
    assert name in str(error.value)
    assert len(str(error.value)) < 2000


SEARCH = {
    "gpus": [*NUMBERS, 0, 1.5, None],
    "profile": [None, "p.parquet", {}, WORKLOAD],
    "workload": [None, "w.yaml", [], {}, PROFILE, [PROFILE]],
    "space": ["s.yaml", {}],
    "pool_profiles": [[], {"encode": "p"}],
    "executor": ["local", object()],
    "trials": [*NUMBERS, 0, 1.5],
    "requests": [*NUMBERS[:-2], 0, 1],
    "seed": [*NUMBERS, None, 0.5],
    "rate": [*NUMBERS[:6], [math.nan], ["1"], [1.0, -1.0], {1.0}, 0],
    "ttft_ms": [*NUMBERS, 0],
    "tpot_ms": [*NUMBERS, 0],
    "attainment": [*NUMBERS[:1], *NUMBERS[2:], 1.5],
    "objective": ["speed", 1, []],
    "sampler": [1, None],
    "prune": [None, 1, "no"],
    "baselines": ["mine.yaml", 5, [5], {"mine": "mine.yaml"}, [None]],
    "price": [*NUMBERS[:6], 0, {"L40S": -1.0}],
    "model": [5, []],
    "settings": [5, [], {"gpus": 4}, {"colour": "red"}, {"max_num_seqs": -1}, {"max_wait_ms": math.nan}],
    "run_dir": [5, []],
    "resume": [5],
    "callbacks": ["loud"],
}


@pytest.mark.parametrize("name", SEARCH)
def test_search(name: str) -> None:
    good = {"gpus": 2, "profile": PROFILE, "workload": WORKLOAD}
    for value in SEARCH[name]:
        refused(search, name, **{**good, name: value})


def test_a_rate_is_refused_where_one_is_looked_for() -> None:
    good = {"gpus": 2, "profile": PROFILE, "workload": WORKLOAD, "objective": "max-rate"}
    for rate in (3.0, [2.0, 3.0]):
        refused(search, "rate", **good, rate=rate)


SIMULATE = {
    "deployment": [None, "d.yaml", PROFILE],
    "profile": [None, "p.csv"],
    "workload": [None, "w.yaml", DEPLOYMENT],
    "rate": [*NUMBERS, 0],
    "requests": [*NUMBERS, 0, 1.5],
    "warmup_s": NUMBERS,
    "seed": [*NUMBERS, None],
}


@pytest.mark.parametrize("name", SIMULATE)
def test_simulate(name: str) -> None:
    good = {"deployment": DEPLOYMENT, "profile": PROFILE, "workload": WORKLOAD}
    for value in SIMULATE[name]:
        refused(simulate, name, **{**good, name: value})


RECORDS = {
    "deployment": [None, {}],
    "profile": [None, "p"],
    "requests": [None, WORKLOAD, [1]],
    "rate": NUMBERS,
    "media_share": [*NUMBERS[:1], *NUMBERS[2:], 2],
    "seed": NUMBERS,
}


@pytest.mark.parametrize("name", RECORDS)
def test_run_records(name: str) -> None:
    good = {"deployment": DEPLOYMENT, "profile": PROFILE, "requests": REQUESTS}
    for value in RECORDS[name]:
        refused(run_records, name, **{**good, name: value})


def test_arrivals_beyond_the_clock_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "arrival_s,modality,prompt_tokens,output_tokens\n0,text,9,5\n1000.5,text,30,7\n2000,text,30,7\n"
    )
    workload = validate(
        Workload,
        {
            "version": 1,
            "arrivals": {"process": "trace", "file": str(tmp_path / "t.csv"), "time_scale": 1e12},
        },
    )
    with pytest.raises(InputError, match="time_scale"):
        draw_requests(workload)
    with pytest.raises(InputError, match="rate"):
        at_rate(load_trace(tmp_path / "t.csv"), 1e-10)
    assert np.all(np.diff(at_rate(load_trace(tmp_path / "t.csv"), 1e-9).arrival_ns) > 0)


def test_a_space_too_large_to_look_at_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("has.search.space.MOST_CANDIDATES", 50)
    with pytest.raises(InputError, match="more than 50 candidates on 8 GPUs") as error:
        search(8, PROFILE, WORKLOAD)
    assert "--space" in error.value.mend

"""Odd deployments in the simulator: every request ends one way, none twice, and nobody waits a negative time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from has.core.deployment import Deployment
from has.core.figures import figures
from has.core.profile import Profile
from has.core.records import COMPLETED, FAILED, NEVER, REFUSED, Records
from has.core.requests import Requests
from has.core.workload import Workload
from has.files.validate import validate
from has.sim.draw import draw_requests
from has.sim.run import run_records
from has.sim.simulator import Simulator

COUNT = 60
SLO = {"ttft_ms": 1000, "tpot_ms": 50}


def profile(**metadata: Any) -> Profile:
    rows = [
        {
            "stage": stage,
            "sm_percent": share,
            "batch": batch,
            "tokens": tokens,
            "latency_s": base * batch * (tokens + 9) / share,
        }
        for stage, base in (("encode", 0.02), ("prefill", 0.01), ("decode", 0.0002))
        for share, batch, tokens in itertools.product((20, 50, 100), (1, 64), (16, 1024))
    ]
    rows += [
        {"stage": stage, "sm_percent": 100, "batch": 1, "tokens": tokens, "latency_s": 1e-5 * tokens}
        for stage in ("preprocess", "embedding_transfer", "kv_transfer")
        for tokens in (16, 1024)
    ]
    return validate(
        Profile,
        {
            "metadata": {"version": 1, "device": "d", "model": "m", "source": "measured", **metadata},
            "rows": rows,
        },
    )


def requests(**entry: Any) -> Requests:
    mixture = {
        "modality": "image",
        "media_tokens": {"uniform": [16, 400]},
        "prompt_tokens": {"uniform": [0, 50]},
    }
    mixture |= {"output_tokens": {"uniform": [1, 30]}, **entry}
    mixture = {name: value for name, value in mixture.items() if value is not None}
    workload = validate(
        Workload,
        {"version": 1, "arrivals": {"process": "gamma", "cv": 3.0, "rate": 8.0}, "requests": [mixture]},
    )
    return draw_requests(workload, requests=COUNT, seed=1)


SIMULATOR = Simulator(profile())
MIXED = requests()
LISTS = {
    "mixed": MIXED,
    "text only": requests(modality="text", media_tokens=None),
    "one token out": requests(output_tokens=1),
    "no prompt": requests(prompt_tokens=0),
    "one instant": Requests.from_rows(
        [
            {
                "arrival_s": 0.0,
                "modality": "image",
                "items": 1,
                "media_tokens": 64,
                "prompt_tokens": 5,
                "output_tokens": 3,
            }
            for _ in range(COUNT)
        ]
    ),
}
LARGEST = int((MIXED.total_tokens + MIXED.output_tokens).max())
LIMITS: dict[str, dict[str, Any]] = {
    "free": {},
    "a short queue": {"max_queue": 2},
    "KV just enough": {"kv_tokens": LARGEST},
    "KV for some": {"kv_tokens": LARGEST // 2},
    "one sequence": {"max_num_seqs": 1},
    "one prefill": {"max_prefill_requests": 1, "max_num_batched_tokens": 1},
    "a queue and KV": {"max_queue": 1, "kv_tokens": LARGEST, "max_num_seqs": 1, "preprocess_workers": 1},
    "online": {"rate_estimate": "online", "dispatch": "shortest_queue", "max_wait_ms": 0},
    "streams by tokens": {"sm_table": "streams", "offload_unit": "token", "fill_probability": 0},
    "all of it": {
        "fill_probability": 1,
        "max_wait_ms": 50,
        "dispatch": "round_robin",
        "first_token": "decode",
    },
    "no SM left": {"sm_table": [{"batch": 1, "encode_sm": 100}]},
}
SPLITS: dict[str, dict[str, Any]] = {
    **{
        f"{e}E{p}P{d}D B{b} s{s:g}": {
            "topology": "disaggregated",
            "gpus": e + p + d,
            "alloc": {"encode": e, "prefill": p, "decode": d},
            "encode_batch": b,
            "prefill_offload": s,
        }
        for (e, p, d), b, s in [
            ((12, 1, 1), 4, 1.0),
            ((12, 1, 1), 2 * COUNT, 0.000001),
            ((1, 12, 1), 1, 0.999999),
            ((1, 1, 12), 3, 0.5),
            ((3, 0, 1), 2, 0.0),
            ((1, 0, 1), 2 * COUNT, 0.0),
        ]
    },
    "9E1PD": {
        "topology": "e_pd",
        "gpus": 10,
        "alloc": {"encode": 9, "prefill_decode": 1},
        "encode_batch": 2 * COUNT,
    },
    "1E3PD": {"topology": "e_pd", "gpus": 4, "alloc": {"encode": 1, "prefill_decode": 3}, "encode_batch": 1},
    "5M": {"topology": "monolithic", "gpus": 5, "alloc": {"all": 5}},
}


def deployment(split: dict[str, Any], limits: dict[str, Any]) -> Deployment:
    fields = {"version": 1, "model": "m", "slo": SLO, "rate": 8.0, **split, **limits}
    if split["topology"] != "disaggregated":
        fields.pop("sm_table", None)
    return validate(Deployment, fields)


def check(records: Records, seen: Deployment) -> None:
    n = len(records.requests)
    counts = {state: int((records.status == state).sum()) for state in (COMPLETED, FAILED, REFUSED)}
    assert sum(counts.values()) == n
    if seen.max_queue is None:
        assert counts[REFUSED] == 0
    done = records.status == COMPLETED
    steps = ["preprocessed_ns", "encode_start_ns", "encode_end_ns", "prefill_ready_ns", "prefill_start_ns"]
    steps += (
        ["first_token_ns", "finish_ns"] if seen.first_token == "prefill" else ["decode_ready_ns", "finish_ns"]
    )
    for start, end in itertools.combinations(["arrival_ns", *steps], 2):
        if seen.topology == "monolithic" and "encode" in end:
            continue
        begun = records.requests.arrival_ns if start == "arrival_ns" else getattr(records, start)
        ended = getattr(records, end)
        both = (begun != NEVER) & (ended != NEVER)
        assert np.all(ended[both] >= begun[both]), (start, end)
    assert np.all(records.finish_ns[done] > records.requests.arrival_ns[done])
    told = figures(records, seen.slo)
    assert told["requests"] == told["completed"] + told["failed"] == n
    assert told["refused"] <= told["failed"]
    if "routed" in told:
        assert sum(told["routed"].values()) <= n
    for stage in told["stages"].values():
        for name in ("wait_ms", "service_ms"):
            assert all(value is None or value >= 0 for value in stage[name].values())
        busy = stage["utilisation"]
        assert busy is None or 0 <= busy <= 1 + 1e-9


@pytest.mark.parametrize("split", SPLITS)
def test_every_request_ends_one_way(split: str) -> None:
    for limits in LIMITS:
        for name, listed in LISTS.items():
            plan = deployment(SPLITS[split], LIMITS[limits])
            records = run_records(plan, SIMULATOR, listed, rate=8.0)
            try:
                check(records, plan)
            except AssertionError as error:
                raise AssertionError(f"{split}, {limits}, {name}: {error}") from error
            if limits in ("free", "KV just enough") and name == "mixed":
                assert np.all(records.status == COMPLETED), (split, limits)

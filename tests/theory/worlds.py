"""Small worlds for theory: deployments and profiles in which one stage is what theory speaks of."""

from __future__ import annotations

import json

import numpy as np

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.requests import Requests
from has.sim.simulator import Simulator

PER_TOKEN = 1e-4
"""Seconds a token takes where a stage's time is proportional to its tokens."""


def profile(*, encode=1e-6, prefill=1e-6, decode=1e-6, rows=()):
    """Constant stages; "tokens" makes one proportional to tokens; further rows are added."""
    points = []
    for stage, latency in (("encode", encode), ("prefill", prefill), ("decode", decode)):
        if latency == "tokens":
            points += [_row(stage, 1, 0, 0.0), _row(stage, 1, 10_000, 10_000 * PER_TOKEN)]
        elif latency is not None:
            points.append(_row(stage, 1, 100, latency))
    metadata = {"version": 1, "device": "d", "model": "m", "source": "measured"}
    return Profile.model_validate_json(json.dumps({"metadata": metadata, "rows": [*points, *rows]}))


def _row(stage, batch, tokens, latency):
    return {"stage": stage, "sm_percent": 100, "batch": batch, "tokens": tokens, "latency_s": latency}


def deployment(encode=1, prefill=1, decode=1, **fields):
    base = {
        "version": 1,
        "model": "m",
        "topology": "disaggregated",
        "gpus": encode + prefill + decode,
        "alloc": {"encode": encode, "prefill": prefill, "decode": decode},
        "encode_batch": 1,
        "prefill_offload": 1.0 if prefill else 0.0,
        "sm_table": "streams",
        "slo": {"ttft_ms": 1e6, "tpot_ms": 1e6},
        "max_prefill_requests": 1,
        "max_num_batched_tokens": 10**9,
        "max_num_seqs": 4096,
    }
    return Deployment.model_validate_json(json.dumps(base | fields))


def requests(arrival_s, *, media=0, prompt=0, output=1):
    n = len(arrival_s)

    def column(value):
        return np.broadcast_to(np.asarray(value, np.int64), n).copy()

    tokens = column(media)
    is_media = column(1 if np.any(tokens > 0) else 0)
    nan = np.full(n, np.nan)
    return Requests(
        arrival_ns=np.rint(np.asarray(arrival_s) * 1e9).astype(np.int64),
        modality=is_media,
        items=is_media,
        media_tokens=tokens,
        prompt_tokens=column(prompt),
        output_tokens=column(output),
        ttft_slo_s=nan,
        tpot_slo_s=nan.copy(),
    )


def poisson(rate, n, seed):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n))


def run(d, p, r, **options):
    simulator = Simulator(p)
    return simulator.run(d, simulator.prepare(r), **options)


def close_to(values, expected, *, errors=3.0, slack=0.0, batches=40):
    """The mean of a correlated series lies within `errors` batch-means standard errors (and `slack`, a
    share, for what the theory leaves out) of what theory says; its start is left out."""
    values = np.asarray(values, float)[len(values) // 20 :]
    means = np.array([part.mean() for part in np.array_split(values, batches)])
    error = means.std(ddof=1) / np.sqrt(batches)
    off = abs(values.mean() - expected)
    assert off <= errors * error + slack * expected, (
        f"mean {values.mean():.6g}, theory {expected:.6g}: {off / error:.1f} standard errors"
    )
    assert error < 0.1 * abs(expected), "too short a run to say anything"

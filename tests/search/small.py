"""Profiles and workloads small enough to search in a second."""

from __future__ import annotations

from typing import Any

from has.core.profile import Profile
from has.core.workload import Workload
from has.files.profile import profile_from_rows

SHARES = (10.0, 25.0, 50.0, 75.0, 100.0)


def make_profile(
    *,
    encode_s: float = 0.08,
    prefill_s: float = 0.10,
    decode_s: float = 0.012,
    preprocess_s: float = 0.0,
    interference: float = 0.0,
    factors: dict[str, float] | None = None,
    **metadata: Any,
) -> Profile:
    """A device whose encoder fills the SMs from batch 4 on, and whose decode step grows with the batch.

    `encode_s`, `prefill_s`: of one request of 500 tokens; `factors` multiply whole stages.
    """
    scale = {"encode": 1.0, "prefill": 1.0, "decode": 1.0, "preprocess": 1.0} | (factors or {})
    rows: list[dict[str, Any]] = []

    def add(stage: str, sm: float, batch: int, tokens: int, seconds: float, beside: str = "none") -> None:
        rows.append(
            {
                "stage": stage,
                "sm_percent": sm,
                "beside": beside,
                "batch": batch,
                "tokens": tokens,
                "latency_s": seconds * scale.get(stage, 1.0),
            }
        )

    for batch in (1, 2, 4, 8, 16):
        for tokens in (100, 500, 2000):
            size = tokens / 500
            for share in SHARES:
                fill = min(1.0, (0.25 * batch * size) ** 0.5)
                encode = encode_s * (0.3 + 0.7 * batch * size) * max(1.0, fill / (share / 100))
                prefill = prefill_s * (0.15 + 0.85 * batch * size) / (share / 100)
                add("encode", share, batch, tokens, encode)
                add("prefill", share, batch, tokens, prefill)
                if interference:
                    add("encode", share, batch, tokens, encode * (1 + interference), "prefill")
                    add("prefill", share, batch, tokens, prefill * (1 + interference), "encode")
            add("decode", 100.0, batch, tokens, decode_s * (0.8 + 0.05 * batch + 0.02 * size))
            if preprocess_s:
                add("preprocess", 100.0, batch, tokens, preprocess_s * batch * size)
    for tokens in (100, 2000):
        add("embedding_transfer", 100.0, 1, tokens, 1e-5 * tokens)
        add("kv_transfer", 100.0, 1, tokens, 2e-5 * tokens)
    return profile_from_rows(
        {"version": 1, "device": "synthetic", "model": "synthetic", "source": "measured", **metadata}, rows
    )


def make_workload(rate: float | None = 8.0, **changes: Any) -> Workload:
    entry: dict[str, Any] = {
        "modality": "image",
        "items": 1,
        "media_tokens": {"lognormal": {"p50": 400, "p99": 1500}, "max": 2000},
        "prompt_tokens": {"lognormal": {"p50": 50, "p99": 300}, "max": 500},
        "output_tokens": {"lognormal": {"p50": 40, "p99": 200}, "min": 1, "max": 400},
    }
    fields: dict[str, Any] = {
        "version": 1,
        "name": "synthetic",
        "arrivals": {"process": "poisson", "rate": rate},
        "requests": [entry],
        "slo": {"ttft_ms": 2000.0, "tpot_ms": 40.0},
    }
    return Workload.model_validate(fields | changes)

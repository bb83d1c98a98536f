"""Profiles and workloads from the few numbers that a report in the field gives."""

from __future__ import annotations

from typing import Any

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.slo import Slo
from has.core.workload import Workload
from has.files.profile import profile_from_rows

SHARES = (25.0, 50.0, 100.0)


def profile(
    *,
    encode: tuple[float, float] = (0.0, 0.05),
    prefill: tuple[float, float] = (0.0, 0.1),
    decode: tuple[float, float] = (0.02, 0.0002),
    preprocess_s: float = 0.0,
    transfer_s: float = 0.0,
    largest: int = 6000,
    **metadata: Any,
) -> Profile:
    """Straight lines. `encode`, `prefill`: seconds of any batch, and per 1,000 tokens of it; `decode`:
    seconds of a step, and per sequence; `preprocess_s`: per 1,000 media tokens; `transfer_s`: of a KV."""
    rows: list[dict[str, Any]] = []

    def add(stage: str, sm: float, batch: int, tokens: int, seconds: float) -> None:
        rows.append(
            {"stage": stage, "sm_percent": sm, "batch": batch, "tokens": tokens, "latency_s": seconds}
        )

    for batch in (1, 4, 16):
        for tokens in (100, largest):
            for share in SHARES:
                size = batch * tokens / 1000
                add("encode", share, batch, tokens, (encode[0] + encode[1] * size) * (100 / share) ** 0.5)
                add("prefill", share, batch, tokens, (prefill[0] + prefill[1] * size) * 100 / share)
    for batch in (1, 8, 64, 256):
        add("decode", 100.0, batch, 1000, decode[0] + decode[1] * batch)
    for tokens in (100, largest):
        if preprocess_s:
            add("preprocess", 100.0, 1, tokens, preprocess_s * tokens / 1000)
        if transfer_s:
            add("kv_transfer", 100.0, 1, tokens, transfer_s)
    facts = {"version": 1, "device": "field", "model": "field", "source": "measured"}
    return profile_from_rows(facts | metadata, rows)


def workload(
    slo: Slo,
    *,
    rate: float | None = None,
    media_tokens: int = 400,
    items: int = 1,
    prompt_tokens: int = 100,
    output_tokens: int = 100,
    media_share: float = 1.0,
    modality: str = "image",
) -> Workload:
    media = {
        "weight": media_share,
        "modality": modality,
        "items": items,
        "media_tokens": media_tokens,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
    }
    text = {
        "weight": 1 - media_share,
        "modality": "text",
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
    }
    return Workload.model_validate(
        {
            "version": 1,
            "name": "field",
            "arrivals": {"process": "poisson", "rate": rate},
            "requests": [media] if media_share == 1 else [media, text],
            "slo": slo.model_dump(),
        }
    )


def deployment(model: str, slo: Slo, alloc: dict[str, int], **fields: Any) -> Deployment:
    """Of the topology whose pools `alloc` has."""
    topology = "monolithic" if "all" in alloc else "e_pd" if "prefill_decode" in alloc else "disaggregated"
    given: dict[str, Any] = {
        "version": 1,
        "model": model,
        "topology": topology,
        "gpus": sum(alloc.values()),
        "alloc": alloc,
        "slo": slo,
    }
    return Deployment.model_validate(given | fields)

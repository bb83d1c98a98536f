"""What a request needs at the least, alone on the machine: the bound that no split of GPUs can get under.

TTFT   preprocess + encode + transfer of embeddings + prefill, of one request without any queue;
       of all requests the one at the attainment quantile, by the quickest way there is
TPOT   one decode step of a single sequence at the mean prompt

Where requests have bounds of their own, the quantile is that of the time over the request's own bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from has.core.requests import Floats, Requests
from has.core.slo import Slo
from has.core.stage import Stage
from has.latency.lookup import LatencyModel

WAYS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "disaggregated": (("encode", "encode"), ("encode", "prefill")),
    "e_pd": (("encode", "prefill_decode"),),
    "monolithic": (("all", "all"),),
}
"""Per topology the pools in which a request may be encoded and prefilled."""


@dataclass(frozen=True, slots=True)
class Floor:
    """`least_s` of what the SLO allows `allowed_s`; `parts` in s add up to it, `tokens` are prefilled."""

    metric: str
    least_s: float
    allowed_s: float
    parts: Mapping[str, float]
    tokens: int

    @property
    def met(self) -> bool:
        return self.least_s <= self.allowed_s

    @property
    def words(self) -> str:
        """Which bound, by how much, and what the time goes into."""
        least, allowed = self.least_s * 1e3, self.allowed_s * 1e3
        told = [f"{name} {seconds * 1e3:.4g} ms" for name, seconds in self.parts.items() if seconds > 0]
        over = f", {least / allowed:.3g} times as much" if not self.met else ""
        what = f"{self.metric} without any queue is {least:.4g} ms of {allowed:.4g} ms allowed{over}"
        return f"{what}: {' + '.join(told)}" if told else what

    def as_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "least_ms": self.least_s * 1e3,
            "allowed_ms": self.allowed_s * 1e3,
            "parts_ms": {name: seconds * 1e3 for name, seconds in self.parts.items()},
            "met": self.met,
        }


def floors(
    latency: LatencyModel, requests: Requests, slo: Slo, topologies: Iterable[str]
) -> tuple[Floor, Floor]:
    """Of TTFT and of TPOT. `topologies` that may be chosen."""
    chosen = list(topologies)
    ways = [way for topology in chosen for way in WAYS[topology]]
    ttft = min((_ttft(latency, requests, slo, *way) for way in ways), key=lambda floor: floor.least_s)
    decoding = {"disaggregated": "decode", "e_pd": "prefill_decode", "monolithic": "all"}
    several = requests.output_tokens > 1
    context = float(requests.total_tokens[several].mean()) if several.any() else 0.0
    step = min(
        latency.on(decoding[topology]).grid(Stage.DECODE).seconds(100.0, 1.0, context) for topology in chosen
    )
    step = step if several.any() else 0.0
    pace_s = requests.bounds_s(slo)[1][several]
    allowed = float(pace_s[_at(-pace_s, slo.attainment)]) if several.any() else slo.tpot_s
    return ttft, Floor("TPOT", step, allowed, {"one decode step": step}, 0)


def _ttft(latency: LatencyModel, requests: Requests, slo: Slo, encoding: str, prefilling: str) -> Floor:
    media, total = requests.media_tokens, requests.total_tokens
    parts: dict[str, Floats] = {"preprocess": _seconds(latency, Stage.PREPROCESS, media)}
    if latency.on(encoding).covers(Stage.ENCODE):
        parts["encode"] = _seconds(latency.on(encoding), Stage.ENCODE, media)
    if encoding != prefilling:
        parts["transfer"] = _seconds(latency, Stage.EMBEDDING_TRANSFER, media)
    parts = {name: np.where(requests.is_media, seconds, 0.0) for name, seconds in parts.items()}
    parts["prefill"] = _seconds(latency.on(prefilling), Stage.PREFILL, total)
    whole = np.sum(list(parts.values()), axis=0)
    allowed = requests.bounds_s(slo)[0]
    at = _at(whole / allowed, slo.attainment)
    names = {"prefill": f"prefill of {total[at]} tokens"}
    told = {names.get(name, name): float(seconds[at]) for name, seconds in parts.items()}
    return Floor("TTFT", float(whole[at]), float(allowed[at]), told, int(total[at]))


def _at(values: Floats, share: float) -> int:
    """Index of the value that this share of all is at or below."""
    return int(np.argsort(values, kind="stable")[max(0, math.ceil(share * len(values)) - 1)])


def _seconds(latency: LatencyModel, stage: Stage, tokens: np.ndarray) -> Floats:
    grid = latency.grid(stage)
    sizes, inverse = np.unique(tokens, return_inverse=True)
    return np.array([grid.seconds(100.0, 1.0, float(size)) for size in sizes])[inverse]

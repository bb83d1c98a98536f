"""Stage factors from what a trial measured of itself.

A trial's figures hold each stage's own service times. Held against a simulation of the same
requests on the same deployment, their ratio is that stage's latency factor, with the batch sizes
that differ between the two taken out by the profile's own batch dependence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from has.core.deployment import Deployment
from has.core.requests import Floats
from has.core.stage import Stage
from has.latency.lookup import LatencyModel
from has.search.capacity import Demand
from has.search.factors import Factors
from has.search.surrogate import Telemetry

SD = 0.03
"""Of a log ratio from one trial of some hundred requests: their sampling, and sizes of which only means are known."""
SD_LOCAL = 0.08
"""Of a local prefill's: how long it runs on how many SMs depends on how busy encode is, not on itself alone."""
SD_SHARED = 0.25
"""Of an encoder's as far as it shares its GPU: which launches ran beside a prefill, on how many SMs, nobody counts."""
NEGLIGIBLE = 0.01
"""Share of the mean TTFT below which a stage's factor is not learned: nothing that counts hangs on it, and
a few milliseconds may well take twice as long beside other work."""
FEWEST = 10
"""Batches below which a mean service time tells too little."""

CONSTANT = Factors()

STAGES = {
    "preprocess": Stage.PREPROCESS,
    "encode": Stage.ENCODE,
    "prefill_local": Stage.PREFILL,
    "prefill_remote": Stage.PREFILL,
    "decode": Stage.DECODE,
}


def telemetry(
    deployment: Deployment,
    measured: Mapping[str, Any],
    simulated: Mapping[str, Any],
    latency: LatencyModel,
    demand: Demand,
    centre: Floats,
    factors: Factors = CONSTANT,
) -> list[Telemetry]:
    """Log factors against the profile, one a stage that both figures tell of, at the batch size it ran at.

    `simulated` are figures under the log factors `centre` (θ of `factors`). Only disaggregated stages are told
    apart cleanly; of e_pd the encoders are, of a monolith nothing is.
    """
    usable = {"disaggregated": tuple(STAGES), "e_pd": ("preprocess", "encode"), "monolithic": ("preprocess",)}
    rows = []
    for name in usable[deployment.topology]:
        ratio = _ratio(name, _stage(measured, name), _stage(simulated, name), latency, demand)
        if ratio is None or _negligible(name, measured):
            continue
        row = _row(name, measured, simulated, factors)
        shared = float(row @ factors.row("beside"))
        sd = SD_LOCAL if name == "prefill_local" else math.hypot(SD, SD_SHARED * shared)
        rows.append(Telemetry(row, math.log(ratio) + float(row @ centre), sd))
    return rows


def _row(name: str, measured: Mapping[str, Any], simulated: Mapping[str, Any], factors: Factors) -> Floats:
    """How much of each factor this stage's service time shows: co-location as far as the other stage is busy."""
    row = factors.row(str(STAGES[name]), float(_stage(measured, name).get("mean_batch") or 1.0))
    other = {"encode": "prefill_local", "prefill_local": "encode"}.get(name)
    if other is not None:
        row += factors.row("beside") * min(1.0, _stage(simulated, other).get("utilisation") or 0.0)
    return row


def _ratio(
    name: str,
    measured: Mapping[str, Any],
    simulated: Mapping[str, Any],
    latency: LatencyModel,
    demand: Demand,
) -> float | None:
    seen, expected = (_mean_service(stage) for stage in (measured, simulated))
    if not seen or not expected or (measured.get("batches") or FEWEST) < FEWEST:
        return None
    sizes = [float(figures.get("mean_batch") or 0.0) for figures in (measured, simulated)]
    if all(sizes) and name != "preprocess":
        stage = STAGES[name]
        tokens = demand.media_tokens if stage == Stage.ENCODE else demand.total_tokens
        at = [latency.grid(stage).seconds(100.0, size, tokens) for size in sizes]
        if min(at) > 0:
            expected *= at[0] / at[1]
    return seen / expected


def _mean_service(stage: Mapping[str, Any]) -> float | None:
    mean = (stage.get("service_ms") or {}).get("mean")
    return None if mean is None else float(mean)


def _negligible(name: str, measured: Mapping[str, Any]) -> bool:
    """Of the stages before the first token; a decode step counts once a token, however short."""
    ttft = (measured.get("ttft_ms") or {}).get("mean") or 0.0
    service = _mean_service(_stage(measured, name)) or 0.0
    return name != "decode" and service < NEGLIGIBLE * ttft


def _stage(figures: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    stages: Mapping[str, Any] = figures.get("stages") or {}
    found: Mapping[str, Any] = stages.get(name) or {}
    return found

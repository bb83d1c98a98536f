"""The largest rate a deployment carries: `max_rate_rps`.

Attainment is not monotone in the rate (at low load a gap rule makes batches wait), so bisection from
below would be wrong: the scan comes down from above the capacity bound on a 5 % grid to the first rate
that meets the target, and refines that to 0.5 %. Every rate sees the same requests in the same order,
their arrivals stretched, so that neighbours differ by the rate alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from has.core.deployment import POOLS, Deployment
from has.core.figures import attainment
from has.core.slo import Slo
from has.core.stage import Stage
from has.latency.memory import kv_capacity
from has.sim.simulator import Prepared, Simulator

Floats = NDArray[np.float64]

GRID = 1.05
PRECISION = 1.005
HEADROOM = 1.1
LEAST = 0.01
"""The scan gives up below this share of the capacity bound."""


@dataclass(frozen=True, slots=True)
class MaxRate:
    """`max_rate_rps` is None where no rate meets the target; `feasible_from_rps` where no rate below
    it fails (or none was looked for). `attainment` is that at `max_rate_rps`."""

    max_rate_rps: float | None
    attainment: float | None
    feasible_from_rps: float | None
    simulations: int


def max_rate(
    simulator: Simulator,
    deployment: Deployment,
    prepared: Prepared,
    slo: Slo,
    *,
    media_share: float | None = None,
    online: bool = False,
    warmup_share: float = 0.0,
    bound_rps: float | None = None,
    low_edge: bool = False,
) -> MaxRate:
    """Largest offered rate at which `slo.attainment` of the requests meet `slo`.

    `bound_rps` is a capacity bound, else `capacity_bound`; where it proves too low the scan starts
    higher. `warmup_share` of the arrival span is cut. `low_edge` looks below the answer too.
    """
    runs = 0

    def reaches(rate: float) -> float | None:
        """Attainment at `rate` if that meets the target."""
        nonlocal runs
        runs += 1
        at = prepared.at_rate(rate)
        records = simulator.run(deployment, at, rate=rate, media_share=media_share, online=online)
        share = attainment(records, slo, warmup_share * at.requests.span_s)
        return share if share is not None and share >= slo.attainment else None

    bound = bound_rps or capacity_bound(simulator, deployment, prepared, media_share)
    fails = bound * HEADROOM
    while (found := reaches(fails)) is not None and fails < bound * 1e3:
        fails *= 1.5
    good, share = fails, found
    while share is None and good > bound * LEAST:
        fails, good = good, good / GRID
        share = reaches(good)
    if share is None:
        return MaxRate(None, None, None, runs)
    while fails / good > PRECISION:
        middle = (good * fails) ** 0.5
        at_middle = reaches(middle)
        if at_middle is None:
            fails = middle
        else:
            good, share = middle, at_middle
    edge = _low_edge(good, bound, reaches) if low_edge else None
    return MaxRate(good, share, edge, runs)


def _low_edge(good: float, bound: float, reaches: Callable[[float], float | None]) -> float | None:
    """The rate below which the target is missed again, to 0.5 %; None if there is none down to LEAST."""
    low = good
    while reaches(low / GRID) is not None:
        low /= GRID
        if low < bound * LEAST:
            return None
    fails = low / GRID
    while low / fails > PRECISION:
        middle = (low * fails) ** 0.5
        if reaches(middle) is None:
            fails = middle
        else:
            low = middle
    return low


def capacity_bound(
    simulator: Simulator,
    deployment: Deployment,
    prepared: Prepared,
    media_share: float | None = None,
) -> float:
    """Requests per second that the busiest stage can do at best: every batch as good as it gets, no SM
    given away, nobody waiting. By mean sizes, so an estimate of a bound, not a proof."""
    requests = prepared.requests
    media = requests.is_media
    share = requests.media_share if media_share is None else media_share
    media_tokens = float(np.mean(requests.media_tokens[media])) if media.any() else 0.0
    total = float(np.mean(requests.total_tokens))
    steps = float(np.mean(requests.output_tokens - 1))
    context = total + float(np.mean(requests.output_tokens)) / 2
    latency = simulator.latency
    pool = POOLS[deployment.topology][-1]
    disaggregated = deployment.topology == "disaggregated"
    encoding = pool if deployment.topology == "monolithic" else "encode"

    def per_request(stage: Stage, tokens: float, most: float, on: str = pool) -> float:
        """Seconds of one request in the best batch of up to `most`, on the GPUs of pool `on`."""
        grid = latency.on(on).grid(stage)
        sizes = np.unique(np.clip(np.concatenate([grid.batch, [1, most]]), 1, max(1, most)))
        return float(min(grid.seconds(100.0, n, tokens) / n for n in sizes))

    kv = kv_capacity(deployment, latency.on(pool).metadata, pool)
    seqs = deployment.max_num_seqs if kv is None else min(deployment.max_num_seqs, kv / max(1.0, context))
    in_prefill = deployment.prefill_token_budget / max(1.0, total)
    if deployment.max_prefill_requests:
        in_prefill = min(in_prefill, deployment.max_prefill_requests)
    decode = steps * per_request(Stage.DECODE, context, seqs)
    prefill = per_request(Stage.PREFILL, total, in_prefill, "prefill" if disaggregated else pool)
    batch = deployment.encode_batch or 1
    encode = share * per_request(Stage.ENCODE, media_tokens, batch, encoding) if share else 0.0
    preprocess = share * latency.grid(Stage.PREPROCESS).seconds(100.0, 1, media_tokens)

    loads: list[tuple[float, float]] = [(preprocess, deployment.preprocess_servers)]
    if deployment.topology == "monolithic":
        loads.append((encode + prefill + decode, deployment.workers(pool)))
    elif deployment.topology == "e_pd":
        loads += [(encode, deployment.workers("encode")), (prefill + decode, deployment.workers(pool))]
    else:
        prefillers = float(deployment.workers("prefill"))
        if deployment.offload_fraction < 1:
            on_encoders = per_request(Stage.PREFILL, total, in_prefill, "encode")
            groups = deployment.workers("encode") // deployment.local_prefill_span
            prefillers += groups * (prefill / on_encoders if on_encoders > 0 else 1.0)
        loads += [
            (encode, deployment.workers("encode")),
            (prefill, prefillers),
            (decode, deployment.workers(pool)),
        ]
    rates = [workers / seconds for seconds, workers in loads if seconds > 0]
    return min(rates, default=1e6)

"""One step in every direction from a deployment: what `has explain` tries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from has.core.deployment import POOLS, Deployment
from has.core.words import signed

BATCHES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""B is stepped to its neighbours in this list."""
STEP_S = 0.1
LOAD = 0.1


def steps(deployment: Deployment) -> Iterator[tuple[str, Deployment, float]]:
    """(what, deployment, load): ±1 worker per pool, ±B, ±s, ±10 % load; only valid ones."""
    for pool in POOLS[deployment.topology]:
        for sign in (1, -1):
            size = sign * _unit(deployment, pool)
            changed = _with_gpus(deployment, pool, size)
            if changed is not None:
                count = f"{size:+d} GPU{'s' if abs(size) > 1 else ''}"
                yield f"{count} {pool.replace('_', '+')}", changed, 1.0
    for batch in _neighbours(deployment.encode_batch):
        changed = _valid(deployment, encode_batch=batch, sm_table=_resized(deployment, batch))
        if changed is not None:
            yield f"B = {batch}", changed, 1.0
    if deployment.prefill_offload:
        for share in (deployment.prefill_offload + STEP_S, deployment.prefill_offload - STEP_S):
            changed = _valid(deployment, prefill_offload=round(share, 6)) if 0 < share <= 1 + 1e-9 else None
            if changed is not None:
                yield f"s = {changed.prefill_offload:g}", changed, 1.0
    for load in (1 + LOAD, 1 - LOAD):
        yield f"{signed(load - 1, 0)} load", deployment, load


def _unit(deployment: Deployment, pool: str) -> int:
    """GPUs that a pool grows or shrinks by: of one worker, and of one group of local prefill."""
    local = pool == "encode" and deployment.topology == "disaggregated" and deployment.offload_fraction < 1
    return math.lcm(deployment.tp(pool), deployment.local_prefill_span if local else 1)


def _with_gpus(deployment: Deployment, pool: str, change: int) -> Deployment | None:
    alloc = {p: deployment.alloc[p] for p in POOLS[deployment.topology]}
    alloc[pool] += change
    if pool == "prefill" and alloc[pool] <= 0:
        return None
    return _valid(deployment, alloc=alloc, gpus=deployment.gpus + change)


def _neighbours(batch: int | None) -> list[int]:
    if batch is None:
        return []
    above = [b for b in BATCHES if b > batch][:1]
    below = [b for b in BATCHES if b < batch][-1:]
    return above + below


def _resized(deployment: Deployment, batch: int) -> Any:
    """The table's beginning for a smaller B; for a larger one the profile's own."""
    if not isinstance(deployment.sm_table, tuple):
        return deployment.sm_table
    if batch > (deployment.encode_batch or 1):
        return None
    return tuple(row for row in deployment.sm_table if row.batch <= batch) or deployment.sm_table[:1]


def _valid(deployment: Deployment, **changes: Any) -> Deployment | None:
    fields = {name: getattr(deployment, name) for name in type(deployment).model_fields}
    try:
        return Deployment(**(fields | changes))
    except ValueError:
        return None

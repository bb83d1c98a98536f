"""Why this deployment: what binds it, what its numbers mean, and what a step in any direction would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from has.core.deployment import POOLS, Deployment
from has.core.profile import Profile
from has.core.requests import Requests
from has.core.slo import Slo
from has.core.stage import Stage
from has.core.workload import Workload
from has.errors import HasError
from has.latency.lookup import LatencyModel
from has.latency.memory import kv_capacity, memory_verdict
from has.policy.microbatch import gap_coefficient
from has.policy.partition import SmPartitioner, encode_shares
from has.search.capacity import CapacityModel, Demand, Limits
from has.search.space import candidate_of
from has.sim.draw import draw_requests
from has.sim.run import simulate

BATCHES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""B is stepped to its neighbours in this list."""
STEP_S = 0.1
LOAD = 0.1


def explain(
    deployment: Deployment,
    profile: Profile,
    workload: Workload,
    *,
    rate: float | None = None,
    requests: int = 2000,
    seed: int = 0,
    slo: Slo | None = None,
) -> dict[str, Any]:
    """Everything `has explain` shows, as plain data.

    capacities    requests/s that each stage can carry, `binding` the least, `utilisation` at the rate
    batching      κ, the gap threshold g = κ/λ in s, the waiting budget, mean batch simulated
    sm_table      rows {batch, encode_sm, prefill_sm}, or "streams"
    memory        per pool bytes that one GPU needs and has; None where the profile does not say
    figures       simulated at the rate in force
    sensitivity   one row a step: its figures, and goodput against the deployment's own, in percent
    runners_up, baselines, prediction_error_percent   from the evidence; empty without one
    prediction_source, profile_error   the profile's source and the relative error it states

    Raises InputError where the profile does not reach.
    """
    bounds = slo or workload.slo or deployment.slo
    trace = workload.arrivals.process == "trace"
    in_force = rate or workload.arrivals.rate or deployment.rate
    drawn = draw_requests(
        workload,
        rate=rate if trace else in_force,
        requests=None if trace else requests,
        seed=seed,
        model=deployment.model,
    )
    in_force = in_force or drawn.mean_rate
    deployment = deployment.model_copy(update={"slo": bounds, "rate": in_force})
    ask = _Asker(profile, workload, bounds, seed, requests, in_force)
    latency = LatencyModel.from_profile(profile)
    own = ask.figures(deployment, in_force)
    evidence = deployment.evidence or {}
    return {
        "deployment": deployment.label,
        "topology": deployment.topology,
        "rate": in_force,
        "slo": bounds.model_dump(),
        "capacities": _capacities(deployment, profile, latency, drawn, bounds, in_force),
        "batching": _batching(deployment, drawn, in_force, own),
        "sm_table": _sm_table(deployment, profile),
        "memory": _memory(deployment, profile, drawn, bounds),
        "figures": own,
        "sensitivity": [ask.step(what, changed, load, own) for what, changed, load in steps(deployment)],
        "runners_up": evidence.get("runners_up", []),
        "baselines": evidence.get("baselines", {}),
        "prediction_error_percent": evidence.get("run_prediction_error_percent", {}),
        "prediction_source": profile.metadata.source,
        "profile_error": profile.metadata.stated_error,
    }


class _Asker:
    def __init__(
        self, profile: Profile, workload: Workload, slo: Slo, seed: int, requests: int, rate: float | None
    ) -> None:
        self.profile, self.workload, self.slo = profile, workload, slo
        self.seed, self.rate = seed, rate
        self.requests = None if workload.arrivals.process == "trace" else requests

    def figures(self, deployment: Deployment, rate: float | None) -> dict[str, Any]:
        return simulate(
            deployment,
            self.profile,
            self.workload,
            rate=rate,
            requests=self.requests,
            seed=self.seed,
            slo=self.slo,
        )

    def step(self, what: str, changed: Deployment, load: float, own: Mapping[str, Any]) -> dict[str, Any]:
        """A row of the sensitivity table; `reason` in place of figures where the step cannot be simulated."""
        row: dict[str, Any] = {"change": what, "deployment": changed.label, "load": load}
        try:
            figures = self.figures(changed, None if self.rate is None else self.rate * load)
        except HasError as error:
            return row | {"reason": str(error).splitlines()[0]}
        goodput, before = figures["goodput_rps"] or 0.0, own["goodput_rps"] or 0.0
        return row | {
            "goodput_rps": figures["goodput_rps"],
            "attainment": figures["attainment"],
            "ttft_p99_ms": figures["ttft_ms"]["p99"],
            "tpot_p99_ms": figures["tpot_ms"]["p99"],
            "goodput_change_percent": 100 * (goodput / before - 1) if before > 0 else None,
        }


def steps(deployment: Deployment) -> Iterator[tuple[str, Deployment, float]]:
    """(what, deployment, load): ±1 worker per pool, ±B, ±s, ±10 % load; only valid ones."""
    for pool in POOLS[deployment.topology]:
        for sign in (1, -1):
            size = sign * deployment.tp(pool)
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
        yield f"{load - 1:+.0%} load", deployment, load


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


def _capacities(
    deployment: Deployment,
    profile: Profile,
    latency: LatencyModel,
    drawn: Requests,
    slo: Slo,
    rate: float | None,
) -> dict[str, Any]:
    bound = deployment.encode_batch or 1
    table = _table(deployment, profile)
    shares = None
    if table is not None and not table.streams:
        shares = np.array([table.encode_share(b) for b in range(bound + 1)])
    limits = Limits(
        max_num_seqs=deployment.max_num_seqs,
        prefill_tokens=deployment.prefill_token_budget,
        max_prefill_requests=deployment.max_prefill_requests,
        preprocess_workers=deployment.preprocess_workers,
    )
    model = CapacityModel(latency, Demand.of(drawn), slo, limits, shares)
    kv = kv_capacity(deployment, profile.metadata, POOLS[deployment.topology][-1])
    found = model.of(candidate_of(deployment), kv)
    finite = {name: value for name, value in found.stages.items() if np.isfinite(value)}
    return {
        "stages_rps": finite,
        "limit_rps": found.limit if np.isfinite(found.limit) else None,
        "binding": found.binding if finite else None,
        "utilisation": {}
        if rate is None
        else {name: rate / value for name, value in finite.items() if value},
    }


def _batching(
    deployment: Deployment, drawn: Requests, rate: float | None, own: Mapping[str, Any]
) -> dict[str, Any] | None:
    if deployment.encode_batch is None:
        return None
    kappa = gap_coefficient(deployment.encode_batch, deployment.fill_probability)
    media_rate = None if rate is None else rate * drawn.media_share / deployment.workers("encode")
    return {
        "kappa": kappa,
        "media_rps_per_encoder": media_rate,
        "gap_s": kappa / media_rate if media_rate else None,
        "max_wait_s": deployment.max_wait_s,
        "mean_batch": own["stages"]["encode"]["mean_batch"],
        "full_share": own["stages"]["encode"].get("full_share"),
    }


def _table(deployment: Deployment, profile: Profile) -> SmPartitioner | None:
    if deployment.topology != "disaggregated" or deployment.offload_fraction == 1:
        return None
    if deployment.sm_table is not None:
        return SmPartitioner(deployment.sm_table)
    if not any(row.stage == Stage.ENCODE for row in profile.rows):
        return None
    return SmPartitioner.from_profile(
        profile, deployment.encode_slowdown_budget, deployment.encode_batch or 1
    )


def _sm_table(deployment: Deployment, profile: Profile) -> Any:
    """None where encode has the GPU to itself."""
    table = _table(deployment, profile)
    if table is None:
        return None
    if table.streams:
        return "streams"
    shares = encode_shares(table.sm_table, deployment.encode_batch or 1)
    return [
        {"batch": batch, "encode_sm": float(share), "prefill_sm": 100.0 - float(share)}
        for batch, share in enumerate(shares)
        if batch > 0
    ]


def _memory(deployment: Deployment, profile: Profile, drawn: Requests, slo: Slo) -> dict[str, Any]:
    tokens = int(np.quantile(drawn.total_tokens + drawn.output_tokens, slo.attainment))
    verdict = memory_verdict(deployment, profile.metadata, request_tokens=tokens)
    return {
        "pools": [
            {
                "pool": line.pool,
                "need_bytes": line.need_bytes,
                "have_bytes": line.have_bytes,
                "holds": line.why,
            }
            for line in verdict.lines
        ],
        "kv_tokens_per_worker": kv_capacity(deployment, profile.metadata, POOLS[deployment.topology][-1]),
        "notes": list(verdict.notes),
    }

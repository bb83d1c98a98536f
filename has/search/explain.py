"""Why this deployment: what binds it, what its numbers mean, and what a step in any direction would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from has.core.deployment import POOLS, Deployment
from has.core.profile import Profile
from has.core.requests import Requests
from has.core.slo import Slo
from has.core.stage import Stage
from has.core.words import signed
from has.core.workload import Workload
from has.errors import HasError
from has.latency.lookup import LatencyModel
from has.latency.memory import kv_capacity, memory_verdict
from has.policy.microbatch import gap_coefficient
from has.policy.partition import SmPartitioner, encode_shares
from has.search.capacity import CapacityModel, Demand, Limits, loosest
from has.search.floors import floors
from has.search.pools import latency_of
from has.search.problem import shares_of
from has.search.space import candidate_of
from has.search.steps import steps
from has.search.traffic import lasting
from has.sim.draw import draw_requests
from has.sim.run import simulate

NOTHING = 0.5
"""A step that moves what can be carried by less than this many percent does not raise it."""


def explain(
    deployment: Deployment,
    profile: Profile,
    workload: Workload,
    *,
    rate: float | None = None,
    requests: int = 2000,
    seed: int = 0,
    slo: Slo | None = None,
    pool_profiles: Mapping[str, Profile] | None = None,
) -> dict[str, Any]:
    """Everything `has explain` shows, as plain data. `pool_profiles` of pools with other GPUs, by pool.

    capacities    requests/s that each stage can carry, `binding` the least, `utilisation` at the rate
    batching      κ, the gap threshold g = κ/λ in s, the waiting budget, mean batch simulated
    sm_table      rows {batch, encode_sm, prefill_sm}, or "streams"
    memory        per pool bytes that one GPU needs and has; None where the profile does not say
    figures       simulated at the rate in force, `warnings` what to beware of in them
    sensitivity   one row a step: its figures, and goodput and what the stages can carry at the most
                  (`limit_rps`) against the deployment's own, in percent
    advice        what binds, what one GPU more in each pool gains, and what would gain most, in words
    floors        TTFT and TPOT of a request without any queue, against the SLO
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
    if trace:  # read once for all steps, and no more of a very long one than a search judges by
        drawn = lasting(drawn)
        in_force = drawn.mean_rate or in_force  # its own times, whatever rate the deployment is for
        estimate = deployment.rate_estimate or "online"
        deployment = deployment.model_copy(update={"rate_estimate": estimate})
    pools = dict(pool_profiles or {})
    latency = latency_of(profile, pools)
    table = _table(deployment, pools.get("encode", profile))
    ask = _Asker(latency, drawn if trace else workload, bounds, seed, None if trace else requests, in_force)
    warnings: list[str] = []
    own = ask.figures(deployment, 1.0, warnings)
    capacities = _capacities(deployment, latency, table, drawn, bounds, in_force)
    rows = [ask.step(what, changed, load, own) for what, changed, load in steps(deployment)]
    for row, (_, changed, _) in zip(rows, steps(deployment), strict=True):
        _add_limit(row, _limit(changed, latency, table, drawn, bounds), capacities["limit_rps"])
    evidence = deployment.evidence or {}
    return {
        "deployment": deployment.label,
        "topology": deployment.topology,
        "rate": in_force,
        "slo": bounds.model_dump(),
        "capacities": capacities,
        "batching": _batching(deployment, drawn, in_force, own),
        "sm_table": _sm_table(deployment, table),
        "memory": _memory(deployment, latency, drawn, bounds),
        "figures": own,
        "warnings": warnings,
        "floors": [f.as_json() for f in floors(latency, drawn, bounds, [deployment.topology])],
        "sensitivity": rows,
        "advice": _advice(deployment, capacities, rows),
        "runners_up": evidence.get("runners_up", []),
        "baselines": evidence.get("baselines", {}),
        "prediction_error_percent": evidence.get("run_prediction_error_percent", {}),
        "prediction_source": profile.metadata.source,
        "profile_error": max(p.metadata.stated_error for p in (profile, *pools.values())),
    }


def explain_worst(
    deployment: Deployment, profile: Profile, asked: Sequence[tuple[Workload, Slo]], **arguments: Any
) -> dict[str, Any]:
    """`explain` under the workload that the deployment serves worst, each held to its SLO: the one that decides (`worst`).

    Adds `workload`, the name of that one, and `attainments` under each, in order.
    """
    told = [explain(deployment, profile, workload, slo=slo, **arguments) for workload, slo in asked]
    attained = [of["figures"]["attainment"] for of in told]
    at = min(range(len(told)), key=lambda i: (attained[i], told[i]["figures"]["goodput_rps"]))
    each = [
        {"workload": workload.name, "attainment": share}
        for (workload, _), share in zip(asked, attained, strict=True)
    ]
    return {**told[at], "workload": asked[at][0].name, "attainments": each}


class _Asker:
    def __init__(
        self,
        latency: LatencyModel,
        workload: Workload | Requests,
        slo: Slo,
        seed: int,
        requests: int | None,
        rate: float | None,
    ) -> None:
        self.latency, self.workload, self.slo = latency, workload, slo
        self.seed, self.rate, self.requests = seed, rate, requests

    def figures(
        self, deployment: Deployment, load: float, warnings: list[str] | None = None
    ) -> dict[str, Any]:
        """At `load` times the rate in force; requests that are replayed keep their times at 1."""
        rate = None if self.rate is None else self.rate * load
        if load == 1.0 and isinstance(self.workload, Requests):
            rate = None
        return simulate(
            deployment,
            self.latency,
            self.workload,
            rate=rate,
            requests=self.requests,
            seed=self.seed,
            slo=self.slo,
            warnings=warnings,
        )

    def step(self, what: str, changed: Deployment, load: float, own: Mapping[str, Any]) -> dict[str, Any]:
        """A row of the sensitivity table; `reason` in place of figures where the step cannot be simulated."""
        row: dict[str, Any] = {"change": what, "deployment": changed.label, "load": load}
        try:
            figures = self.figures(changed, load)
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


def _add_limit(row: dict[str, Any], limit: float | None, own: float | None) -> None:
    row["limit_rps"] = limit
    if limit is not None and own:
        row["limit_change_percent"] = 100 * (limit / own - 1)


def _advice(
    deployment: Deployment, capacities: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> list[str]:
    """By what the stages can carry: goodput at a low rate hardly moves, whatever is added."""
    binding = capacities["binding"]
    if binding is None:
        return []
    words = [f"{binding} binds at {capacities['limit_rps']:.4g} requests/s"]
    if binding == "preprocess":
        servers = deployment.preprocess_servers
        words[0] += (
            f", on {servers} CPU worker{'s' if servers > 1 else ''}: only more of those, or smaller media, help"
        )
    gains = {row["change"]: row["limit_change_percent"] for row in rows if "limit_change_percent" in row}
    added = {change: gain for change, gain in gains.items() if change.startswith("+") and "GPU" in change}
    idle = [change for change, gain in added.items() if gain < NOTHING]
    words += [f"{change} does not raise that" for change in idle]
    best = max(gains, key=lambda change: gains[change], default=None)
    if best is not None and gains[best] >= NOTHING:
        words.append(f"{best} would carry most: {signed(gains[best] / 100, 0)}")
    return words


def _limit(
    deployment: Deployment, latency: LatencyModel, table: SmPartitioner | None, drawn: Requests, slo: Slo
) -> float | None:
    limit: float | None = _capacities(deployment, latency, table, drawn, slo, None)["limit_rps"]
    return limit


def _capacities(
    deployment: Deployment,
    latency: LatencyModel,
    table: SmPartitioner | None,
    drawn: Requests,
    slo: Slo,
    rate: float | None,
) -> dict[str, Any]:
    shares = None if table is None else shares_of(table, deployment.encode_batch or 1)
    model = CapacityModel(latency, Demand.of(drawn), loosest(drawn, slo), Limits.of(deployment), shares)
    pool = POOLS[deployment.topology][-1]
    found = model.of(candidate_of(deployment), kv_capacity(deployment, latency.on(pool).metadata, pool))
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


def _sm_table(deployment: Deployment, table: SmPartitioner | None) -> Any:
    """None where encode has the GPU to itself."""
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


def _memory(deployment: Deployment, latency: LatencyModel, drawn: Requests, slo: Slo) -> dict[str, Any]:
    tokens = int(np.quantile(drawn.total_tokens + drawn.output_tokens, slo.attainment))
    metadata = {pool: latency.on(pool).metadata for pool in POOLS[deployment.topology]}
    verdict = memory_verdict(deployment, metadata, request_tokens=tokens)
    pool = POOLS[deployment.topology][-1]
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
        "kv_tokens_per_worker": kv_capacity(deployment, metadata[pool], pool),
        "notes": list(verdict.notes),
    }

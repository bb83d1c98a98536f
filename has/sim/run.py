"""Runs over the kernel: one what-if with its figures, or bare records for whoever scores many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from has.core.deployment import Deployment
from has.core.figures import check_warmup
from has.core.figures import figures as figures_of
from has.core.limits import LEAST_RATE, MOST_RATE, MOST_REQUESTS, MOST_SEED
from has.core.profile import Profile
from has.core.records import NEVER, Records
from has.core.requests import Requests
from has.core.slo import Slo
from has.core.words import plural
from has.core.workload import Workload
from has.errors import InputError
from has.files.facts import same_model
from has.files.validate import validate
from has.latency.lookup import LatencyModel
from has.policy.arguments import real, whole
from has.sim.compiled import is_cached
from has.sim.draw import LAST_ARRIVAL_S, at_rate, draw_requests, media_share
from has.sim.pipeline import run as run_kernel
from has.sim.simulator import Simulator


@dataclass(frozen=True, slots=True)
class Simulated:
    """One simulated run: what happened, its figures, the rate and SLO in force, and what to beware of."""

    records: Records
    figures: dict[str, Any]
    rate: float | None
    slo: Slo
    warnings: tuple[str, ...]


def simulate(
    deployment: Deployment,
    profile: Profile | LatencyModel,
    workload: Workload | Requests,
    *,
    rate: float | None = None,
    requests: int | None = None,
    warmup_s: float = 0.0,
    seed: int = 0,
    slo: Slo | Mapping[str, float] | None = None,
    warnings: list[str] | None = None,
) -> dict[str, Any]:
    """Figures of `deployment` under `workload`; arguments and errors as for `simulate_run`.

    What there is to beware of is appended to `warnings`, if given.
    """
    run = simulate_run(
        deployment,
        profile,
        workload,
        rate=rate,
        requests=requests,
        warmup_s=warmup_s,
        seed=seed,
        slo=slo,
    )
    if warnings is not None:
        warnings.extend(run.warnings)
    return run.figures


def simulate_run(
    deployment: Deployment,
    profile: Profile | LatencyModel,
    workload: Workload | Requests,
    *,
    rate: float | None = None,
    requests: int | None = None,
    warmup_s: float = 0.0,
    seed: int = 0,
    slo: Slo | Mapping[str, float] | None = None,
) -> Simulated:
    """Draw, run, score.

    rate      requests per second; else the workload's, else the deployment's. A trace or a list of
              requests keeps its times unless it is given; its rate in force is then the
              deployment's, else its own mean.
    requests  how many (default 3000; a trace or list whole)
    warmup_s  requests that arrive earlier, counted from the first, are left out of the figures; some must be left
    slo       else the workload's, else the deployment's

    Raises InputError where the profile does not reach (four times its largest batch or tokens).
    """
    _check(deployment, "deployment", Deployment)
    _check(profile, "profile", Profile, LatencyModel)
    _check(workload, "workload", Workload, Requests)
    if rate is not None:
        rate = real(rate, "rate", LEAST_RATE, MOST_RATE)
    if requests is not None:
        requests = whole(requests, "requests", 1, MOST_REQUESTS)
    warmup_s = real(warmup_s, "warmup_s", 0.0, LAST_ARRIVAL_S)
    seed = whole(seed, "seed", 0, MOST_SEED)
    replayed = isinstance(workload, Requests) or workload.arrivals.process == "trace"
    drawn = _drawn(deployment, workload, rate, requests, seed)
    if isinstance(workload, Requests):
        share, workload_slo, workload_rate = None, None, None
    else:
        share, workload_slo, workload_rate = media_share(workload), workload.slo, workload.arrivals.rate
    check_warmup(drawn, warmup_s)
    in_force = rate or workload_rate or deployment.rate or (drawn.mean_rate if replayed else None)
    bounds = _slo(slo) or workload_slo or deployment.slo
    simulator = Simulator(profile)
    simulator.check_sizes(drawn)
    records = simulator.run(
        deployment,
        simulator.prepare(drawn, seed),
        rate=in_force,
        media_share=share,
        online=replayed and not isinstance(workload, Requests),
    )
    warnings = [
        *profile_warnings(deployment, simulator.latency),
        *_left_out(deployment, drawn),
        *_never_launched(deployment, records),
        *simulator.check(drawn),
    ]
    return Simulated(records, figures_of(records, bounds, warmup_s), in_force, bounds, tuple(warnings))


def run_records(
    deployment: Deployment,
    profile: Profile | LatencyModel | Simulator,
    requests: Requests,
    *,
    rate: float | None = None,
    media_share: float | None = None,
    online: bool = False,
    seed: int = 0,
) -> Records:
    """What happens to each of `requests`, which arrive as they say.

    `rate` in force sets the gap rule (else the deployment's, else the list's mean), `media_share` is
    that of the stream they come from. Nothing is checked against the profile's reach. Who runs many
    deployments makes one Simulator, prepares the list once and calls its `run`.
    """
    _check(deployment, "deployment", Deployment)
    _check(profile, "profile", Profile, LatencyModel, Simulator)
    _check(requests, "requests", Requests)
    if rate is not None:
        rate = real(rate, "rate", LEAST_RATE, MOST_RATE)
    if media_share is not None:
        media_share = real(media_share, "media_share", 0.0, 1.0)
    seed = whole(seed, "seed", 0, MOST_SEED)
    simulator = profile if isinstance(profile, Simulator) else Simulator(profile)
    return simulator.run(
        deployment,
        simulator.prepare(requests, seed),
        rate=rate or deployment.rate or requests.mean_rate,
        media_share=media_share,
        online=online,
    )


def profile_warnings(deployment: Deployment, latency: LatencyModel) -> list[str]:
    """Where the profile is not of what the deployment deploys."""
    metadata = latency.metadata
    warnings = []
    if not same_model(metadata.model, deployment.model):
        warnings.append(f"the profile is of model {metadata.model}, the deployment of {deployment.model}")
    for pool in deployment.alloc.pools:
        taken = latency.on(pool).metadata.tensor_parallel
        if taken is not None and pool != "encode" and deployment.alloc[pool] and deployment.tp(pool) != taken:
            warnings.append(
                f"the profile was taken at tensor_parallel {taken}, pool {pool} has {deployment.tp(pool)}:"
                " its latencies are used as they are"
            )
    return warnings


def _left_out(deployment: Deployment, requests: Requests) -> list[str]:
    """What the deployment does and the simulator does not."""
    if (deployment.encode_fanout or 1) == 1 or not np.any(requests.items > 1):
        return []
    return [
        f"encode_fanout {deployment.encode_fanout}: here one worker encodes all media of a request;"
        " those of several media may be encoded sooner"
    ]


def _never_launched(deployment: Deployment, records: Records) -> list[str]:
    """Requests that wait for ever, as no rule says when a batch that does not fill is to start."""
    waits = records.requests.is_media & (records.encode_worker != NEVER) & (records.encode_start_ns == NEVER)
    count = int(np.count_nonzero(waits))
    if deployment.topology == "monolithic" or count == 0:
        return []
    return [
        f"{plural(count, 'request')} never encoded: a batch that does not fill has no gap rule here (no rate is known,"
        " or fill_probability is 1), and no age cap. max_wait_ms in the deployment caps its wait, as has deploy does"
        " (has simulate --as-deployed)"
    ]


def kernel_is_cached() -> bool:
    """Whether the compiled kernel is at hand; if not, the first run compiles it, which takes a while."""
    return is_cached(run_kernel)


def _check(value: Any, field: str, *kinds: type) -> None:
    if not isinstance(value, kinds):
        raise InputError(
            f"not a {kinds[0].__name__}",
            where="argument",
            field=field,
            value=value,
            allowed=" or ".join(kind.__name__ for kind in kinds),
        )


def _slo(slo: Slo | Mapping[str, float] | None) -> Slo | None:
    return slo if slo is None or isinstance(slo, Slo) else validate(Slo, slo, "argument slo")


def _drawn(
    deployment: Deployment, workload: Workload | Requests, rate: float | None, count: int | None, seed: int
) -> Requests:
    if isinstance(workload, Requests):
        cut = workload[: count or len(workload)]
        return cut if rate is None else at_rate(cut, rate)
    if workload.arrivals.process != "trace":
        rate = rate or workload.arrivals.rate or deployment.rate
    return draw_requests(workload, rate=rate, requests=count, seed=seed, model=deployment.model)

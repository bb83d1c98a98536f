"""What a search is asked: arguments checked, defaults taken, and all of it as plain data for the manifest."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.serving import served_max_wait_ms
from has.core.slo import Slo
from has.core.space import SearchSpace
from has.core.trial import Executor
from has.core.workload import Workload
from has.errors import InputError
from has.files.deployment import load_deployment
from has.files.validate import validate
from has.search import samplers
from has.search.events import Callbacks
from has.search.journal import Inputs, RunFolder
from has.search.length import COARSE_SPAN, TRIAL_SPAN, requests_lasting
from has.search.objective import OBJECTIVES, ObjectiveName
from has.search.problem import rate_in_force
from has.sim.draw import draw_requests
from has.version import __version__

TRIALS = {True: 12, False: 40}
"""Budget by whether trials are live."""
REQUESTS = {True: 80, False: 1000}
"""Requests of a trial, likewise; of a simulated one at a given rate the least, for there it lasts `TRIAL_SPAN`."""

LONG, COARSE = 1000, 300
"""Requests that the objective is judged on in simulation, and of a first look; at a given rate the least."""


@dataclass(frozen=True, slots=True)
class Asked:
    question: dict[str, Any]
    digests: dict[str, Any]
    inputs: Inputs
    own_baselines: dict[str, Deployment]
    sampler: samplers.Sampler
    executor: Executor
    folder: RunFolder
    callbacks: Callbacks

    @property
    def space(self) -> SearchSpace:
        return self.inputs.space

    @property
    def live(self) -> bool:
        return self.executor.live


def longer(gpus: int) -> int:
    """How many times as many requests simulated runs take on many GPUs, which would serve a thousand in an instant."""
    return max(1, gpus // 32)


def _trial_requests(
    workload: Workload, live: bool, gpus: int, rates: Sequence[float], slo: Slo
) -> int | None:
    """Requests of a trial where nobody said; None for a simulated one of a trace, which replays it (`traffic`)."""
    if live:
        return REQUESTS[True]
    if workload.arrivals.process == "trace":
        return None
    return _lasting(TRIAL_SPAN, REQUESTS[False] * longer(gpus), rates, slo)


def _lasting(bounds: float, fewest: int, rates: Sequence[float], slo: Slo) -> int:
    return requests_lasting(bounds, slo.ttft_s, max(rates), fewest) if rates else fewest


def requests_to_draw(question: Mapping[str, Any]) -> tuple[int, int]:
    """How many requests a search draws where no trace says it, and how many of them a first look takes."""
    rates, slo, more = question["rates"], Slo(**question["slo"]), longer(question["gpus"])
    judged = _lasting(TRIAL_SPAN, LONG * more, rates, slo)
    return max(judged, question["requests"]), _lasting(COARSE_SPAN, COARSE * more, rates, slo)


def ask(
    gpus: int,
    workloads: Sequence[Workload],
    rate: float | Sequence[float] | None,
    ttft_ms: float | None,
    tpot_ms: float | None,
    attainment: float | None,
    objective: ObjectiveName | None,
    price: float | Mapping[str, float] | None,
    trials: int | None,
    requests: int | None,
    executor: Executor,
    seed: int,
    model: str,
) -> dict[str, Any]:
    """What is asked, as plain data for the manifest. InputError for what cannot be asked."""
    workload = workloads[0]
    rates = (
        []
        if rate is None
        else sorted({float(r) for r in ([rate] if isinstance(rate, int | float) else rate)})
    )
    for value in rates:
        if not (0 < value < float("inf")):
            raise _bad("rate", value, "a number above 0")
    for name, number, least in (
        ("gpus", gpus, 1),
        ("trials", trials, 1),
        ("requests", requests, 2),
        ("seed", seed, 0),
    ):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < least):
            raise _bad(name, number, f"an integer of at least {least}")
    for value in price.values() if isinstance(price, Mapping) else () if price is None else (price,):
        if not (0 < value < float("inf")):
            raise _bad("price", value, "dollars per GPU and hour, above 0")
    if objective is not None and objective not in OBJECTIVES:
        raise _bad("objective", objective, ", ".join(OBJECTIVES))
    name = objective or ("goodput" if rates else "max-rate")
    if name != "max-rate" and not rates:
        own = workload.arrivals.rate
        if own is None and workload.arrivals.process != "trace":
            raise InputError(
                f"objective {name} needs a rate",
                where="argument",
                field="rate",
                mend="give --rate, or a rate in the workload",
            )
        rates = [own] if own is not None else [rate_in_force(workload, draw_requests(workload, model=model))]
    slo = _slo(workloads, ttft_ms, tpot_ms, attainment)
    several = {"slo_asked": {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "attainment": attainment}}
    return {
        **(several if len(workloads) > 1 else {}),  # else the SLO in force says as much
        "gpus": gpus,
        "rates": rates,
        "slo": slo.model_dump(mode="json"),
        "objective": name,
        "price": dict(price) if isinstance(price, Mapping) else price,
        "trials": trials,
        "requests": requests or _trial_requests(workload, executor.live, gpus, rates, slo),
        # An executor that is not the only one of its kind names itself, so that a resumed run finds it again.
        "on": getattr(executor, "place", "live" if executor.live else "simulated"),
        "seed": seed,
        "model": model,
    }


def all_workloads(
    given: Workload | Sequence[Workload], ttft_ms: float | None, tpot_ms: float | None
) -> tuple[Workload, ...]:
    """The workloads, names told apart; each further one with the SLO in force for it, so that it stands alone."""
    first, *further = [given] if isinstance(given, Workload) else given
    told = [first]
    for n, workload in enumerate(further, 2):
        taken = {w.name for w in told}
        bounds = {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms}
        own = workload.slo or first.slo
        held = own and own.model_copy(update={k: float(v) for k, v in bounds.items() if v is not None})
        name = f"{workload.name} ({n})" if workload.name in taken else workload.name
        told.append(workload.model_copy(update={"slo": held, "name": name}))
    return tuple(told)


def _slo(
    workloads: Sequence[Workload], ttft_ms: float | None, tpot_ms: float | None, attainment: float | None
) -> Slo:
    """Of the first workload, its target the strictest of all; options go before."""
    own = workloads[0].slo
    fields: dict[str, Any] = {} if own is None else own.model_dump()
    if own is not None:
        fields["attainment"] = max(w.slo.attainment for w in workloads if w.slo is not None)
    given = {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "attainment": attainment}
    fields |= {
        k: float(v) if isinstance(v, int) and not isinstance(v, bool) else v
        for k, v in given.items()
        if v is not None
    }
    missing = [name for name in ("ttft_ms", "tpot_ms") if name not in fields]
    if missing:
        raise InputError(
            f"no {missing[0]} is in force",
            where="workload",
            field=f"slo.{missing[0]}",
            mend=f"give --{missing[0].replace('_', '-')}, or an slo in the workload",
        )
    return validate(Slo, fields, "argument")


def _bad(field: str, value: Any, allowed: str) -> InputError:
    return InputError("not allowed", where="argument", field=field, value=value, allowed=allowed)


def load_baselines(
    given: Sequence[str | Path | Deployment] | Mapping[str, Deployment],
) -> dict[str, Deployment]:
    """The user's deployments by name, with the age cap that a server would give them.

    Without one a file that names none would wait for full batches here, which it does not where it
    is served, and be beaten too easily.
    """
    named: dict[str, Deployment] = {}
    pairs = given.items() if isinstance(given, Mapping) else [(None, own) for own in given]
    for name, own in pairs:
        deployment = own if isinstance(own, Deployment) else load_deployment(own)
        known_as = name or (deployment.label if own is deployment else str(own))
        named[known_as] = deployment.model_copy(update={"max_wait_ms": served_max_wait_ms(deployment)})
    return named


def manifest(
    question: Mapping[str, Any], digests: Mapping[str, Any], profile: Profile, command: Sequence[str] | None
) -> dict[str, Any]:
    return {
        "version": 1,
        "question": dict(question),
        "digests": dict(digests),
        "command": list(command if command is not None else sys.argv),
        "device": profile.metadata.device,
        "model": question["model"],
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"has": __version__, "python": platform.python_version(), "numpy": np.__version__},
        "platform": platform.platform(),
    }

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

from has import __version__
from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.slo import Slo
from has.core.space import SearchSpace
from has.core.trial import Executor
from has.core.workload import Workload
from has.errors import InputError
from has.files.deployment import load_deployment
from has.files.validate import validate
from has.search import samplers
from has.search.events import Callbacks
from has.search.journal import RunFolder
from has.search.objective import OBJECTIVES, ObjectiveName
from has.search.problem import rate_in_force
from has.sim.draw import draw_requests

TRIALS = {True: 12, False: 40}
"""Budget by whether trials are live."""
REQUESTS = {True: 80, False: 1000}
"""Requests of a trial, likewise."""


@dataclass(frozen=True, slots=True)
class Asked:
    question: dict[str, Any]
    digests: dict[str, Any]
    space: SearchSpace
    own_baselines: dict[str, Deployment]
    sampler: samplers.Sampler
    executor: Executor
    folder: RunFolder
    callbacks: Callbacks

    @property
    def live(self) -> bool:
        return self.executor.live


def ask(
    gpus: int,
    workload: Workload,
    rate: float | Sequence[float] | None,
    ttft_ms: float | None,
    tpot_ms: float | None,
    attainment: float | None,
    objective: ObjectiveName | None,
    price: float | None,
    trials: int | None,
    requests: int | None,
    executor: Executor,
    seed: int,
) -> dict[str, Any]:
    """What is asked, as plain data for the manifest. InputError for what cannot be asked."""
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
    if price is not None and not (0 < price < float("inf")):
        raise _bad("price", price, "dollars per GPU and hour, above 0")
    if objective is not None and objective not in OBJECTIVES:
        raise _bad("objective", objective, ", ".join(OBJECTIVES))
    name = objective or ("goodput" if rates else "max-rate")
    if name == "max-rate" and len(rates) > 0:
        rates = []  # a rate given beside max-rate only says where the workload is drawn
    if name != "max-rate" and not rates:
        own = workload.arrivals.rate
        if own is None and workload.arrivals.process != "trace":
            raise InputError(
                f"objective {name} needs a rate",
                where="argument",
                field="rate",
                mend="give --rate, or a rate in the workload",
            )
        rates = [own] if own is not None else [rate_in_force(workload, draw_requests(workload))]
    return {
        "gpus": gpus,
        "rates": rates,
        "slo": _slo(workload, ttft_ms, tpot_ms, attainment).model_dump(mode="json"),
        "objective": name,
        "price": price,
        "trials": trials,
        "requests": requests or REQUESTS[executor.live],
        "on": "live" if executor.live else "simulated",
        "seed": seed,
    }


def _slo(workload: Workload, ttft_ms: float | None, tpot_ms: float | None, attainment: float | None) -> Slo:
    fields: dict[str, Any] = {} if workload.slo is None else workload.slo.model_dump()
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
    if isinstance(given, Mapping):
        return dict(given)
    named: dict[str, Deployment] = {}
    for entry in given:
        if isinstance(entry, Deployment):
            named[entry.label] = entry
        else:
            named[str(entry)] = load_deployment(entry)
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

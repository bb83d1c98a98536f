"""What callers of `has.search` hand in, checked before anything is done: each wrong argument is an InputError."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from has.core.deployment import Deployment
from has.core.limits import LEAST_RATE, MOST, MOST_GPUS, MOST_RATE, MOST_REQUESTS, MOST_SEED
from has.core.profile import Profile
from has.core.space import SearchSpace
from has.core.workload import Workload
from has.errors import InputError
from has.files.validate import validate
from has.policy.arguments import real, whole
from has.search.events import Callbacks
from has.search.objective import OBJECTIVES

DECIDED = ("version", "topology", "gpus", "alloc", "tensor_parallel", "encode_batch", "prefill_offload")
"""Fields of a deployment that each candidate decides for itself."""
EXAMPLE = {
    "version": 1,
    "model": "any",
    "topology": "disaggregated",
    "gpus": 3,
    "alloc": {"encode": 1, "prefill": 1, "decode": 1},
    "encode_batch": 1,
    "prefill_offload": 0.5,
    "slo": {"ttft_ms": 1.0, "tpot_ms": 1.0},
}
"""A deployment that settings are tried on."""


def check(given: Mapping[str, Any]) -> None:
    """Raise InputError for the first of `has.search`'s arguments, by name, that is not what it must be."""
    _check_nouns(given)
    whole(given["gpus"], "gpus", 1, MOST_GPUS)
    whole(given["seed"], "seed", 0, MOST_SEED)
    for name, least in (("trials", 1), ("requests", 2)):
        if given[name] is not None:
            whole(given[name], name, least, MOST_REQUESTS)
    for value in _each(given["rate"], "rate"):
        real(value, "rate", LEAST_RATE, MOST_RATE)
    for name, most in (("ttft_ms", MOST), ("tpot_ms", MOST)):
        if given[name] is not None:
            real(given[name], name, 0.0, most, above=True)
    if given["attainment"] is not None:
        real(given["attainment"], "attainment", 0.0, 1.0)
    prices = (
        given["price"].values() if isinstance(given["price"], Mapping) else _each(given["price"], "price")
    )
    for value in prices:
        real(value, "price", 0.0, MOST, above=True)
    for name, kinds in (("objective", str), ("sampler", str), ("model", str), ("prune", bool)):
        optional = name in ("objective", "model")
        if not (optional and given[name] is None):
            _kind(given[name], name, kinds)
    if given["objective"] not in (None, *OBJECTIVES):
        raise _wrong("objective", given["objective"], ", ".join(OBJECTIVES))
    refuse_rates_of_max_rate(given["objective"], given["rate"])
    for name in ("run_dir", "resume"):
        if given[name] is not None:
            _kind(given[name], name, str, Path)
    if given["callbacks"] is not None:
        _kind(given["callbacks"], "callbacks", Callbacks)
    if given["executor"] is not None and not all(
        hasattr(given["executor"], m) for m in ("run", "close", "live")
    ):
        raise _wrong("executor", given["executor"], "an object with run, close and live")
    _check_settings(given["settings"])


def refuse_rates_of_max_rate(objective: str | None, rate: float | Sequence[float] | None) -> None:
    """InputError for a rate in force where the largest one is looked for."""
    if objective == "max-rate" and rate is not None:
        raise InputError(
            "max-rate looks for the rate itself",
            where="argument",
            field="rate",
            value=rate,
            mend="leave --rate out, or ask what is carried at that rate: --objective goodput",
        )


def _check_nouns(given: Mapping[str, Any]) -> None:
    _kind(given["profile"], "profile", Profile)
    for workload in _each(given["workload"], "workload", least=1):
        _kind(workload, "workload", Workload)
    if given["space"] is not None:
        _kind(given["space"], "space", SearchSpace)
    pools = given["pool_profiles"]
    if pools is not None:
        _kind(pools, "pool_profiles", Mapping)
        for pool, profile in pools.items():
            _kind(profile, f"pool_profiles.{pool}", Profile)
    baselines = given["baselines"]
    if isinstance(baselines, str | Path | Deployment):
        raise _wrong(
            "baselines", baselines, "a list of deployments or their files, or a mapping of names to them"
        )
    for baseline in baselines.values() if isinstance(baselines, Mapping) else _each(baselines, "baselines"):
        _kind(
            baseline,
            "baselines",
            *((Deployment,) if isinstance(baselines, Mapping) else (Deployment, str, Path)),
        )


def _check_settings(settings: Any) -> None:
    if settings is None:
        return
    _kind(settings, "settings", Mapping)
    for name in settings:
        if name in DECIDED or name not in Deployment.model_fields:
            allowed = ", ".join(field for field in Deployment.model_fields if field not in DECIDED)
            raise InputError(
                "no such setting", where="argument", field="settings", value=name, allowed=allowed
            )
    plain = {name: v.model_dump() if hasattr(v, "model_dump") else v for name, v in settings.items()}
    validate(Deployment, EXAMPLE | plain, "argument settings")


def _each(value: Any, name: str, least: int = 0) -> Iterable[Any]:
    """The values of an argument that may be one, several, or (with `least` 0) none."""
    if value is None and least == 0:
        return ()
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) < least:
            raise _wrong(name, value, f"{least} or more")
        return value
    if isinstance(value, Iterable) and not isinstance(value, str | Profile | Workload):
        raise _wrong(name, value, "a list")
    return (value,)


def _kind(value: Any, name: str, *kinds: Any) -> None:
    if not isinstance(value, kinds):
        raise _wrong(name, value, " or ".join(kind.__name__ for kind in kinds))


def _wrong(name: str, value: Any, allowed: str) -> InputError:
    return InputError("not allowed", where="argument", field=name, value=value, allowed=allowed)

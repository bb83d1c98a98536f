"""What is written beside a recommendation, so that another can check it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from has.core.trial import Figures, Trial, TrialState
from has.search.confirm import Choice
from has.search.factors import FACTORS
from has.search.loop import Loop
from has.search.outcome import Baseline
from has.search.space import Candidate, candidate_of
from has.version import __version__

WITHIN_PERCENT = 3.0


def evidence(
    loop: Loop,
    choice: Choice,
    baselines: Mapping[str, Baseline],
    confidence: Mapping[str, float],
    feasible: bool,
    *,
    run: str | None,
    question: Mapping[str, Any],
    digests: Mapping[str, Any],
    executor: str,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Measured and predicted figures, runners-up, baselines, digests, and how to do it again."""
    objective = loop.problem.objective
    trial = loop.finished[choice.candidate]
    predicted = predicted_figures(loop, choice.candidate, trial)
    found: dict[str, Any] = {
        "meets_slo": feasible,
        "objective": {
            "name": objective.name,
            "value": choice.value,
            "unit": objective.unit,
            "rates": list(objective.rates),
            "gpus": choice.candidate.total,
            "posterior": _posterior(loop, choice.candidate),
        },
        **binding(loop, choice.candidate),
        "measured": {"rate": trial.rate, **summary(trial.figures)},
        "predicted": summary(predicted),
        "prediction_error_percent": prediction_error(trial.figures, predicted),
        "run_prediction_error_percent": run_prediction_error(loop),
        "stage_factors": stage_factors(loop, choice.candidate),
        "confidence": dict(confidence),
        "confirmations": [_confirmation(t) for t in choice.confirmations],
        "runners_up": [
            {
                "deployment": r.deployment.label,
                "objective": r.objective,
                "why": r.why,
                **binding(loop, candidate_of(r.deployment)),
            }
            for r in choice.runners_up
        ],
        "baselines": {name: _baseline(b) for name, b in baselines.items()},
        "candidates": {"kept": len(loop.pruned.kept), "cut": loop.pruned.by_rule},
        "trials": len(loop.journal),
        "executor": executor,
        "profile": {"source": loop.problem.profile.metadata.source, "error": loop.problem.error},
        "digests": dict(digests),
        "seed": loop.problem.seed,
        "has_version": __version__,
        "date": datetime.now(UTC).date().isoformat(),
        "reproduce": reproduce(run, question, digests),
        "notes": list(notes),
    }
    if run is not None:
        found = {"run": run, **found}
    return found


def binding(loop: Loop, candidate: Candidate) -> dict[str, Any]:
    """The stage that binds a candidate, and what it carries, by the latencies that trials have calibrated."""
    found = loop.ensemble.central.capacity.of(candidate, loop.problem.kv_tokens(candidate))
    if not math.isfinite(found.limit):
        return {"binding": None, "limit_rps": None}
    return {"binding": found.binding, "limit_rps": found.limit}


def summary(figures: Figures | None) -> dict[str, Any]:
    """The figures that people compare."""
    if figures is None:
        return {}
    keys = (
        "requests",
        "completed",
        "offered_rps",
        "throughput_rps",
        "goodput_rps",
        "attainment",
        "ttft_ms",
        "tpot_ms",
    )
    short: dict[str, Any] = {key: figures.get(key) for key in keys}
    short["utilisation"] = {
        name: stage.get("utilisation")
        for name, stage in (figures.get("stages") or {}).items()
        if stage.get("utilisation") is not None
    }
    return short


def predicted_figures(loop: Loop, candidate: Candidate, trial: Trial) -> Figures | None:
    """What the uncalibrated profile says of the same requests at the same rate."""
    if trial.rate is None:
        return None
    deployment = loop.problem.deployment(candidate)
    requests = loop.problem.of_workload((trial.figures or {}).get("workload"), loop.lists.trial)
    return loop.uncalibrated.figures(deployment, trial.rate, requests)


def prediction_error(measured: Figures | None, predicted: Figures | None) -> dict[str, float]:
    """Predicted over measured, less one, in percent; what there is of goodput, mean TTFT and TPOT."""
    errors: dict[str, float] = {}
    for name, path in (
        ("goodput", ("goodput_rps",)),
        ("ttft_mean", ("ttft_ms", "mean")),
        ("tpot_mean", ("tpot_ms", "mean")),
    ):
        seen, said = _at(measured, path), _at(predicted, path)
        if seen and said is not None:
            errors[name] = 100 * (said / seen - 1)
    return errors


def run_prediction_error(loop: Loop) -> dict[str, float]:
    """Mean absolute error of the uncalibrated prediction over all completed trials, in percent."""
    sums: dict[str, list[float]] = {}
    for candidate, trial in loop.finished.items():
        if trial.state == TrialState.COMPLETE:
            for name, error in prediction_error(
                trial.figures, predicted_figures(loop, candidate, trial)
            ).items():
                sums.setdefault(name, []).append(abs(error))
    return {name: sum(values) / len(values) for name, values in sums.items()}


def stage_factors(loop: Loop, candidate: Candidate) -> dict[str, dict[str, float]]:
    """How much slower each stage turned out than its profile, at the batch sizes where the candidate runs:
    factor, and one standard deviation in percent."""
    rows = loop.ensemble.factors.rows(loop.ensemble.batches(candidate))
    mean, sd = loop.surrogate.factors(rows)
    return {
        name: {"factor": math.exp(m), "sd_percent": 100 * float(s)}
        for name, m, s in zip(FACTORS, mean, sd, strict=True)
    }


def reproduce(
    run: str | None, question: Mapping[str, Any], digests: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """The command that asks the same again. `digests` name the inputs that the run keeps."""

    def kept(name: str) -> str:
        return shlex.quote(f"{run or 'RUN'}/{name}")

    further = [f"--workload {kept(f'{name}.yaml')}" for name in digests if name.startswith("workload-")]
    pools = [name.removeprefix("profile-") for name in digests if name.startswith("profile-")]
    parts = [
        f"has search --gpus {question['gpus']}",
        f"--profile {kept('profile.parquet')}",
        *(f"--pool-profile {pool}={kept(f'profile-{pool}.parquet')}" for pool in pools),
        f"--workload {kept('workload.yaml')}",
        *further,
        f"--space {kept('space.yaml')}",
        *(f"--rate {rate:g}" for rate in question["rates"]),
        f"--objective {question['objective']} --on {question['on']}",
        *(f"--{name} {question[name]}" for name in ("trials", "requests") if question.get(name) is not None),
        f"--sampler {question['sampler']} --seed {question['seed']}",
    ]
    slo = question.get("slo_asked", question["slo"])
    parts += [f"--{k.replace('_', '-')} {v:g}" for k, v in slo.items() if v is not None]
    if not question["prune"]:
        parts.append("--no-prune")
    price = question["price"]
    if isinstance(price, Mapping):
        parts += [f"--price '{gpu}={usd:g}'" for gpu, usd in price.items()]
    elif price is not None:
        parts.append(f"--price {price:g}")
    return " ".join(parts)


def _posterior(loop: Loop, candidate: Candidate) -> dict[str, float]:
    belief = loop.posterior([candidate])
    return {"mean": float(belief.mean[0]), "sd": float(belief.sd[0])}


def _confirmation(trial: Trial) -> dict[str, Any]:
    figures = trial.figures or {}
    return {
        "deployment": candidate_of(trial.deployment).label,
        "rate": trial.rate,
        "seed": trial.seed,
        "attainment": figures.get("attainment"),
        "goodput_rps": figures.get("goodput_rps"),
        "requests": figures.get("requests"),
        **({"reason": trial.reason} if trial.reason else {}),
    }


def _baseline(baseline: Baseline) -> dict[str, Any]:
    figures = baseline.figures or {}
    said = {
        "deployment": None if baseline.deployment is None else baseline.deployment.label,
        "gpus": None if baseline.deployment is None else baseline.deployment.gpus,
        "objective": baseline.objective,
        "objective_source": baseline.objective_source,
        "rate": baseline.rate,
        "attainment": figures.get("attainment"),
        "goodput_rps": figures.get("goodput_rps"),
        "ttft_p99_ms": (figures.get("ttft_ms") or {}).get("p99"),
    }
    if baseline.reason:
        said["reason"] = baseline.reason
    return said


def _at(figures: Figures | None, path: Sequence[str]) -> float | None:
    value: Any = figures
    for key in path:
        value = (value or {}).get(key)
    return None if value is None else float(value)

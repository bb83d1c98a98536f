"""An Optuna study that mirrors the journal, so that `optuna-dashboard optuna.log` opens a run.

It is written from `trials.jsonl` and never read back: a crash cannot leave it ahead of the truth.
Importing this module loads optuna.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from has.core.deployment import POOLS, Deployment
from has.core.trial import Trial, TrialState

optuna.logging.set_verbosity(optuna.logging.WARNING)

STATES = {
    TrialState.COMPLETE: optuna.trial.TrialState.COMPLETE,
    TrialState.STOPPED: optuna.trial.TrialState.PRUNED,
    TrialState.FAILED: optuna.trial.TrialState.FAIL,
}


class StudyMirror:
    """The study of one run; `path` None mirrors nothing."""

    def __init__(self, path: Path | None, *, gpus: int, direction: Literal["maximize", "minimize"]) -> None:
        self._gpus = gpus
        self._study: optuna.Study | None = None
        if path is None:
            return
        path.unlink(missing_ok=True)
        storage = JournalStorage(JournalFileBackend(str(path)))
        self._study = optuna.create_study(storage=storage, study_name=path.parent.name, direction=direction)

    def add(self, trial: Trial) -> None:
        if self._study is not None:
            self._study.add_trial(frozen_trial(trial, self._gpus))


def frozen_trial(trial: Trial, gpus: int) -> optuna.trial.FrozenTrial:
    """A finished trial as Optuna knows one: a stopped one is pruned, a failed one failed with its reason."""
    params, distributions = parameters(trial.deployment, gpus)
    state = STATES[trial.state]
    figures = trial.figures or {}
    attributes: dict[str, Any] = {
        "deployment": trial.deployment.label,
        "kind": trial.kind,
        "rate": trial.rate,
        "reason": trial.reason,
        "attainment": figures.get("attainment"),
        "goodput_rps": figures.get("goodput_rps"),
        "ttft_p99_ms": (figures.get("ttft_ms") or {}).get("p99"),
        "duration_s": trial.duration_s,
    }
    if state == optuna.trial.TrialState.COMPLETE and trial.objective is None:
        state = optuna.trial.TrialState.FAIL
    return optuna.trial.create_trial(
        state=state,
        value=trial.objective if state == optuna.trial.TrialState.COMPLETE else None,
        params=params,
        distributions=distributions,
        user_attrs={k: v for k, v in attributes.items() if v is not None},
    )


def parameters(deployment: Deployment, gpus: int) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
    """The decided fields of a deployment as Optuna parameters, one range each for the whole run."""
    pools = POOLS[deployment.topology]
    params: dict[str, Any] = {"topology": deployment.topology}
    distributions: dict[str, BaseDistribution] = {"topology": CategoricalDistribution(tuple(POOLS))}
    for pool in pools:
        params[pool] = deployment.alloc[pool]
        distributions[pool] = IntDistribution(0, max(gpus, deployment.gpus))
        params[f"tensor_parallel.{pool}"] = deployment.tp(pool)
        distributions[f"tensor_parallel.{pool}"] = IntDistribution(1, max(gpus, deployment.gpus))
    if deployment.encode_batch is not None:
        params["encode_batch"] = deployment.encode_batch
        distributions["encode_batch"] = IntDistribution(1, max(1024, deployment.encode_batch))
    if deployment.prefill_offload is not None:
        params["prefill_offload"] = deployment.prefill_offload
        distributions["prefill_offload"] = FloatDistribution(0.0, 1.0)
    return params, distributions

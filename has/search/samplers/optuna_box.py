"""Optuna's TPE (the choice of the paper that HAS follows) and its Gaussian process, in a box."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from has.errors import MissingError
from has.search.samplers.box import Box
from has.search.samplers.port import Proposal, View

optuna.logging.set_verbosity(optuna.logging.WARNING)


class OptunaBox:
    """Rebuilds the study from what was tried at every proposal, so it needs no state of its own."""

    exhaustive = False

    def __init__(self, name: str) -> None:
        self.name = name
        if name == "optuna-gp" and importlib.util.find_spec("torch") is None:
            raise MissingError(
                "the sampler optuna-gp needs torch, which is not installed", mend="pip install torch"
            )

    def propose(self, view: View) -> Proposal | None:
        if not view.untried:
            return None
        box = Box(view.candidates)
        if not box.axes:
            return Proposal(view.untried[0])
        distributions = {name: _distribution(name, box.choices[name]) for name in box.axes}
        with warnings.catch_warnings():
            # multivariate TPE and GPSampler are marked experimental; which one runs is the user's choice
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study = optuna.create_study(direction="maximize", sampler=self._sampler(view))
            for entry in view.tried:
                params = box.values(entry.candidate)
                if entry.utility is None or not all(_within(params[n], box.choices[n]) for n in params):
                    continue  # failed, or a baseline that stands outside the box
                study.add_trial(
                    optuna.trial.create_trial(params=params, distributions=distributions, value=entry.utility)
                )
            asked = study.ask(distributions).params
        return Proposal(box.nearest(asked, view.untried))

    def _sampler(self, view: View) -> optuna.samplers.BaseSampler:
        seed = int(view.rng.integers(2**31))
        if self.name == "optuna-gp":
            return optuna.samplers.GPSampler(seed=seed)
        return optuna.samplers.TPESampler(seed=seed, multivariate=True)


def _distribution(name: str, values: list[Any]) -> Any:
    if name == "topology":
        return CategoricalDistribution(tuple(values))
    if name == "prefill_offload":
        return FloatDistribution(values[0], values[-1])
    return IntDistribution(values[0], values[-1])


def _within(value: Any, values: list[Any]) -> bool:
    return value in values if isinstance(value, str) else bool(values[0] <= value <= values[-1])

"""Who proposes the next trial, by name. Each is a function of the seed and of what was measured."""

from __future__ import annotations

from has.errors import InputError
from has.search.samplers.port import Proposal, Sampler, Tried, View

NAMES = ("auto", "optuna-tpe", "optuna-gp", "skopt-gp", "random", "grid")

__all__ = ["NAMES", "Proposal", "Sampler", "Tried", "View", "create"]


def create(name: str) -> Sampler:
    """The sampler of that name. InputError for another name, MissingError where its package is absent."""
    match name:
        case "auto":
            from has.search.samplers.auto import Auto

            return Auto()
        case "random" | "grid":
            from has.search.samplers.plain import Grid, Random

            return Random() if name == "random" else Grid()
        case "optuna-tpe" | "optuna-gp":
            from has.search.samplers.optuna_box import OptunaBox

            return OptunaBox(name)
        case "skopt-gp":
            from has.search.samplers.skopt_box import SkoptBox

            return SkoptBox()
    raise InputError(
        "no such sampler", where="argument", field="sampler", value=name, allowed=", ".join(NAMES)
    )

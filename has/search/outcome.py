"""What a search comes back with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from has.core.deployment import Deployment
from has.core.trial import Figures, Trial
from has.search.prune import Cut


@dataclass(frozen=True, slots=True)
class Baseline:
    """A way of not using HAS, scored on equal GPUs by the same executor.

    objective         None where memory or the space admits no such deployment
    objective_source  "measured", or "predicted": the calibrated simulator's, where its trial failed or
                      ended early
    reason            why there is no objective, or none measured
    rate              requests per second at which `figures` were seen; a largest rate that is held to
                      longer traffic lies below it
    """

    deployment: Deployment | None
    figures: Figures | None
    objective: float | None
    reason: str | None = None
    objective_source: Literal["measured", "predicted"] = "measured"
    rate: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "deployment": None
            if self.deployment is None
            else self.deployment.model_dump(mode="json", exclude_none=True),
            "figures": self.figures,
            "objective": self.objective,
            "objective_source": self.objective_source,
            "rate": self.rate,
            **({"reason": self.reason} if self.reason else {}),
        }


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """A finalist that was not chosen, and why."""

    deployment: Deployment
    objective: float
    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The recommended deployment with its evidence.

    best         with `evidence`, SM table, waiting budget and rate; ready to deploy
    figures      of its trial
    objective    posterior mean of its objective, in `unit` (GPUs or $/h for cost)
    feasible     whether it meets the SLO; else it is the least bad
    trials       in order; `confirmations` are the finalists' runs under other arrivals and loads
    confidence   {"within_percent": x, "probability": p}: that it is within x % of the best there is
    """

    best: Deployment
    figures: Figures
    objective: float
    unit: str
    feasible: bool
    trials: tuple[Trial, ...]
    confirmations: tuple[Trial, ...]
    pruned: tuple[Cut, ...]
    baselines: Mapping[str, Baseline]
    confidence: Mapping[str, float]
    simulations: int
    candidates: Mapping[str, int]
    run: Path | None
    runners_up: tuple[RunnerUp, ...] = ()
    notes: tuple[str, ...] = field(default=())
    pareto: tuple[Mapping[str, Any], ...] = ()
    """Rows of `pareto.csv`: what more or fewer GPUs carry, and what they cost."""

    def as_json(self) -> dict[str, Any]:
        """As `has search --json` prints it."""
        return {
            "best": self.best.model_dump(mode="json", exclude_none=True),
            "figures": dict(self.figures),
            "objective": self.objective,
            "unit": self.unit,
            "feasible": self.feasible,
            "trials": len(self.trials),
            "simulations": self.simulations,
            "candidates": dict(self.candidates),
            "baselines": {name: baseline.as_json() for name, baseline in self.baselines.items()},
            "confidence": dict(self.confidence),
            "cost": (self.best.evidence or {}).get("cost"),
            "pareto": [dict(row) for row in self.pareto],
            "run": None if self.run is None else str(self.run),
        }

"""What more or fewer GPUs would carry: the front of requests/s against GPUs and against dollars.

Trials say what deployments on the whole budget carry. For smaller budgets the calibrated simulator
looks at the candidates that capacity bounds like best, and says the best of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from has.core.deployment import Deployment
from has.core.space import SearchSpace
from has.core.trial import Figures, TrialState
from has.errors import InfeasibleError, InputError
from has.search.loop import Loop
from has.search.objective import Score
from has.search.outcome import Baseline
from has.search.price import Given, cost_of
from has.search.prune import only_possible
from has.search.screen import ranked, screen
from has.search.space import Allocation, Candidate, enumerate_some
from has.search.sustain import sustained

LOOKED_AT = {"disaggregated": 4, "e_pd": 2, "monolithic": 1}
"""Allocations simulated of each smaller budget."""
AS_MUCH = 0.005
"""A dearer point must carry more than this share more to be on the front."""
MOST_BUDGETS = 16
"""Smaller budgets looked at; of more, so many evenly spread."""
MOST_CANDIDATES = 30_000
"""A budget with more is left out: looking at each would take longer than the search."""


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """`carried_rps`: the largest rate, or the requests a second within the SLO at the highest rate given."""

    deployment: Deployment
    carried_rps: float
    attainment: float | None
    ttft_p99_ms: float | None
    source: str
    """measured (by a trial, which may be a simulated one), or predicted."""
    cost: Mapping[str, Any]
    on_front: bool = False

    def row(self) -> dict[str, Any]:
        """As `pareto.csv` and the outcome's JSON hold it."""
        return {
            "gpus": self.deployment.gpus,
            "usd_per_hour": self.cost["usd_per_hour"],
            "carried_rps": self.carried_rps,
            "usd_per_million_output_tokens": self.cost["usd_per_million_output_tokens"],
            "deployment": self.deployment.label,
            "topology": self.deployment.topology,
            "attainment": self.attainment,
            "ttft_p99_ms": self.ttft_p99_ms,
            "source": self.source,
            "on_front": self.on_front,
        }


COLUMNS = (
    "gpus",
    "usd_per_hour",
    "carried_rps",
    "usd_per_million_output_tokens",
    "deployment",
    "topology",
    "attainment",
    "ttft_p99_ms",
    "source",
    "on_front",
)


def pareto(
    loop: Loop,
    space: SearchSpace,
    held: Mapping[Candidate, float],
    baselines: Iterable[Baseline],
    price: Given,
) -> list[ParetoPoint]:
    """Measured deployments and the best of smaller budgets, by GPUs; `on_front` where nothing that is
    no dearer, in GPUs or in dollars, carries more. `held`: contenders and the objective that lasts."""
    problem, objective = loop.problem, loop.problem.objective
    max_rate = objective.name == "max-rate"
    seen: dict[str, ParetoPoint] = {}

    def add(
        deployment: Deployment, carried: float, attainment: float | None, p99: float | None, source: str
    ) -> None:
        if deployment.digest() not in seen:
            met = objective.within_slo(carried)
            cost = cost_of(deployment, problem.latency, price, met, problem.output_tokens)
            seen[deployment.digest()] = ParetoPoint(deployment, carried, attainment, p99, source, cost)

    def add_measured(deployment: Deployment, figures: Figures, largest_rate: float) -> None:
        carried = largest_rate if max_rate else objective.carried(float(figures.get("attainment") or 0.0))
        p99 = (figures.get("ttft_ms") or {}).get("p99")
        add(deployment, carried, figures.get("attainment"), p99, "measured")

    for candidate, trial in loop.finished.items():
        told = trial.figures is not None and trial.state == TrialState.COMPLETE
        if told and (not max_rate or candidate in held):
            add_measured(loop.problem.deployment(candidate), trial.figures or {}, held.get(candidate, 0.0))
    for baseline in baselines:
        if baseline.deployment is None or baseline.objective is None:
            continue
        if baseline.objective_source == "predicted":  # its trial was cut short, and so are that one's figures
            if objective.unit == "req/s":
                add(baseline.deployment, baseline.objective, None, None, "predicted")
        elif baseline.figures is not None:
            add_measured(baseline.deployment, baseline.figures, baseline.objective)
    smaller = [(loop.problem.deployment(c), score) for c, score in _smaller(loop, space)]
    if max_rate:
        lasts = sustained(loop, [(deployment, score.value) for deployment, score in smaller])
    else:
        lasts = [objective.carried(score.point.attainment) for _, score in smaller]
    for (deployment, score), carried in zip(smaller, lasts, strict=True):
        p99 = score.point.ttft_p99_ms
        add(deployment, carried, score.point.attainment, p99 if np.isfinite(p99) else None, "predicted")
    return _marked(sorted(seen.values(), key=lambda p: (p.deployment.gpus, -p.carried_rps)))


def _smaller(loop: Loop, space: SearchSpace) -> Iterable[tuple[Candidate, Score]]:
    """The best candidate of each smaller budget, and its score."""
    objective, central = loop.problem.objective, loop.ensemble.central
    budgets = np.unique(np.linspace(1, loop.problem.gpus - 1, MOST_BUDGETS).round().astype(int)).tolist()
    for gpus in budgets if loop.problem.gpus > 1 else ():
        listed = enumerate_some(space, gpus, MOST_CANDIDATES + 1)
        if not listed or len(listed) > MOST_CANDIDATES:
            continue
        try:
            possible = only_possible(loop.problem, listed).kept
            likely = _likely(possible, central.limit)
            scores = screen(central, likely, loop.lists.long, lambda _: None)
            best = ranked(objective, scores)[0]
            yield best, scores[best]
        except (InfeasibleError, InputError):
            continue  # memory, or the profile, admits nothing of this size


def _likely(possible: Sequence[Candidate], limit: Callable[[Candidate], float]) -> list[Candidate]:
    """Of each topology the allocations that bounds like best, each at its best B and s."""
    best: dict[Allocation, tuple[float, Candidate]] = {}
    for c in possible:
        r = limit(c)
        if c.allocation not in best or r > best[c.allocation][0]:
            best[c.allocation] = (r, c)
    ordered = sorted(best.values(), key=lambda pair: pair[0], reverse=True)
    return [
        c for name, count in LOOKED_AT.items() for c in [c for _, c in ordered if c.topology == name][:count]
    ]


def _marked(points: Sequence[ParetoPoint]) -> list[ParetoPoint]:
    def beaten(p: ParetoPoint, measure: str) -> bool:
        """By what is cheaper and carries as much, within what simulation tells apart, or costs the same and more."""
        mine = p.cost[measure]
        return mine is None or any(
            (theirs < mine * (1 - 1e-9) and q.carried_rps >= p.carried_rps * (1 - AS_MUCH))
            or (theirs <= mine * (1 + 1e-9) and q.carried_rps > p.carried_rps)
            for q in points
            if (theirs := q.cost[measure]) is not None
        )

    return [
        ParetoPoint(
            p.deployment,
            p.carried_rps,
            p.attainment,
            p.ttft_p99_ms,
            p.source,
            p.cost,
            on_front=p.carried_rps > 0 and not (beaten(p, "gpus") and beaten(p, "usd_per_hour")),
        )
        for p in points
    ]

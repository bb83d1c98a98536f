"""What more or fewer GPUs would carry: the front of requests/s against GPUs and against dollars.

Trials say what deployments on the whole budget carry. For smaller budgets the calibrated simulator
looks at the candidates that capacity bounds like best, and says the best of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from has.core.deployment import Deployment
from has.core.space import SearchSpace
from has.core.trial import Trial, TrialState
from has.errors import InfeasibleError, InputError
from has.search.loop import Loop
from has.search.objective import Score
from has.search.price import Given, cost_of
from has.search.prune import only_possible
from has.search.screen import ranked, screen
from has.search.space import Candidate, enumerate_space
from has.search.sustain import sustained

MEASURED = 8
"""Trials of each size that are listed: the best."""
LOOKED_AT = 6
"""Candidates simulated of each smaller budget."""
AS_MUCH = 0.005
"""A dearer point must carry more than this share more to be on the front."""
MOST_BUDGETS = 16
"""Smaller budgets looked at; of more, so many evenly spread."""
MOST_CANDIDATES = 30_000
"""A budget with more is left out: looking at each would take longer than the search."""


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """`carried_rps`: the largest rate, or the goodput at the rate in force."""

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
    loop: Loop, space: SearchSpace, baselines: Iterable[tuple[Deployment, Trial]], price: Given
) -> list[ParetoPoint]:
    """Measured deployments and the best of smaller budgets, by GPUs; `on_front` where nothing that is
    no dearer, in GPUs or in dollars, carries more."""
    seen: dict[str, ParetoPoint] = {}

    def add(deployment: Deployment, carried: float, figures: tuple[float | None, float | None, str]) -> None:
        if deployment.digest() not in seen:
            held = sustained(loop, deployment, carried)
            cost = cost_of(deployment, loop.problem.latency, price, held, loop.problem.demand.output_tokens)
            seen[deployment.digest()] = ParetoPoint(deployment, held, *figures, cost)

    measured = [*((loop.problem.deployment(c), t) for c, t in loop.finished.items()), *baselines]
    for deployment, trial in _best_of_each_size(loop, measured):
        figures = trial.figures or {}
        add(
            deployment,
            _carried(loop, trial),
            (figures.get("attainment"), (figures.get("ttft_ms") or {}).get("p99"), "measured"),
        )
    max_rate = loop.problem.objective.name == "max-rate"
    for candidate, score in _smaller(loop, space):
        p99 = score.point.ttft_p99_ms
        add(
            loop.problem.deployment(candidate),
            score.value if max_rate else score.point.goodput_rps,
            (score.point.attainment, p99 if np.isfinite(p99) else None, "predicted"),
        )
    return _marked(sorted(seen.values(), key=lambda p: (p.deployment.gpus, -p.carried_rps)))


def _best_of_each_size(
    loop: Loop, measured: Iterable[tuple[Deployment, Trial]]
) -> list[tuple[Deployment, Trial]]:
    complete = [(d, t) for d, t in measured if t.state == TrialState.COMPLETE and t.figures is not None]
    complete.sort(key=lambda pair: -_carried(loop, pair[1]))
    sizes = {d.gpus for d, _ in complete}
    return [pair for g in sorted(sizes) for pair in [p for p in complete if p[0].gpus == g][:MEASURED]]


def _carried(loop: Loop, trial: Trial) -> float:
    if loop.problem.objective.name == "max-rate":
        return trial.objective or 0.0
    return float((trial.figures or {}).get("goodput_rps") or 0.0)


def _smaller(loop: Loop, space: SearchSpace) -> Iterable[tuple[Candidate, Score]]:
    """The best candidate of each smaller budget, and its score."""
    objective, central = loop.problem.objective, loop.ensemble.central
    budgets = np.unique(np.linspace(1, loop.problem.gpus - 1, MOST_BUDGETS).round().astype(int)).tolist()
    for gpus in budgets if loop.problem.gpus > 1 else ():
        listed = enumerate_space(space, gpus)
        if not listed or len(listed) > MOST_CANDIDATES:
            continue
        try:
            possible = only_possible(loop.problem, listed).kept
            likely = sorted(possible, key=central.limit, reverse=True)[:LOOKED_AT]
            best = ranked(objective, screen(central, likely, loop.lists.coarse, lambda _: None))[0]
            yield best, central.score(best, loop.lists.long)
        except (InfeasibleError, InputError):
            continue  # memory, or the profile, admits nothing of this size


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

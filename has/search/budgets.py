"""Which candidates a search looks at: all of a space, or of a large one what is worth simulating.

The objective cost asks for the least that meets the SLO, on any number of GPUs up to the budget. More
GPUs never carry less, so where listing every number is too much, the least number that does is found by
bisection: between what capacity bounds say it takes and the first that meets the SLO in simulation,
each looked at from coarse to fine. Where pools have different prices a larger number may be cheaper: those
that could be are looked at too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from has.core.requests import Requests
from has.core.space import SearchSpace
from has.search.coarse import DIVISIONS, Progress, coarse_to_fine, is_large, possible
from has.search.lattice import lattice
from has.search.predict import Predictor
from has.search.screen import Scores, held, screen
from has.search.space import Candidate, enumerate_budgets, enumerate_some

SURE = 0.8
"""Share of the rate that capacity bounds on a coarse lattice must allow: it misses the ridge between its points."""
MORE = 1.15
"""Each number of GPUs tried is so many times the last, until one meets the SLO."""
CHEAPER = 6
"""Larger numbers of GPUs looked at where prices differ."""
FEW = 1000
"""Candidates on one number of GPUs up to which all are simulated."""


def look(
    space: SearchSpace,
    budgets: Sequence[int],
    predictor: Predictor,
    requests: Requests,
    lasting: Requests,
    progress: Progress,
) -> tuple[list[Candidate], Scores]:
    """Candidates on any of these numbers of GPUs, and the scores on `requests` of those that were simulated
    to choose them: none, where a space is listed whole.

    `lasting`: more of the same, on which a number of GPUs has to meet the SLO (`screen.held`). `budgets` ascend; several are for the objective cost. `progress` is told how many were simulated.
    """
    if not is_large(space, budgets, len(requests)):
        return enumerate_budgets(space, budgets), {}
    if len(budgets) == 1:
        scores = coarse_to_fine(space, budgets[0], predictor, requests, progress)
    else:
        scores = _Least(space, budgets, predictor, requests, lasting, progress).found()
    # Where nothing was worth simulating, memory says why of any candidates.
    return list(scores) or enumerate_some(space, budgets[-1], FEW), scores


class _Least:
    """The least number of GPUs that meets the SLO, and everything that was simulated to find it."""

    def __init__(
        self,
        space: SearchSpace,
        budgets: Sequence[int],
        predictor: Predictor,
        requests: Requests,
        lasting: Requests,
        progress: Progress,
    ) -> None:
        self._space = space
        self._budgets = budgets
        self._predictor = predictor
        self._requests = requests
        self._lasting = lasting
        self._progress = progress
        self._scores: dict[int, Scores] = {}

    def found(self) -> Scores:
        objective, most = self._predictor.problem.objective, self._budgets[-1]
        low, gpus = self._between()
        while gpus < most and not self._meets(gpus):
            low, gpus = gpus, min(most, math.ceil(gpus * MORE))
        if self._meets(gpus):
            high = gpus
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if self._meets(middle) else (middle, high)
            prices = objective.prices.values()
            if len(set(prices)) > 1:
                self._look_at_cheap_ones(high, min(prices))
        return {c: score for scores in self._scores.values() for c, score in scores.items()}

    def _between(self) -> tuple[int, int]:
        """A number that is too few, and one to begin with: the least that capacity bounds allow."""
        low, high = self._budgets[0] - 1, self._budgets[-1]
        rate = SURE * max(self._predictor.problem.objective.rates)
        while high - low > 1:
            middle = (low + high) // 2
            points = lattice(self._space, middle, max(1, middle // DIVISIONS))
            allowed = any(self._predictor.limit(c) >= rate for c in points)
            low, high = (low, middle) if allowed else (middle, high)
        return low, high

    def _meets(self, gpus: int) -> bool:
        if gpus not in self._scores:
            told = sum(map(len, self._scores.values()))
            looked = self._look(gpus, lambda n: self._progress(told + n))
            self._scores[gpus] = held(self._predictor, looked, self._lasting, 1)
        return any(score.feasible for score in self._scores[gpus].values())

    def _look(self, gpus: int, progress: Progress) -> Scores:
        points = enumerate_some(self._space, gpus, FEW + 1)
        if len(points) > FEW:
            return coarse_to_fine(self._space, gpus, self._predictor, self._requests, progress)
        return screen(self._predictor, possible(self._predictor.problem, points), self._requests, progress)

    def _look_at_cheap_ones(self, least: int, price: float) -> None:
        """Numbers of GPUs above `least` that would be cheaper were all of the cheapest kind."""
        objective = self._predictor.problem.objective
        costs = [objective.cost(c) for c, score in self._scores[least].items() if score.feasible]
        most = min(self._budgets[-1], math.ceil(min(costs) / price) - 1)
        for gpus in np.unique(np.linspace(least, max(least, most), 1 + CHEAPER).astype(int)).tolist():
            self._meets(gpus)

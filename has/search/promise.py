"""What a candidate carries for sure: the simulator's answer were every latency as long as it may be.

A capacity bound says what no candidate exceeds. It does not say what one reaches: queues take from
TTFT what services leave of it, and where they leave little, the candidate with the largest bound may
carry next to nothing. A reference that others are held to must be reached, so it is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from has.core.requests import Requests
from has.search.capacity import CapacityModel
from has.search.factors import FACTORS
from has.search.objective import largest_rate
from has.search.predict import ROUGH, Predictor, scaled
from has.search.problem import Problem
from has.search.space import Candidate

ENOUGH = 1.5
"""Times the offered rate: who carries as much need not be asked for more."""


class Promises:
    """Largest rates that hold with all stages slower by `error`, given on the profile's own time scale:
    what is promised at 1+`error` of the latencies is multiplied by it, as capacities of the profile are.

    `bounds`: capacities whose batches meet the SLO at such latencies; no promise is above them.
    """

    def __init__(
        self, problem: Problem, requests: Requests, bounds: CapacityModel, error: float, offered: float
    ) -> None:
        self._problem = problem
        self._requests = requests
        self._bounds = bounds
        self._pace = 1 + error
        self._enough = ENOUGH * offered
        slower = np.full(len(FACTORS), math.log(self._pace))
        slower[FACTORS.index("beside")] = 0.0
        self._slow = Predictor(problem, scaled(problem.latency, slower))
        self._known: dict[Candidate, float] = {}
        self._bounded: dict[Candidate, float] = {}

    def bound(self, c: Candidate) -> float:
        """What is certainly not exceeded, however little it costs to say."""
        if c not in self._bounded:
            limit = self._bounds.of(c, self._problem.kv_tokens(c)).limit
            self._bounded[c] = min(limit, self._enough)
        return self._bounded[c]

    def of(self, c: Candidate) -> float:
        """Requests a second."""
        if c not in self._known:
            bound = self.bound(c)
            limit = min(self._slow.limit(c), self._enough)
            self._known[c] = min(bound, self._pace * self._carried(c, limit)) if bound > 0 else 0.0
        return self._known[c]

    def best(self, candidates: Iterable[Candidate], most: int = 3) -> float:
        """Of those `most` of these whose bounds are largest."""
        likely = sorted(candidates, key=self.bound, reverse=True)[:most]
        return max((self.of(c) for c in likely), default=0.0)

    def meets(self, c: Candidate, rates: Iterable[float]) -> bool:
        """Whether the SLO is met at all of these rates."""
        deployment, target = self._problem.deployment(c), self._problem.slo.attainment
        return all(self._slow.point(deployment, r, self._requests).attainment >= target for r in rates)

    def _carried(self, c: Candidate, limit: float) -> float:
        if limit <= 0 or not math.isfinite(limit):
            return limit
        deployment = self._problem.deployment(c)
        found = largest_rate(
            lambda rate: self._slow.point(deployment, rate, self._requests),
            limit,
            self._problem.slo.attainment,
            **ROUGH,
        )
        return found.value

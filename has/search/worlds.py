"""Which candidates would be best if the profile were wrong, in the ways it may be.

A stage's latencies are wrong for every candidate alike. So the best that one candidate may do is not
to be held against the worst that another may: they are compared within one world, in which each stage
of each profile has one true factor. Worlds fill the box of log factors evenly, the profile itself
first. In each of them the simulator says which candidates are near the best.

    symbol   meaning                                                              shape
    w        worlds
    c        candidates
    near     c is within `NEAR` of the best in w                                  bool[W, C]
    reached  the largest share of a world's best that c is known to reach         [C]

Of a largest rate few candidates need be run in a world: not those whose capacities there are below
what others carry. Who is run is run at one rate, that which it must carry.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from has.core.requests import Floats, Ints, Requests
from has.latency.lookup import LatencyModel
from has.search.factors import FACTORS
from has.search.predict import Predictor, scaled
from has.search.problem import Problem
from has.search.space import Candidate

Bools = NDArray[np.bool_]

STAGES = [FACTORS.index(name) for name in ("encode", "prefill", "decode")]
CLOSE, NEAR, IN_SIGHT = 0.01, 0.03, 0.15
"""Shares behind a world's best: as good, nearly as good, and worth keeping where there is room."""
OVER = 1.1
"""A short list lets a queue grow for as long as TTFT allows: it carries this much more than capacities."""

ANY = (0.6, 0.25, 0.08)
"""Shares of its capacity at one of which a candidate must meet the SLO, or else it is taken to do so nowhere."""
FINE = {"grid": 0.08, "refined": CLOSE / 2}
FIRST = 3
"""Of those close to a world's best so many stay at the least."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How candidates stand, over all worlds in which anything meets the SLO."""

    close: Bools
    near: Bools
    reached: Floats

    @property
    def often(self) -> Floats:
        """Share of the worlds in which each is near the best, [C]."""
        return self.near.mean(axis=0) if len(self.near) else np.zeros(len(self.reached))

    def worth_keeping(self, room: int) -> Bools:
        """Of every world's best `FIRST`, those that are near the best most often; then, where there is
        `room` for more than those, whoever is, down to what is `IN_SIGHT` behind. [C]"""
        order = np.lexsort((-self.reached, -self.often))
        chosen = np.zeros(len(order), np.bool_)
        for close in self.close[:, order]:
            members = order[close]
            missing = FIRST - int(chosen[members].sum())
            chosen[members[~chosen[members]][: max(0, missing)]] = True
        more = order[~chosen[order] & (self.reached[order] >= 1 - IN_SIGHT)]
        chosen[more[: max(0, room - int(chosen.sum()))]] = True
        return chosen


def factors(error: float, dimensions: int, worlds: int) -> Floats:
    """Log factors of the worlds, [W, D]: 1-`error` to its inverse, spread evenly by an additive recurrence
    (the D-dimensional golden ratio: the root of g^(D+1) = g + 1), the first all 0."""
    golden = 1.5
    for _ in range(60):
        golden = (1 + golden) ** (1 / (dimensions + 1))
    step = golden ** -np.arange(1.0, dimensions + 1)
    place = (0.5 + np.arange(worlds)[:, None] * step) % 1.0
    spread: Floats = (2 * place - 1) * -math.log(1 - error)
    return spread


def latencies(problem: Problem, error: float, worlds: int) -> Iterator[LatencyModel]:
    """The profile's latencies in each world. Profiles of different pools are wrong each in its own way."""
    profiles = list({id(p): p for p in (problem.profile, *problem.pool_profiles.values())})
    whose = {pool: profiles.index(id(p)) for pool, p in problem.pool_profiles.items()}
    for row in factors(error, len(STAGES) * len(profiles), worlds).reshape(worlds, len(profiles), -1):
        logs = np.zeros((len(profiles), len(FACTORS)))
        logs[:, STAGES] = row
        if not problem.latency.pools:
            yield scaled(problem.latency, logs[0])
        else:
            pools = problem.latency.pools.items()
            own = {pool: scaled(model, logs[whose.get(pool, 0)]) for pool, model in pools}
            yield LatencyModel.of_pools(own)


def standing(
    problem: Problem, candidates: Sequence[Candidate], requests: Requests, error: float, worlds: int
) -> Standing:
    """Run the candidates in all worlds."""
    looked = _Rates(problem, candidates, requests)
    judge = looked.judge if problem.objective.name == "max-rate" else looked.judge_at_rates
    rows = [found for latency in latencies(problem, error, worlds) if (found := judge(latency)) is not None]
    empty = np.zeros((0, len(candidates)), np.bool_)
    close, near = (np.array([row[i] for row in rows]) if rows else empty for i in range(2))
    return Standing(close, near, looked.reached)


class _Rates:
    """Judges one world after the other, and remembers what makes the next one quicker."""

    def __init__(self, problem: Problem, candidates: Sequence[Candidate], requests: Requests) -> None:
        self._problem = problem
        self._candidates = candidates
        self._requests = requests
        self.reached = np.zeros(len(candidates))
        self._used = np.ones(len(candidates))
        """Share of its capacity that each was last seen to carry at the most: who is asked first."""

    def judge_at_rates(self, latency: LatencyModel) -> tuple[Bools, Bools] | None:
        """At the rates in force: who is close to the best, who is near, by the objective's own value."""
        predictor, objective = Predictor(self._problem, latency), self._problem.objective
        scores = [predictor.score(c, self._requests) for c in self._candidates]
        values = np.array([score.value for score in scores])
        if objective.name == "cost" and any(score.feasible for score in scores):
            costs = np.array([objective.cost(c) for c in self._candidates])
            meets = np.array([score.feasible for score in scores])
            values = np.where(meets, 1 / costs, 0.0)
        return self._share_of(values)

    def _share_of(self, values: Floats) -> tuple[Bools, Bools] | None:
        best = values.max(initial=0.0)
        if best <= 0:
            return None
        share = values / best
        self.reached = np.maximum(self.reached, share)
        return share >= 1 - CLOSE, share >= 1 - NEAR

    def judge(self, latency: LatencyModel) -> tuple[Bools, Bools] | None:
        """By the largest rate: who carries nearly as much as the best."""
        predictor = Predictor(self._problem, latency)
        limits = np.array([predictor.limit(c) for c in self._candidates])
        carries = np.zeros(len(limits))
        best = 0.0
        for i in np.argsort(-limits * self._used, kind="stable").tolist():
            more = best * (1 + CLOSE / 2)
            if limits[i] <= 0 or limits[i] * OVER < more:
                continue
            rates = [more] if best > 0 else [share * limits[i] for share in ANY]
            if not any(self._meets(predictor, i, rate) for rate in rates):
                self._used[i] = rates[-1] / limits[i]
                continue
            found = predictor.score(self._candidates[i], self._requests, lower=best, **FINE)
            best = carries[i] = max(more, found.value)
            self._used[i] = best / limits[i]
        if best <= 0:
            return None
        close = self._all_that_carry(predictor, best * (1 - CLOSE), limits, carries)
        near = close | self._all_that_carry(predictor, best * (1 - NEAR), limits, carries, close)
        self.reached[near] = 1.0
        unseen = (self.reached < 1 - IN_SIGHT) & ~near
        sight = self._all_that_carry(predictor, best * (1 - IN_SIGHT), limits, carries, ~unseen)
        self.reached[sight & unseen] = 1 - IN_SIGHT
        return close, near

    def _all_that_carry(
        self, predictor: Predictor, rate: float, limits: Floats, carries: Floats, known: Bools | None = None
    ) -> Bools:
        """Who meets the target at `rate`; nothing is asked of whom `known` says enough."""
        result = carries >= rate
        asked = (limits * OVER >= rate) & ~result
        if known is not None:
            asked &= ~known
        which: Ints = np.flatnonzero(asked)
        for i in which.tolist():
            result[i] = self._meets(predictor, i, rate)
        return result

    def _meets(self, predictor: Predictor, i: int, rate: float) -> bool:
        deployment = self._problem.deployment(self._candidates[i])
        point = predictor.point(deployment, rate, self._requests)
        return point.attainment >= self._problem.slo.attainment

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

Few candidates need be run in a world: not those whose capacities there are below what others carry.
Of a largest rate, who is run is run at one rate, that which it must carry. How many that are shows
only on the way, so the work is bounded as it is done: world after world, while there is some left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from has.core.requests import Floats, Requests
from has.latency.lookup import LatencyModel
from has.search.factors import FACTORS
from has.search.objective import Score
from has.search.predict import Predictor, scaled
from has.search.problem import Problem
from has.search.space import Candidate

Bools = NDArray[np.bool_]

STAGES = [FACTORS.index(name) for name in ("encode", "prefill", "decode")]
CLOSE, NEAR, IN_SIGHT = 0.01, 0.03, 0.15
"""Shares behind a world's best: as good, nearly as good, and worth keeping where there is room."""
IN_SIGHT_AT_RATES = 0.3
"""The last of them at a given rate: at overload, little in a stage's latency decides how many requests are in time."""
OVER = 1.1
"""A short list lets a queue grow for as long as TTFT allows: it carries this much more than capacities."""

ANY = (0.6, 0.25, 0.08)
"""Shares of its capacity at one of which a candidate must meet the SLO, or else it is taken to do so nowhere."""
FINE = {"grid": 0.08, "refined": CLOSE / 2}
FEWEST, MOST = 8, 40
"""Worlds that must be looked at for the answer to count, where the error is small; and those that are at the most."""
DENSITY = 64
"""Worlds to an error of 1, if that is more: at an error of .25 optima were lost with 6, 8 and 10 worlds that 16 keep."""
SHORT = 300
"""A run of fewer requests takes as long as one of these: most of it is not the requests."""
FIRST = 3
"""Of those close to a world's best so many stay at the least."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How candidates stand, over all worlds in which anything meets the SLO; `worlds` were looked at."""

    close: Bools
    near: Bools
    reached: Floats
    worlds: int
    sight: float

    @property
    def often(self) -> Floats:
        """Share of the worlds in which each is near the best, [C]."""
        return self.near.mean(axis=0) if len(self.near) else np.zeros(len(self.reached))

    def worth_keeping(self, room: int) -> Bools:
        """Of every world's best `FIRST`, those that are near the best most often; then, where there is
        `room` for more than those, whoever is, down to what is `sight` behind. [C]"""
        order = np.lexsort((-self.reached, -self.often))
        chosen = np.zeros(len(order), np.bool_)
        for close in self.close[:, order]:
            members = order[close]
            missing = FIRST - int(chosen[members].sum())
            chosen[members[~chosen[members]][: max(0, missing)]] = True
        more = order[~chosen[order] & (self.reached[order] >= 1 - self.sight)]
        chosen[more[: max(0, room - int(chosen.sum()))]] = True
        return chosen


def fewest(error: float) -> int:
    """How many worlds must be looked at for the answer to count."""
    return max(FEWEST, round(DENSITY * error))


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
    problem: Problem, candidates: Sequence[Candidate], requests: Requests, error: float, room: int, work: int
) -> Standing:
    """Run the candidates in one world after the other until `work` requests were simulated; of equals no more
    than there is `room` for."""
    looked = _Rates(problem, candidates, requests, error, room, work)
    largest = problem.objective.name == "max-rate"
    judge = looked.judge if largest else looked.judge_at_rates
    worlds, rows = 0, []
    try:
        for latency in latencies(problem, error, MOST):
            found = judge(Predictor(problem, latency))
            worlds += 1
            if found is not None:
                rows.append(found)
    except _Spent:
        pass
    empty = np.zeros((0, len(candidates)), np.bool_)
    close, near = (np.array([row[i] for row in rows]) if rows else empty for i in range(2))
    return Standing(close, near, looked.reached, worlds, IN_SIGHT if largest else IN_SIGHT_AT_RATES)


class _Spent(Exception):
    """The work that was allowed is done."""


class _Rates:
    """Judges one world after the other, and remembers what makes the next one quicker."""

    def __init__(
        self,
        problem: Problem,
        candidates: Sequence[Candidate],
        requests: Requests,
        error: float,
        room: int,
        work: int,
    ) -> None:
        self._problem = problem
        self._candidates = candidates
        self._requests = requests
        self._room = room
        self._runs_left = work // max(len(requests), SHORT)
        self._far = 1 - (1 - IN_SIGHT) * (1 - error) / (1 + error)
        self._out: Bools | None = None
        """Who is so far behind in the first world that no other one brings it in sight of the best."""
        self.reached = np.zeros(len(candidates))
        self._used = np.ones(len(candidates))
        """Share of its bound that each was last seen to reach at the most: who is asked first."""

    def judge_at_rates(self, predictor: Predictor) -> tuple[Bools, Bools] | None:
        """At the rates in force: who is close to the best, who is near, by the objective's own value.

        After the first world nobody else is asked once there is no room for more of those that serve all that
        is offered: what tells them apart is how the list ends.
        """
        bounds = self._most_worth(predictor)
        values = np.zeros(len(bounds))
        best, serve_all, first = 0.0, 0, not self.reached.any()
        for i in self._likeliest(bounds):
            if bounds[i] <= best * (1 - IN_SIGHT_AT_RATES):
                continue
            score = self._score(predictor, i)
            values[i] = self._worth(i, score)
            self._used[i] = values[i] / bounds[i]
            best = max(best, values[i])
            serve_all += score.point.attainment >= 1 - CLOSE
            if not first and serve_all >= max(self._room, FIRST):
                break
        if best <= 0:
            return None
        share = values / best
        self.reached = np.maximum(self.reached, share)
        return share >= 1 - CLOSE, share >= 1 - NEAR

    def judge(self, predictor: Predictor) -> tuple[Bools, Bools] | None:
        """By the largest rate: who carries nearly as much as the best.

        Each is asked for little first, and for more as long as it carries that. What carries so little in the
        first world that stages wrong in opposite ways do not make up for it is not asked again.
        """
        asked = np.ones(len(self._candidates), np.bool_) if self._out is None else ~self._out
        limits = np.zeros(len(asked))
        for i in np.flatnonzero(asked).tolist():
            limits[i] = predictor.limit(self._candidates[i])
        carries = np.zeros(len(limits))
        best = 0.0
        for i in self._likeliest(limits):
            if best > 0:
                able = self._climbs(predictor, i, self._steps(i, best, -CLOSE / 2), limits, carries)
            else:
                able = any(self._meets(predictor, i, share * limits[i]) for share in ANY)
            if able:
                found = self._score(predictor, i, lower=best, **FINE)
                best = carries[i] = max(best * (1 + CLOSE / 2), found.value)
                self._used[i] = best / limits[i]
        if best <= 0:
            return None
        for i in np.flatnonzero(carries > 0).tolist():  # held to what was the best then
            self._climbs(predictor, i, self._steps(i, best, CLOSE), limits, carries)
        if self._out is None:
            self._out = carries < best * (1 - self._far)
        close, near, sight = (carries >= best * (1 - behind) for behind in (CLOSE, NEAR, IN_SIGHT))
        self.reached = np.maximum(self.reached, np.where(near, 1.0, sight * (1 - IN_SIGHT)))
        return close, near

    def _steps(self, i: int, best: float, last: float) -> list[float]:
        """Rates that a candidate is asked for in turn: within sight of some best it is no news that it is in sight."""
        behind = [NEAR, last]
        if self.reached[i] < 1 - IN_SIGHT:
            behind.insert(0, IN_SIGHT)
        if self._out is None:
            behind.insert(0, self._far)
        return [best * (1 - b) for b in behind]

    def _climbs(
        self, predictor: Predictor, i: int, rates: Sequence[float], limits: Floats, carries: Floats
    ) -> bool:
        """Whether the candidate carries all of these ascending rates; the largest that it does is noted."""
        for rate in rates:
            if carries[i] >= rate:
                continue
            if limits[i] * OVER < rate:
                return False
            if not self._meets(predictor, i, rate):
                self._used[i] = rate / limits[i]
                return False
            carries[i] = rate
        return True

    def _likeliest(self, bounds: Floats) -> list[int]:
        """Who may be worth anything, by what that may be as far as is known."""
        order: list[int] = np.argsort(-bounds * self._used, kind="stable").tolist()
        return [i for i in order if bounds[i] > 0]

    def _most_worth(self, predictor: Predictor) -> Floats:
        """What each may be worth at the most.

        At overload one of two prefill pools may drown while the other serves, so that s is taken to be
        free; and requests without media may be served whatever becomes of the others.
        """
        problem, objective = self._problem, self._problem.objective
        most = max(objective.rates)
        free = predictor.capacity.best_over_offload
        able = np.array(
            [
                min(free(c, problem.kv_tokens(c)), 2 * most) if predictor.limit(c) > 0 else 0.0
                for c in self._candidates
            ]
        )
        if objective.name == "cost":
            costs = np.array([objective.cost(c) for c in self._candidates])
            return np.where(able * OVER >= most, 1 / costs, 0.0)
        lists = (self._requests, *problem.beside(self._requests))
        text = 1 - min(listed.media_share for listed in lists)
        if len(objective.rates) > 1:
            return np.where(able > 0, np.minimum(able * OVER / most + text, 1.0), 0.0)
        return np.where(able > 0, able * OVER + text * most, 0.0)

    def _worth(self, i: int, score: Score) -> float:
        """What is compared: of cost, how cheap it meets the SLO."""
        if self._problem.objective.name != "cost":
            return score.value
        return 1 / self._problem.objective.cost(self._candidates[i]) if score.feasible else 0.0

    def _score(self, predictor: Predictor, i: int, **scan: float) -> Score:
        begun = predictor.simulations
        score = predictor.score(self._candidates[i], self._requests, **scan)
        self._pay(predictor.simulations - begun)
        return score

    def _meets(self, predictor: Predictor, i: int, rate: float) -> bool:
        begun = predictor.simulations
        deployment = self._problem.deployment(self._candidates[i])
        point = predictor.point(deployment, rate, self._requests)
        self._pay(predictor.simulations - begun)
        return point.attainment >= self._problem.slo.attainment

    def _pay(self, runs: int) -> None:
        self._runs_left -= runs
        if self._runs_left < 0:
            raise _Spent

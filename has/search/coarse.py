"""Spaces too large to list: from a small copy of the cluster, and a coarse lattice, to single GPUs.

On G GPUs there are about G²/2 allocations, each with every B and s: 1,569 candidates on 8 GPUs, 40
million on 1,024. What a candidate carries changes smoothly with the allocation but for its ridge, and
nearly in proportion to the size of everything, so:

1. begin with a copy of at most `SMALLEST` GPUs (halved as often as it takes) under as much less load;
   list allocations whose pools are multiples of a step, about `DIVISIONS` of them to the budget, with
   every B and s; simulate those that capacity bounds say could carry most;
2. halve the step; of the best so far simulate the neighbours, in allocation, B and s; until a step
   finer than one GPU has nothing new to offer;
3. double the cluster, the best so far with it, and go on with their neighbours, up to G. Above `LARGEST`
   nothing new is looked at: cells of that size, side by side, differ from the best by less than a
   simulation tells.

A run is as long as its cluster is large, so nearly all work is in the last doublings, and it is bounded
there. Only what was simulated at full size is handed on: memory and time grow with the logarithm of G.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from has.core.requests import Requests
from has.core.space import SearchSpace
from has.errors import InfeasibleError
from has.search.lattice import grown, lattice, neighbours, scaled_space
from has.search.objective import Objective, Score
from has.search.predict import Predictor
from has.search.problem import Problem
from has.search.prune import only_possible
from has.search.screen import Scores, ranked, screen
from has.search.space import Candidate

LISTED = 12_000
"""Spaces up to this size are listed whole (16 GPUs and every default) …"""
WORK = 300 * LISTED
"""… if one run of each takes no more requests than this."""
SMALLEST, LARGEST = 32, 1024
"""GPUs of the first copy, and of the last that is simulated."""
DIVISIONS = 12
FIRST_LOOK = 250
"""Candidates of the lattice that are simulated, of each topology."""
FRONT = 20
"""Candidates whose neighbours are simulated next."""
NEARBY = {True: 240, False: 100}
"""Neighbours simulated at each step, those that bounds say could carry most: on the first copy, and on larger ones."""
STEPS = (4, 2, 1, 1, 1)
"""GPUs moved at each look at neighbours on a copy that was doubled."""
CELLS = 200
"""Of the largest copy so many are handed on where it is not the whole."""
FEWEST_REQUESTS = 300
IN_SIGHT = 0.9
"""A maximum rate below this share of the best so far is not looked for."""
NOT_IN_PROPORTION = ("preprocess_workers", "max_queue")
"""Settings that do not grow with the cluster: then there are no copies."""

Progress = Callable[[int], None]
"""Is told how many candidates were simulated."""


def is_large(space: SearchSpace, budgets: Iterable[int], requests: int = FEWEST_REQUESTS) -> bool:
    """Whether the space has more candidates on these numbers of GPUs than are listed one by one."""
    most = min(LISTED, WORK // max(requests, 1))
    points = (c for gpus in budgets for c in lattice(space, gpus, 1))
    return next(islice(points, most, None), None) is not None


def coarse_to_fine(
    space: SearchSpace,
    gpus: int,
    predictor: Predictor,
    requests: Requests,
    progress: Progress = lambda _: None,
    smallest: int = SMALLEST,
) -> Scores:
    """What was simulated on exactly `gpus` GPUs at the end of the way there, and its scores."""
    scores: Scores = {}
    looked, size = 0, gpus
    for size in _sizes(space, predictor.problem, gpus, smallest):
        cell = _Cell.of(space, gpus, size, predictor, requests, progress, looked)
        front = _front(cell.objective, scores)
        scores = cell.from_copy(front) if scores else cell.fromlattice()
        looked = cell.looked
        predictor.simulations += cell.predictor.simulations
        predictor.fault = predictor.fault or cell.predictor.fault
    return scores if size == gpus else _side_by_side(space, gpus, predictor.problem, scores)


def _sizes(space: SearchSpace, problem: Problem, gpus: int, smallest: int) -> list[int]:
    """GPUs of each copy, ascending: `gpus` halved, to multiples of every tensor parallelism."""
    if any(problem.settings.get(name) is not None for name in NOT_IN_PROPORTION):
        return [gpus]
    unit = math.lcm(*space.tensor_parallel.prefill, *space.tensor_parallel.decode)
    sizes = [gpus]
    while sizes[0] > max(smallest, 2 * unit):
        half = math.ceil(sizes[0] / 2 / unit) * unit
        if half >= sizes[0]:
            break
        sizes.insert(0, half)
    small = [size for size in sizes if size <= LARGEST]
    return small or [gpus]


@dataclass
class _Cell:
    """A copy of the cluster, `predictor` and `space` of its size. `looked`: candidates simulated so far, of all copies."""

    space: SearchSpace
    size: int
    predictor: Predictor
    requests: Requests
    progress: Progress
    looked: int = 0

    @classmethod
    def of(
        cls,
        space: SearchSpace,
        gpus: int,
        size: int,
        predictor: Predictor,
        requests: Requests,
        progress: Progress,
        looked: int,
    ) -> _Cell:
        if size == gpus:
            own = Predictor(predictor.problem, predictor.latency)
            return cls(space, size, own, requests, progress, looked)
        share, problem = size / gpus, predictor.problem
        rates = tuple(rate * share for rate in problem.objective.rates)
        smaller = replace(problem, gpus=size, objective=replace(problem.objective, rates=rates))
        few = requests[: max(min(len(requests), FEWEST_REQUESTS), math.ceil(len(requests) * share))]
        own = Predictor(smaller, predictor.latency)
        return cls(scaled_space(space, share), size, own, few, progress, looked)

    def fromlattice(self) -> Scores:
        step = max(1, self.size // DIVISIONS)
        scores: Scores = {}
        for topology in self.space.topologies:
            own = self.space.model_copy(update={"topologies": (topology,)})
            first = self._most_promising(lattice(own, self.size, step), FIRST_LOOK)
            scores |= self._look(first, scores)
        finest = False
        while scores and not finest:
            step = max(1, step // 2)
            front = self._look_around(scores, step, NEARBY[True])
            finest = step == 1 and _front(self.objective, scores) == front
        return scores

    def from_copy(self, front: Sequence[Candidate]) -> Scores:
        larger = [c for f in front for c in grown(self.space, f, self.size)]
        whole = self.space.model_copy(update={"topologies": ("monolithic",)})
        alone = list(lattice(whole, self.size, 1)) if "monolithic" in self.space.topologies else []
        first = possible(self.predictor.problem, list(dict.fromkeys([*larger, *alone])))
        scores = self._look(first, {})
        for step in STEPS:
            front = self._look_around(scores, step, NEARBY[False])
            if step == 1 and _front(self.objective, scores) == front:
                break
        return scores

    def _look_around(self, scores: Scores, step: int, most: int) -> list[Candidate]:
        """Add the neighbours of the best, and return who these were."""
        front = _front(self.objective, scores)
        near = {n for c in front for n in neighbours(self.space, c, step)} - set(scores)
        scores |= self._look(self._most_promising(sorted(near), most), scores)
        return front

    def _look(self, candidates: Sequence[Candidate], before: Scores) -> Scores:
        best = max((score.value for score in before.values()), default=0.0)
        at_least = IN_SIGHT * best if best > 0 else None
        begun = self.looked
        found = screen(
            self.predictor,
            candidates,
            self.requests,
            lambda n: self.progress(begun + n),
            at_least=at_least,
        )
        self.looked += len(candidates)
        return found

    def _most_promising(self, points: Iterable[Candidate], most: int) -> list[Candidate]:
        """Of these the `most` that capacity bounds say could carry most."""
        able = possible(self.predictor.problem, list(points))
        return heapq.nlargest(most, able, key=self.predictor.limit)

    @property
    def objective(self) -> Objective:
        return self.predictor.problem.objective


def possible(problem: Problem, points: Sequence[Candidate]) -> Sequence[Candidate]:
    """Those that the profile can answer for and memory admits."""
    try:
        return only_possible(problem, points).kept
    except InfeasibleError:
        return ()


def _front(objective: Objective, scores: Scores) -> list[Candidate]:
    """The best, and the best of each topology: which of them gains most by size is not known beforehand."""
    order = ranked(objective, scores)
    first: dict[str, Candidate] = {}
    for c in order:
        first.setdefault(c.topology, c)
    return list(dict.fromkeys([*order[:FRONT], *first.values()]))


def _side_by_side(space: SearchSpace, gpus: int, problem: Problem, scores: Scores) -> Scores:
    """As many cells as `gpus` GPUs hold: each carries what one does."""
    found: Scores = {}
    for c in ranked(problem.objective, scores)[:CELLS]:
        times = gpus / c.total
        for larger in grown(space, c, gpus):
            point = scores[c].point
            scaled = replace(point, rate=point.rate * times, goodput_rps=point.goodput_rps * times)
            shares = problem.objective.name == "cost" or len(problem.objective.rates) > 1
            value = scores[c].value * (1 if shares else times)
            found.setdefault(larger, Score(value, scaled, scores[c].feasible))
    return found

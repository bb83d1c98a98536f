"""Spaces too large to list: from a coarse lattice of allocations down to single GPUs.

On G GPUs there are about G²/2 allocations, each with every B and s: 1,569 candidates on 8 GPUs, 40
million on 1,024. What a candidate carries changes smoothly with the allocation but for its ridge, so:

1. list allocations whose pools are multiples of a step, about `DIVISIONS` of them to the budget, with
   every B and s; keep those that capacity bounds say could carry most;
2. simulate these;
3. halve the step; of the best so far simulate the neighbours, in allocation, B and s; until a step
   finer than one GPU has nothing new to offer.

Only what was simulated is handed on, so memory and time grow with the logarithm of G.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, product

from has.core.requests import Requests
from has.core.space import SearchSpace
from has.search.predict import Predictor
from has.search.screen import Scores, ranked, screen
from has.search.space import MICRO, Candidate, enumerate_budgets, enumerate_space, offload_values

LISTED = 12_000
"""Spaces up to this size are listed whole: 16 GPUs and every default."""
DIVISIONS = 12
FIRST_LOOK = 250
"""Candidates of the lattice that are simulated, of each topology."""
FRONT = 20
"""Candidates whose neighbours are simulated next."""
NEARBY = 240
"""Neighbours simulated at each step, those that bounds say could carry most."""
IN_SIGHT = 0.9
"""A maximum rate below this share of the best so far is not looked for."""


def is_large(space: SearchSpace, gpus: int) -> bool:
    """Whether the space has more candidates on `gpus` than are listed one by one."""
    points = (c for g in [gpus] for c in _lattice(space, g, 1))
    return next(islice(points, LISTED, None), None) is not None


def list_space(
    space: SearchSpace,
    budgets: Sequence[int],
    predictor: Predictor,
    requests: Requests,
    note: Callable[[str], None],
) -> list[Candidate]:
    """The candidates that a search looks at. Several budgets (objective cost) are listed whole."""
    if len(budgets) != 1 or not is_large(space, budgets[0]):
        return enumerate_budgets(space, budgets)
    found = candidates_of(space, budgets[0], predictor, requests)
    note(
        f"more than {LISTED:,} candidates: looked at {len(found):,}, from a coarse lattice of allocations"
        " down to single GPUs"
    )
    return found


def candidates_of(space: SearchSpace, gpus: int, predictor: Predictor, requests: Requests) -> list[Candidate]:
    """The space's candidates on exactly `gpus` GPUs: all, or where they are too many what a
    coarse-to-fine look found worth simulating, at most a few thousand."""
    if not is_large(space, gpus):
        return enumerate_space(space, gpus)
    return list(coarse_to_fine(space, gpus, predictor, requests))


def coarse_to_fine(space: SearchSpace, gpus: int, predictor: Predictor, requests: Requests) -> Scores:
    """What was simulated on the way from a coarse lattice to single GPUs, and its scores."""
    objective = predictor.problem.objective
    step = max(1, gpus // DIVISIONS)
    scores: Scores = {}
    for topology in space.topologies:
        own = space.model_copy(update={"topologies": (topology,)})
        first = _most_promising(predictor, _lattice(own, gpus, step), FIRST_LOOK)
        scores |= _look(predictor, first, requests, scores)
    finest = False
    while scores and not finest:
        front = ranked(objective, scores)[:FRONT]
        step = max(1, step // 2)
        near = {n for c in front for n in _neighbours(space, c, step)} - set(scores)
        near_first = _most_promising(predictor, sorted(near), NEARBY)
        scores |= _look(predictor, near_first, requests, scores)
        finest = step == 1 and ranked(objective, scores)[:FRONT] == front
    return scores


def _look(
    predictor: Predictor, candidates: Sequence[Candidate], requests: Requests, before: Scores
) -> Scores:
    best = max((score.value for score in before.values()), default=0.0)
    at_least = IN_SIGHT * best if best > 0 else None
    return screen(predictor, candidates, requests, lambda _: None, at_least=at_least)


def _most_promising(predictor: Predictor, points: Iterable[Candidate], most: int) -> list[Candidate]:
    """Of these the `most` that capacity bounds say could carry most."""
    problem = predictor.problem
    possible = (c for c in points if not problem.beyond_reach(c.encode_batch))
    return heapq.nlargest(most, possible, key=predictor.limit)


def _lattice(space: SearchSpace, gpus: int, step: int) -> Iterator[Candidate]:
    """Candidates whose pools, but for the last, are the least allowed or a multiple of `step`."""
    shares = offload_values(space.prefill_offload)
    for topology in space.topologies:
        if topology == "monolithic":
            pools: Iterable[tuple[int, ...]] = [(gpus,)]
        elif topology == "e_pd":
            pools = ((encode, gpus - encode) for encode in _marks(1, gpus - 1, step))
        else:
            pools = (
                (encode, prefill, gpus - encode - prefill)
                for encode in _marks(1, gpus - 1, step)
                for prefill in _marks(0, gpus - encode - 1, step)
            )
        for sizes in pools:
            batches = (0,) if topology == "monolithic" else space.encode_batch
            for batch, share in product(batches, shares if topology == "disaggregated" else (0,)):
                yield from _valid(space, topology, sizes, batch, share)


def _marks(low: int, high: int, step: int) -> Iterator[int]:
    return (n for n in range(low, high + 1) if n == low or n % step == 0)


def _neighbours(space: SearchSpace, c: Candidate, step: int) -> Iterator[Candidate]:
    """`step` GPUs moved from one pool to another or none, and the next smaller or larger B and s or the same."""
    moves = {tuple(c.gpus)}
    for giver, taker in product(range(len(c.gpus)), repeat=2):
        if giver != taker:
            moved = list(c.gpus)
            moved[giver] -= step
            moved[taker] += step
            moves.add(tuple(moved))
    batches = [0] if c.topology == "monolithic" else _beside(sorted(space.encode_batch), c.encode_batch)
    shares = [0]
    if c.topology == "disaggregated":
        shares = sorted({*_beside(list(offload_values(space.prefill_offload)), c.offload), 0})
    for sizes, batch, share in product(sorted(moves), batches, shares):
        yield from _valid(space, c.topology, sizes, batch, share)


def _beside(values: Sequence[int], value: int) -> list[int]:
    place = min(range(len(values)), key=lambda i: abs(values[i] - value))
    return list(values[max(0, place - 1) : place + 2])


def _valid(
    space: SearchSpace, topology: str, sizes: tuple[int, ...], batch: int, share: int
) -> Iterator[Candidate]:
    """The candidates with these pools that the space has: one for each tensor parallelism that fits."""
    last = space.tensor_parallel.decode
    if topology == "monolithic":
        for tp in last:
            if sizes[0] % tp == 0:
                yield Candidate("monolithic", (sizes[0],), (tp,), 0, 0)
        return
    encode = sizes[0]
    if sizes[-1] < 1 or not _inside(space.alloc.encode, encode, 1):
        return
    if topology == "e_pd":
        for tp in last:
            if sizes[1] % tp == 0:
                yield Candidate("e_pd", (encode, sizes[1]), (1, tp), batch, 0)
        return
    _, prefill, decode = sizes
    if not (_inside(space.alloc.prefill, prefill, 0) and _inside(space.alloc.decode, decode, 1)):
        return
    if (share == 0) != (prefill == 0) or share not in offload_values(space.prefill_offload):
        return
    for tp_prefill, tp_decode in product(space.tensor_parallel.prefill, last):
        fits = prefill % tp_prefill == 0 and decode % tp_decode == 0
        if fits and not (share < MICRO and encode % tp_prefill):
            yield Candidate(
                "disaggregated", (encode, prefill, decode), (1, tp_prefill, tp_decode), batch, share
            )


def _inside(bounds: tuple[int, int] | None, value: int, least: int) -> bool:
    return value >= least and (bounds is None or bounds[0] <= value <= bounds[1])

"""Candidates of a space by their place in it: a lattice of allocations, neighbours, the same on more GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from has.core.space import Range, SearchSpace
from has.search.space import MICRO, Allocation, Candidate, offload_values


def lattice(space: SearchSpace, gpus: int, step: int) -> Iterator[Candidate]:
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


def of_allocation(space: SearchSpace, allocation: Allocation) -> Iterator[Candidate]:
    """Every B and s of the space on these pools; nothing where the space has no such pools."""
    topology, sizes, tp = allocation
    batches = (0,) if topology == "monolithic" else space.encode_batch
    shares = offload_values(space.prefill_offload) if topology == "disaggregated" else ()
    for batch, share in product(batches, sorted({0, *shares})):
        yield from (c for c in _valid(space, topology, sizes, batch, share) if c.tp == tp)


def _marks(low: int, high: int, step: int) -> Iterator[int]:
    return (n for n in range(low, high + 1) if n == low or n % step == 0)


def neighbours(space: SearchSpace, c: Candidate, step: int) -> Iterator[Candidate]:
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


def grown(space: SearchSpace, c: Candidate, size: int) -> Iterator[Candidate]:
    """`c` on `size` GPUs, its pools in proportion; what does not divide goes to one pool or another."""
    least = [n * size // c.total // tp * tp for n, tp in zip(c.gpus, c.tp, strict=True)]
    rest = size - sum(least)
    for pool, n in enumerate(c.gpus):
        if n == 0 or rest % c.tp[pool]:
            continue
        sizes = tuple(m + rest * (i == pool) for i, m in enumerate(least))
        valid = _valid(space, c.topology, sizes, c.encode_batch, c.offload)
        yield from (point for point in valid if point.tp == c.tp)
        if rest == 0:
            return


def scaled_space(space: SearchSpace, share: float) -> SearchSpace:
    """Ranges of pools of a cluster that is `share` as large."""

    def part(bounds: Range | None, least: int) -> Range | None:
        if bounds is None:
            return None
        return (max(least, math.floor(bounds[0] * share)), max(least, math.ceil(bounds[1] * share)))

    ranges = space.alloc
    alloc = ranges.model_copy(
        update={
            "encode": part(ranges.encode, 1),
            "prefill": part(ranges.prefill, 0),
            "decode": part(ranges.decode, 1),
        }
    )
    return space.model_copy(update={"alloc": alloc})

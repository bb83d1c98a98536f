"""Every configuration of a search space, listed.

The valid tuples are enumerated, never sampled from a box: the simplex of allocations and the rule
"s = 0 exactly when there is no prefill pool" then hold by construction, and an acquisition is
maximised by looking at each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Any

from has.core.deployment import POOLS, Deployment, Topology, split_words
from has.core.space import OffloadRange, Range, SearchSpace
from has.errors import InputError

MICRO = 10**6
"""`Candidate.offload` counts millionths, so that s is exact."""


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """One point of the space, as small as it can be.

    gpus     GPUs of each pool, in the order of `POOLS[topology]`
    tp       GPUs of one worker, likewise
    encode_batch  B; 0 for monolithic, which has none
    offload  s in millionths; 0 where there is no prefill pool
    """

    topology: Topology
    gpus: tuple[int, ...]
    tp: tuple[int, ...]
    encode_batch: int
    offload: int

    def pool(self, name: str) -> int:
        return self.gpus[POOLS[self.topology].index(name)]

    def pool_tp(self, name: str) -> int:
        return self.tp[POOLS[self.topology].index(name)]

    @property
    def total(self) -> int:
        return sum(self.gpus)

    @property
    def share(self) -> float:
        """s."""
        return self.offload / MICRO

    @property
    def allocation(self) -> Allocation:
        return (self.topology, self.gpus, self.tp)

    @property
    def label(self) -> str:
        """As `Deployment.label`."""
        words = [split_words(self.topology, self.gpus, self.tp)]
        if self.topology != "monolithic":
            words.append(f"B{self.encode_batch}")
        if self.topology == "disaggregated":
            words.append(f"s{self.share:g}")
        return " ".join(words)

    def fields(self) -> dict[str, Any]:
        """The fields of a `Deployment` that this point decides."""
        pools = POOLS[self.topology]
        decided: dict[str, Any] = {
            "topology": self.topology,
            "gpus": self.total,
            "alloc": dict(zip(pools, self.gpus, strict=True)),
            "tensor_parallel": dict(zip(pools, self.tp, strict=True)),
        }
        if self.topology != "monolithic":
            decided["encode_batch"] = self.encode_batch
        if self.topology == "disaggregated":
            decided["prefill_offload"] = self.share
        return decided


Allocation = tuple[Topology, tuple[int, ...], tuple[int, ...]]
"""Topology, GPUs per pool, GPUs per worker: what a candidate is without B and s."""


def candidate_of(deployment: Deployment) -> Candidate:
    """The point a deployment stands on (which a given space need not contain)."""
    pools = POOLS[deployment.topology]
    return Candidate(
        topology=deployment.topology,
        gpus=tuple(deployment.alloc[pool] for pool in pools),
        tp=tuple(deployment.tp(pool) for pool in pools),
        encode_batch=deployment.encode_batch or 0,
        offload=int(deployment.offload_fraction * MICRO),
    )


@lru_cache(maxsize=64)  # asked of every candidate that a lattice has a look at
def offload_values(offload: OffloadRange) -> tuple[int, ...]:
    """min, min + step, … and max itself, in millionths."""
    low, high, step = (round(Fraction(repr(v)) * MICRO) for v in (offload.min, offload.max, offload.step))
    return tuple(sorted({*range(low, high + 1, step), high}))


def enumerate_space(space: SearchSpace, gpus: int) -> list[Candidate]:
    """Every valid candidate on exactly `gpus` GPUs, in a fixed order.

    `alloc.encode` binds e_pd too; its PD pool and a monolith take whatever GPUs remain, at the
    decode list of TP.
    """
    return [point for topology in space.topologies for point in _MAKERS[topology](space, gpus)]


def enumerate_some(space: SearchSpace, gpus: int, most: int) -> list[Candidate]:
    """The first `most` of them: enough to tell, without listing millions, that there are as many."""
    points = (point for topology in space.topologies for point in _MAKERS[topology](space, gpus))
    return list(islice(points, most))


MOST_CANDIDATES = 3_000_000
"""Of one search: some gigabytes of candidates, and minutes of rules over them."""


def enumerate_budgets(space: SearchSpace, budgets: Iterable[int]) -> list[Candidate]:
    """Every valid candidate on any of these numbers of GPUs. InputError where they are more than can be looked at."""
    found: list[Candidate] = []
    for gpus in budgets:
        for topology in space.topologies:
            left = MOST_CANDIDATES - len(found)
            found += islice(_MAKERS[topology](space, gpus), left + 1)
            if len(found) > MOST_CANDIDATES:
                raise InputError(
                    f"the space has more than {MOST_CANDIDATES:,} candidates on {gpus} GPUs",
                    where="space",
                    field="alloc",
                    mend="narrow it with --space: ranges of alloc, fewer encode_batch, a larger prefill_offload.step",
                )
    return found


def _disaggregated(space: SearchSpace, gpus: int) -> Iterator[Candidate]:
    shares = offload_values(space.prefill_offload)
    ranges = space.alloc
    for encode in _within(ranges.encode, 1, gpus - 1):
        for prefill in _within(ranges.prefill, 0, gpus - encode - 1):
            decode = gpus - encode - prefill
            if decode not in _within(ranges.decode, 1, gpus):
                continue
            for tp_prefill in space.tensor_parallel.prefill:
                for tp_decode in space.tensor_parallel.decode:
                    if prefill % tp_prefill or decode % tp_decode:
                        continue
                    for batch in space.encode_batch:
                        for share in shares:
                            if (share == 0) != (prefill == 0):
                                continue
                            if share < MICRO and encode % tp_prefill:
                                continue  # a local prefill spans tp_prefill encode GPUs
                            yield Candidate(
                                "disaggregated",
                                (encode, prefill, decode),
                                (1, tp_prefill, tp_decode),
                                batch,
                                share,
                            )


def _e_pd(space: SearchSpace, gpus: int) -> Iterator[Candidate]:
    for encode in _within(space.alloc.encode, 1, gpus - 1):
        for tp in space.tensor_parallel.decode:
            if (gpus - encode) % tp == 0:
                for batch in space.encode_batch:
                    yield Candidate("e_pd", (encode, gpus - encode), (1, tp), batch, 0)


def _monolithic(space: SearchSpace, gpus: int) -> Iterator[Candidate]:
    for tp in space.tensor_parallel.decode:
        if gpus % tp == 0:
            yield Candidate("monolithic", (gpus,), (tp,), 0, 0)


def _within(bounds: Range | None, low: int, high: int) -> range:
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return range(low, high + 1)


_MAKERS = {"disaggregated": _disaggregated, "e_pd": _e_pd, "monolithic": _monolithic}

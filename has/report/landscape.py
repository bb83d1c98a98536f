"""What is within the SLO around the answer of a search, over the splits that could carry most, s and B."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from has.core.deployment import split_words
from has.core.requests import Requests
from has.core.space import SearchSpace
from has.search.coarse import DIVISIONS, is_large
from has.search.lattice import lattice, of_allocation
from has.search.predict import Predictor
from has.search.question import longer
from has.search.side_by_side import side_by_side
from has.search.space import Allocation, Candidate

Floats = NDArray[np.float64]

SPAN = 30.0
REQUESTS = (800, 3000)
"""Requests of each point: `SPAN` TTFT bounds of traffic, within these; of many GPUs as many times more as
they serve it faster."""
ROWS = (3, 12)
"""Splits shown, those that could carry most: the more, the fewer requests all their points take together …"""
WORK = 12_000_000
"""… which are no more than this: some ten seconds."""


@dataclass(frozen=True, slots=True)
class Landscape:
    """Requests/s within the SLO (attainment times `rate`): `values[B][i, j]` of allocation i at s_j; NaN where there
    is no such point."""

    rate: float
    allocations: tuple[str, ...]
    shares: tuple[float, ...]
    values: Mapping[int, Floats]
    answer: str = ""
    """The answer's allocation, where it is among them."""
    beyond: tuple[int, ...] = ()
    """Values of B that lie beyond the profile's reach, and are not among `values`."""


def landscape(
    predictor: Predictor,
    space: SearchSpace,
    rate: float,
    requests: Requests,
    *,
    answer: Candidate,
    tried: Sequence[Candidate],
    few: Callable[[int], Requests] | None = None,
) -> Landscape | None:
    """None where no split is disaggregated, or every B is beyond the profile's reach.

    `tried` are splits to look at whatever else is. `few` gives so many of `requests`, the first if it is None.
    """
    problem = predictor.problem
    of_split: dict[Allocation, list[Candidate]] = {}
    beyond: set[int] = set()
    for c in _points(space, problem.gpus, [answer, *tried]):
        if problem.beyond_reach(c.encode_batch):
            beyond.add(c.encode_batch)
        else:
            of_split.setdefault(c.allocation, []).append(c)
    if not of_split:
        return None
    times = longer(problem.gpus)
    span = math.ceil(SPAN * problem.slo.ttft_s * rate)
    count = min(REQUESTS[1] * times, max(REQUESTS[0] * times, span), len(requests))
    each = few(count) if few else requests[:count]
    ranked = sorted(of_split, key=lambda split: -max(map(predictor.limit, of_split[split])))
    points = max(map(len, of_split.values()))
    shown = ranked[: min(ROWS[1], max(ROWS[0], WORK // (points * count)))]
    chosen = answer.allocation
    if chosen in of_split and chosen not in shown:
        shown = [chosen, *shown[:-1]]
    shares = tuple(sorted({c.share for split in shown for c in of_split[split]}))
    batches = sorted({c.encode_batch for split in shown for c in of_split[split]})
    values = {batch: np.full((len(shown), len(shares)), np.nan) for batch in batches}
    looked = [(i, c) for i, split in enumerate(shown) for c in of_split[split]]
    deployments = [problem.deployment(c) for _, c in looked]
    found = side_by_side(predictor, lambda by, d: rate * by.point(d, rate, each).attainment, deployments)
    for (i, c), value in zip(looked, found, strict=True):
        values[c.encode_batch][i, shares.index(c.share)] = value
    best = np.fmax.reduce(
        np.stack(list(values.values())), axis=(0, 2)
    )  # which passes over NaN without a word
    order = np.argsort(-best, kind="stable")
    return Landscape(
        rate,
        tuple(split_words(*shown[i]) for i in order),
        shares,
        {batch: table[order] for batch, table in values.items()},
        split_words(*chosen) if chosen in shown else "",
        tuple(sorted(beyond)),
    )


def _points(space: SearchSpace, gpus: int, known: Sequence[Candidate]) -> dict[Candidate, None]:
    """The disaggregated candidates; of a space too large to list, those on a coarse lattice and on the splits of `known`."""
    if "disaggregated" not in space.topologies:
        return {}
    own = space.model_copy(update={"topologies": ("disaggregated",)})
    step = max(1, gpus // DIVISIONS) if is_large(own, (gpus,)) else 1
    splits = {c.allocation: None for c in known if c.topology == "disaggregated" and c.total == gpus}
    more = chain.from_iterable(of_allocation(own, split) for split in splits if step > 1)
    return dict.fromkeys(chain(lattice(own, gpus, step), more))

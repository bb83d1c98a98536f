"""Where deployments crash, as far as trials have shown.

A crash or out-of-memory says nothing of the objective, only that this point and its like do not run:
what no formula of memory foresaw. So the chance that a candidate runs is learned beside the surrogate,
from its neighbours in the same physics features, as a Beta posterior whose counts fall off with distance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from has.core.requests import Floats
from has.search.space import Candidate

RAN, CRASHED = 0.5, 0.02
"""Prior counts: half a trial's worth of belief that a candidate runs."""
REACH = 1.2
"""How far a crash tells, in standard deviations of a feature."""


def chance_to_run(
    features: Mapping[Candidate, Floats],
    candidates: Sequence[Candidate],
    ran: Sequence[Candidate],
    crashed: Sequence[Candidate],
) -> Floats:
    """Of each candidate the probability that it runs at all, [C]; all 1 before the first crash."""
    if not crashed:
        return np.ones(len(candidates))
    good = RAN + _near(features, candidates, ran).sum(axis=1)
    bad = CRASHED + _near(features, candidates, crashed).sum(axis=1)
    chance: Floats = good / (good + bad)
    return chance


def _near(
    features: Mapping[Candidate, Floats], left: Sequence[Candidate], right: Sequence[Candidate]
) -> Floats:
    """1 for the same point, falling to 0 with distance, [left, right]."""
    if not right:
        return np.zeros((len(left), 0))
    x, y = np.array([features[c] for c in left]), np.array([features[c] for c in right])
    squared = ((x[:, None, :] - y[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(np.exp(-squared / (2 * REACH**2)), np.float64)

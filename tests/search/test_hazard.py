from __future__ import annotations

import numpy as np

from has.search.hazard import chance_to_run
from has.search.space import Candidate

POINTS = [Candidate("disaggregated", (n, 6 - n, 2), (1, 1, 1), 1, 500_000) for n in range(1, 6)]
FEATURES = {c: np.array([float(i)]) for i, c in enumerate(POINTS)}


def test_nothing_is_doubted_before_the_first_crash() -> None:
    assert list(chance_to_run(FEATURES, POINTS, POINTS[:2], [])) == [1.0] * 5


def test_the_likes_of_a_crash_become_improbable_and_others_do_not() -> None:
    chance = chance_to_run(FEATURES, POINTS, [POINTS[4]], [POINTS[0]])
    assert np.all(np.diff(chance) > 0)
    assert chance[0] < 0.4
    assert chance[4] > 0.9


def test_every_further_crash_nearby_makes_it_less_likely() -> None:
    once = chance_to_run(FEATURES, POINTS, [], POINTS[:1])
    twice = chance_to_run(FEATURES, POINTS, [], POINTS[:2])
    assert twice[2] < once[2]

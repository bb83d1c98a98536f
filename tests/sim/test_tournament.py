"""The tree that says which worker is first, against a look at all of them."""

from __future__ import annotations

import numpy as np
from numba import njit

from has.sim import tournament
from has.sim.compiled import address_of

TREE = 3
"""Its address in the block: anywhere."""


@njit
def play(block, changes, found):
    m = address_of(block)
    for i in range(len(changes)):
        tournament.put(m, TREE, changes[i, 0], changes[i, 1])
        found[i, 0] = tournament.least(m, TREE)
        found[i, 1] = tournament.first_within(m, TREE, found[i, 0])
        found[i, 2] = tournament.first_within(m, TREE, found[i, 0] + 2)


def test_first_and_least_are_those_of_all():
    rng = np.random.default_rng(0)
    for workers in (*range(1, 20), 37, 64, 65):
        block = np.zeros(TREE + tournament.room(workers), np.int64)
        tournament.plant(block[TREE:], workers, 5)
        changes = np.stack([rng.integers(workers, size=200), rng.integers(10, size=200)], axis=1)
        found = np.zeros((len(changes), 3), np.int64)
        play(block, changes, found)
        numbers = np.full(workers, 5)
        for (worker, value), (least, whose, within) in zip(changes.tolist(), found.tolist(), strict=True):
            numbers[worker] = value
            assert least == numbers.min()
            assert whose == int(np.argmin(numbers))
            assert within == int(np.flatnonzero(numbers <= least + 2)[0])

"""Who of many workers is first: a tournament tree over one number per worker.

Each inner node holds the smaller of its two; so the least is at the root, finding whose it is and
changing one's number take one step a level, and ties go to the lowest index. What would be a look at every
worker for every event is a handful of steps on a thousand.

A tree at address t in `m`: m[t] is the number of leaves, a power of two; node i = 1.. lies at t + i,
the leaves last; leaves that stand for nobody hold NOBODY.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.sim.compiled import compiled

Ints = NDArray[np.int64]
NOBODY = 2**63 - 1


def leaves(workers: int) -> int:
    """How many a tree of so many workers has."""
    return 1 << max(0, workers - 1).bit_length()


def room(workers: int) -> int:
    """Addresses that a tree takes."""
    return 2 * leaves(workers)


def plant(tree: Ints, workers: int, value: int) -> None:
    """Write a tree in which everybody has this value into the addresses `tree`."""
    size = leaves(workers)
    level = np.full(size, NOBODY, np.int64)
    level[:workers] = value
    while True:
        tree[size : 2 * size] = level
        if size == 1:
            break
        size //= 2
        level = np.minimum(level[::2], level[1::2])
    tree[0] = leaves(workers)


@compiled
def least(m: Ints, tree: int) -> int:
    return int(m[tree + 1])


@compiled
def first_within(m: Ints, tree: int, limit: int) -> int:
    """The lowest worker whose number is at most `limit`; there must be one."""
    node = 1
    while node < m[tree]:
        node *= 2
        if m[tree + node] > limit:
            node += 1
    return int(node - m[tree])


@compiled
def put(m: Ints, tree: int, worker: int, value: int) -> None:
    """`worker` has this number now."""
    node = m[tree] + worker
    m[tree + node] = value
    while node > 1:
        value = min(value, m[tree + (node ^ 1)])
        node >>= 1
        if m[tree + node] == value:
            return
        m[tree + node] = value

"""A binary heap of requests by (when, then who came first): the order in which they reach a stage.

int64[capacity + 1, 4]; row 0 holds the size, rows 1.. the heap: when, began, place, request. What
comes at one instant comes in order of `began` (end of the stage before; arrivals last) and then of
`place` (stage, worker, place in the batch): a total order, so that ties fall the same way every time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.core.compiled import compiled

Heap = NDArray[np.int64]
WHEN, BEGAN, PLACE, WHO = range(4)


def new_heap(capacity: int) -> Heap:
    return np.zeros((capacity + 1, 4), np.int64)


@compiled
def place(stage: int, worker: int, position: int) -> int:
    """Order among those who left a stage at the same instant."""
    return (stage << 60) | (worker << 30) | position


@compiled
def _before(heap: Heap, i: int, when: int, began: int, rank: int) -> bool:
    """Is entry i before (when, began, rank)?"""
    if heap[i, 0] != when:
        return bool(heap[i, 0] < when)
    if heap[i, 1] != began:
        return bool(heap[i, 1] < began)
    return bool(heap[i, 2] < rank)


@compiled
def push(heap: Heap, when: int, began: int, rank: int, who: int) -> None:
    i = heap[0, 0] + 1
    heap[0, 0] = i
    while i > 1 and not _before(heap, i >> 1, when, began, rank):
        up = i >> 1
        for c in range(4):
            heap[i, c] = heap[up, c]
        i = up
    heap[i, 0], heap[i, 1], heap[i, 2], heap[i, 3] = when, began, rank, who


@compiled
def pop(heap: Heap) -> int:
    """Take the first; returns who."""
    who = heap[1, 3]
    size = heap[0, 0] - 1
    heap[0, 0] = size
    if size > 0:
        last = size + 1
        when, began, rank, moved = heap[last, 0], heap[last, 1], heap[last, 2], heap[last, 3]
        i = 1
        while 2 * i <= size:
            child = 2 * i
            if child < size and _before(heap, child + 1, heap[child, 0], heap[child, 1], heap[child, 2]):
                child += 1
            if not _before(heap, child, when, began, rank):
                break
            for c in range(4):
                heap[i, c] = heap[child, c]
            i = child
        heap[i, 0], heap[i, 1], heap[i, 2], heap[i, 3] = when, began, rank, moved
    return int(who)

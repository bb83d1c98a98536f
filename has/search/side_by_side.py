"""Independent simulations on all cores: the kernel runs outside the interpreter's lock, in threads that share what was drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

from has.device.host import cores
from has.search.predict import Predictor

Work = TypeVar("Work")
Result = TypeVar("Result")

MOST = 4
"""Threads: half of a short simulation is Python, which only one of them runs at a time."""


def side_by_side(
    predictor: Predictor, do: Callable[[Predictor, Work], Result], works: Sequence[Work]
) -> list[Result]:
    """`do(predictor, work)` of each, in order. Each thread has a predictor of its own, of the same latencies;
    what they simulated counts as `predictor`'s.

    `do` must not depend on the order, nor change what threads share (deployments are looked up before).
    """
    twins = [predictor.twin() for _ in range(min(cores(), MOST, len(works)) - 1)]
    if not twins:
        return [do(predictor, work) for work in works]
    idle: SimpleQueue[Predictor] = SimpleQueue()
    for one in (predictor, *twins):
        idle.put(one)

    def done(work: Work) -> Result:
        mine = idle.get()
        try:
            return do(mine, work)
        finally:
            idle.put(mine)

    with ThreadPoolExecutor(1 + len(twins)) as threads:
        results = list(threads.map(done, works))
    for twin in twins:
        predictor.absorb(twin)
    return results

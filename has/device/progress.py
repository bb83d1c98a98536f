"""When works that share a GPU end: exact bookkeeping of a fluid model, on handed-in times.

Each work has an amount to do; `rates` says how fast each of those running now progresses, given all of them. A
start or an end changes the rates, and what remains of the others goes on at the new ones. The ends follow from
the starts alone, so they are computed by replay: a work that is entered late, with a start that lies a little in
the past, changes the others just as it would have done in time. What has been released keeps its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

W = TypeVar("W")


@dataclass(slots=True)
class _Job(Generic[W]):
    work: W
    amount: float
    start_s: float
    end_s: float = math.inf
    released: bool = False


class Progress(Generic[W]):
    """At most one unreleased work a lane. `rates(running)` maps lane -> work to lane -> progress per second."""

    def __init__(self, rates: Callable[[Mapping[str, W]], Mapping[str, float]], history_s: float) -> None:
        self._rates = rates
        self._history_s = history_s
        self._open: dict[str, _Job[W]] = {}
        self._closed: list[tuple[str, _Job[W]]] = []

    def start(self, lane: str, work: W, amount: float, at_s: float) -> None:
        """Enter a work. `at_s` may precede times handed in before by up to `history_s`, but no end on its lane."""
        if lane in self._open:
            raise RuntimeError(f"lane {lane} is busy")
        self._open[lane] = _Job(work, amount, at_s)
        self._forget(at_s)
        self._replay()

    def end_s(self, lane: str) -> float:
        """When the work of `lane` ends, if nothing more starts; infinity while it stands still."""
        return self._open[lane].end_s

    def start_s(self, lane: str) -> float:
        return self._open[lane].start_s

    def release(self, lane: str, at_s: float | None = None) -> tuple[float, float]:
        """Fix the end of the lane's work (at_s: cut off there) and free the lane. Returns (start_s, end_s)."""
        job = self._open.pop(lane)
        if at_s is not None:
            job.end_s = max(job.start_s, min(job.end_s, at_s))
        job.released = True
        self._closed.append((lane, job))
        if at_s is not None:
            self._replay()
        return job.start_s, job.end_s

    def _forget(self, at_s: float) -> None:
        horizon = min([at_s - self._history_s, *(job.start_s for job in self._open.values())])
        self._closed = [(lane, job) for lane, job in self._closed if job.end_s > horizon]

    def _replay(self) -> None:
        jobs = [*self._closed, *self._open.items()]
        left = {id(job): job.amount for _, job in jobs}
        for job in self._open.values():
            job.end_s = math.inf
        starts = sorted({job.start_s for _, job in jobs})
        now = starts[0] if starts else 0.0
        while True:
            running = {lane: job for lane, job in jobs if job.start_s <= now < job.end_s}
            rates = self._rates({lane: job.work for lane, job in running.items()})
            ends = {
                lane: now + left[id(job)] / rates[lane]
                for lane, job in running.items()
                if not job.released and rates[lane] > 0
            }
            fixed = [job.end_s for job in running.values() if job.released]
            next_s = min([*(s for s in starts if s > now), *ends.values(), *fixed], default=math.inf)
            if next_s == math.inf:
                return
            for lane, end_s in ends.items():
                job = running[lane]
                left[id(job)] -= rates[lane] * (next_s - now)
                if end_s == next_s:
                    job.end_s = next_s
            now = next_s

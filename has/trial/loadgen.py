"""Open-loop load: requests go out when they are due, whatever has been answered.

A generator that waits for answers slows down with the server and hides its queues. This one keeps
to its schedule and says how late it was, so that a figure can be refused when the generator itself
was the bottleneck.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

LEAD_S = 0.05
"""Between the decision to start and the first request, so that the first is not late by construction."""
LATE_S = 0.025
"""A generator later than this (p90) disturbs what it measures."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When requests were sent. `start_s` is offset 0 on the clock; `late_s` float64[N], sent minus due."""

    start_s: float
    late_s: NDArray[np.float64]

    @property
    def late_p90_s(self) -> float:
        return float(np.percentile(self.late_s, 90)) if len(self.late_s) else 0.0


async def open_loop(
    offsets_s: Sequence[float] | NDArray[np.float64],
    prepare: Callable[[int], Awaitable[T]],
    send: Callable[[int, T, float], Awaitable[None]],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Schedule:
    """Send request i at `offsets_s[i]` (non-decreasing) after the start; return when all have ended.

    `prepare(i)` is awaited before the request is due, `send(i, prepared, sent_s)` becomes a task at
    `sent_s`. What `send` raises is raised here, and ends the others; so does a cancellation.
    """
    late_s = np.zeros(len(offsets_s))
    ready = await prepare(0) if len(offsets_s) else None
    start_s = clock() + LEAD_S
    try:
        async with asyncio.TaskGroup() as tasks:
            for i, offset_s in enumerate(offsets_s):
                if i:
                    ready = await prepare(i)
                due_s = start_s + float(offset_s)
                # One sleep may end early by the clock's grain; and even a late request lets the others breathe.
                await sleep(max(due_s - clock(), 0.0))
                while (sent_s := clock()) < due_s:
                    await sleep(due_s - sent_s)
                late_s[i] = sent_s - due_s
                tasks.create_task(send(i, ready, sent_s))  # type: ignore[arg-type]  # None only when there is no request
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None  # whoever failed first; the others were ended for it
    return Schedule(start_s, late_s)

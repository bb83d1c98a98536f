"""Lines of requests, and the logs: rows in `m` (see `memory`), nothing allocated.

A line is first come, first served, chained through its requests. A heap (`push`, `pop`) orders
requests on their way to a stage by (when, began, rank): what comes at one instant comes in order of
the end of the stage before (then arrivals, then what was begun and done in no time at all), then of
stage and worker, then of who moved on first. That is a total order: ties fall the same way every time.

A heap at address h: m[h] is its size, entry i = 1.. lies at h + 4·i: when, began, rank, request.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.sim.compiled import compiled
from has.sim.memory import (
    COUNT,
    FOREVER,
    HEAD,
    LOG,
    LOG_AT,
    LOG_END,
    LOG_MARK,
    LOG_ROOM,
    LOG_SIZE,
    LOG_START,
    LOG_USED,
    MOVED,
    NEXT,
    OVERFLOW,
    TAIL,
)

Ints = NDArray[np.int64]


@compiled
def join(m: Ints, line: int, request: int) -> None:
    """`request` stands at the end of `line`."""
    m[request + NEXT] = -1
    if m[line + COUNT] == 0:
        m[line + HEAD] = request
    else:
        m[m[line + TAIL] + NEXT] = request
    m[line + TAIL] = request
    m[line + COUNT] += 1


@compiled
def leave(m: Ints, line: int) -> int:
    """The head leaves; returns it. Its NEXT still names the one behind it."""
    request = m[line + HEAD]
    m[line + HEAD] = m[request + NEXT]
    m[line + COUNT] -= 1
    return int(request)


@compiled
def rank(m: Ints, stage: int, worker: int) -> int:
    """Order among those who left a stage at the same instant."""
    m[MOVED] += 1
    return int((stage << 60) | (worker << 36) | m[MOVED])


@compiled
def left_at(start: int, end: int, ready: int) -> int:
    """`began` of who is ready at `ready` after a service from `start` to `end`."""
    return FOREVER + 1 if start == ready else end


@compiled
def _before(m: Ints, entry: int, when: int, began: int, place: int, request: int) -> bool:
    if m[entry] != when:
        return bool(m[entry] < when)
    if m[entry + 1] != began:
        return bool(m[entry + 1] < began)
    if m[entry + 2] != place:
        return bool(m[entry + 2] < place)
    return bool(m[entry + 3] < request)


@compiled
def push(m: Ints, heap: int, when: int, began: int, place: int, request: int) -> None:
    i = m[heap] + 1
    m[heap] = i
    while i > 1 and not _before(m, heap + 4 * (i >> 1), when, began, place, request):
        _move(m, heap + 4 * (i >> 1), heap + 4 * i)
        i >>= 1
    entry = heap + 4 * i
    m[entry], m[entry + 1], m[entry + 2], m[entry + 3] = when, began, place, request


@compiled
def waits(m: Ints, heap: int) -> bool:
    """Is anybody in it?"""
    return bool(m[heap] > 0)


@compiled
def when(m: Ints, heap: int) -> int:
    """When the first comes."""
    return int(m[heap + 4])


@compiled
def first(m: Ints, heap: int) -> int:
    return int(m[heap + 7])


@compiled
def pop(m: Ints, heap: int) -> int:
    """Take the first; returns the request."""
    request = m[heap + 7]
    size = m[heap] - 1
    m[heap] = size
    last = heap + 4 * (size + 1)
    i = 1
    while 2 * i <= size:
        child = heap + 8 * i
        j = 2 * i
        if j < size and _before(m, child + 4, m[child], m[child + 1], m[child + 2], m[child + 3]):
            child += 4
            j += 1
        if not _before(m, child, m[last], m[last + 1], m[last + 2], m[last + 3]):
            break
        _move(m, child, heap + 4 * i)
        i = j
    _move(m, last, heap + 4 * i)
    return int(request)


@compiled
def _move(m: Ints, source: int, target: int) -> None:
    for k in range(4):
        m[target + k] = m[source + k]


@compiled
def record(m: Ints, which: int, start: int, end: int, size: int, mark: int) -> None:
    """One service in a stage's log; says so when the log is full."""
    used = m[LOG_USED + which]
    if used >= m[LOG_ROOM + which]:
        m[OVERFLOW] = 1
        return
    m[LOG_USED + which] = used + 1
    entry = m[LOG_AT + which] + LOG * used
    m[entry + LOG_START], m[entry + LOG_END] = start, end
    m[entry + LOG_SIZE], m[entry + LOG_MARK] = size, mark

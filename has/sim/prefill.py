"""The remote prefill pool: one line, the lowest free worker takes the head and what fits behind it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.sim.answers import prefilled
from has.sim.compiled import compiled
from has.sim.lines import first, pop, rank, record, waits, when
from has.sim.memory import (
    LOG_PREFILL,
    NEXT,
    POOL,
    PREFILL_LINE,
    PREFILL_REQUESTS,
    PREFILL_START,
    PREFILL_WORKER,
    TOKEN_BUDGET,
    TOTAL,
)
from has.sim.tables import whole_prefill_ns
from has.sim.tournament import first_within, least, put

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@compiled
def advance_pool(m: Ints, f: Floats, until: int) -> None:
    """Every start before `until`. Ends are known at the start: nothing here is repriced."""
    line, free = m[PREFILL_LINE], m[POOL]
    while waits(m, line):
        now = max(least(m, free), when(m, line))
        if now >= until:
            return
        worker = first_within(m, free, now)
        put(m, free, worker, _serve(m, f, worker, now))


@compiled
def _serve(m: Ints, f: Floats, worker: int, now: int) -> int:
    """One batch from the head of the line; returns when it ends."""
    line = m[PREFILL_LINE]
    size, tokens = 0, 0
    head, last = -1, -1
    while waits(m, line) and when(m, line) <= now:
        more = m[first(m, line) + TOTAL]
        if size > 0 and (tokens + more > m[TOKEN_BUDGET] or size == m[PREFILL_REQUESTS]):
            break
        request = pop(m, line)
        m[request + PREFILL_START] = now
        m[request + PREFILL_WORKER] = worker
        if size == 0:
            head = request
        else:
            m[last + NEXT] = request
        last = request
        tokens += more
        size += 1
    end = now + int(np.rint(whole_prefill_ns(m, f, size, tokens / size)))
    record(m, LOG_PREFILL, now, end, size, 0)
    request = head
    for _ in range(size):
        behind = m[request + NEXT]
        prefilled(m, request, end, rank(m, 1, worker))
        request = behind
    return end

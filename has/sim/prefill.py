"""The remote prefill pool: one line, the lowest free worker takes the head and what fits behind it."""

from __future__ import annotations

import numpy as np

from has.core.compiled import compiled
from has.sim.columns import LOG_PREFILL, NEXT, PREFILL_START, PREFILL_WORKER, TOTAL
from has.sim.encode import prefilled
from has.sim.heap import place, pop
from has.sim.lines import record
from has.sim.state import Rules, State
from has.sim.tables import Tables, prefill_ns


@compiled
def advance_pool(state: State, rules: Rules, tables: Tables, until: int) -> None:
    """Every start before `until`. Ends are known at the start: nothing here is repriced."""
    line, free = state.prefill_ready, state.pool_free
    while line[0, 0] > 0:
        soonest = free[0]
        for w in range(1, len(free)):
            soonest = min(soonest, free[w])
        now = max(line[1, 0], soonest)
        if now >= until:
            return
        worker = 0
        while free[worker] > now:
            worker += 1
        free[worker] = _serve(state, rules, tables, worker, now)


@compiled
def _serve(state: State, rules: Rules, tables: Tables, worker: int, now: int) -> int:
    """One batch from the head of the line; returns when it ends."""
    line, given, out = state.prefill_ready, state.given, state.out
    size, tokens = 0, 0
    first, last = -1, -1
    while line[0, 0] > 0 and line[1, 0] <= now:
        more = given[line[1, 3], TOTAL]
        if size > 0 and (tokens + more > rules.token_budget or size == rules.prefill_requests):
            break
        request = pop(line)
        out[request, PREFILL_START] = now
        out[request, PREFILL_WORKER] = worker
        if size == 0:
            first = request
        else:
            out[last, NEXT] = request
        last = request
        tokens += more
        size += 1
    end = now + int(np.rint(prefill_ns(tables, state.reach, state.tally, 0, size, tokens / size)))
    record(state.prefill_log, state.used, LOG_PREFILL, state.tally, now, end, size, 0)
    request = first
    for position in range(size):
        behind = out[request, NEXT]
        prefilled(state, rules, request, end, place(1, worker, position))
        request = behind
    return end

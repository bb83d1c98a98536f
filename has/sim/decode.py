"""The decode pool: continuous batching, joined at step boundaries, first come first served."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.sim.answers import answered
from has.sim.compiled import compiled
from has.sim.lines import join, leave, pop, waits, when
from has.sim.memory import (
    ADMITTED,
    COUNT,
    DECODE_LINE,
    DECODE_START,
    DECODE_WORKER,
    FIRST_BY_DECODE,
    FOREVER,
    HEAD,
    KV_ALL,
    KV_HELD,
    NEXT,
    NEXT_AT,
    RUNNING,
    STEPPERS_LOAD,
    STEPPERS_WAKE,
)
from has.sim.stepping import (
    admits,
    cut_run,
    finish_steps,
    kv_need,
    note_load,
    plan_run,
    run_ns,
    set_alarm,
    start_sequence,
    stepper_at,
)
from has.sim.tournament import first_within, least, put

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@compiled
def advance_decode(m: Ints, f: Floats, until: int) -> None:
    """Sequences that arrive before `until` are placed; workers run up to it (no step starts at `until`)."""
    line = m[DECODE_LINE]
    while waits(m, line) and when(m, line) < until:
        now = when(m, line)
        _advance_workers(m, f, now)
        _place(m, f, pop(m, line), now)
    _advance_workers(m, f, until)


@compiled
def _advance_workers(m: Ints, f: Floats, until: int) -> None:
    wake = m[STEPPERS_WAKE]
    while least(m, wake) <= until:
        worker = first_within(m, wake, until)
        stepper = stepper_at(m, worker)
        while m[stepper + NEXT_AT] < until:
            now = m[stepper + NEXT_AT]
            finish_steps(m, stepper, now, now)
            _start(m, f, stepper, now)
        if m[stepper + NEXT_AT] == until:
            finish_steps(m, stepper, until, until)
        set_alarm(m, worker, until)
        note_load(m, worker)


@compiled
def _place(m: Ints, f: Floats, request: int, now: int) -> None:
    """To the worker with most free KV tokens (fewest sequences where KV is unlimited), waiting ones counted."""
    worker = first_within(m, m[STEPPERS_LOAD], least(m, m[STEPPERS_LOAD]))
    stepper = stepper_at(m, worker)
    m[request + DECODE_WORKER] = worker
    m[stepper + KV_ALL] += kv_need(m, request)
    join(m, stepper, request)
    note_load(m, worker)
    if m[stepper + RUNNING] == 0:
        m[stepper + NEXT_AT] = now
        set_alarm(m, worker, now)
    elif m[stepper + COUNT] == 1 and m[stepper + NEXT_AT] > now and admits(m, stepper, request):
        cut_run(m, f, stepper, now)
        put(m, m[STEPPERS_WAKE], worker, m[stepper + NEXT_AT])


@compiled
def _start(m: Ints, f: Floats, stepper: int, now: int) -> None:
    """Who may join joins; then the next run of steps, if anybody decodes."""
    first, joined = m[stepper + HEAD], 0
    while m[stepper + COUNT] > 0 and admits(m, stepper, m[stepper + HEAD]):
        request = leave(m, stepper)
        m[stepper + ADMITTED] += 1
        m[stepper + KV_HELD] += kv_need(m, request)
        m[request + DECODE_START] = now
        start_sequence(m, stepper, request)
        joined += 1
    if m[stepper + RUNNING] == 0:
        m[stepper + NEXT_AT] = FOREVER
        return
    plan_run(m, f, stepper, now)
    if m[FIRST_BY_DECODE] == 1 and joined > 0:
        seen = now + run_ns(m, f, stepper, 1)
        request = first
        for _ in range(joined):
            answered(m, request, seen)
            request = m[request + NEXT]

"""What decode workers and iterating workers share: the running batch and its run of steps.

All running sequences advance together, so each needs only the number of its last step, kept in a
heap per worker (ENDS); CONTEXT is the sum of their contexts at the worker's next step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.sim.compiled import compiled
from has.sim.lines import record
from has.sim.memory import (
    ADMITTED,
    AT_DECODE,
    BEGAN,
    CONTEXT,
    COUNT,
    DECODE_AXIS,
    DECODE_POINTS,
    DECODE_RISKY,
    DECODE_ROWS,
    DECODE_SLOPES,
    DISAGGREGATED,
    ENDS,
    FINISH,
    KV_ALL,
    KV_HELD,
    KV_TOKENS,
    LOG_DECODE,
    MAX_SEQS,
    NEXT_AT,
    OUTPUT,
    PLAN,
    RUNNING,
    STATUS,
    STEP,
    STEPPER,
    STEPPERS,
    STEPPERS_LOAD,
    STEPPERS_WAKE,
    TOPOLOGY,
    TOTAL,
)
from has.sim.steps import steps_ns, steps_until
from has.sim.tables import linear, noted
from has.sim.tournament import put

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@compiled
def stepper_at(m: Ints, worker: int) -> int:
    return int(m[STEPPERS] + worker * STEPPER)


@compiled
def set_alarm(m: Ints, worker: int, now: int) -> None:
    """What happens next at `worker`, which has come to `now`: a start that waits for the arrivals of
    this instant is due at the next."""
    when = m[stepper_at(m, worker) + NEXT_AT]
    put(m, m[STEPPERS_WAKE], worker, when + 1 if when == now else when)


@compiled
def note_load(m: Ints, worker: int) -> None:
    """How much stands at `worker`, for whoever assigns the next: KV tokens (disaggregated, where
    bounded), else sequences; waiting ones counted."""
    if m[STEPPERS_LOAD] > 0:
        stepper = stepper_at(m, worker)
        load = m[stepper + ADMITTED] + m[stepper + COUNT]
        if m[TOPOLOGY] == DISAGGREGATED and m[KV_TOKENS] >= 0:
            load = m[stepper + KV_ALL]
        put(m, m[STEPPERS_LOAD], worker, load)


@compiled
def kv_need(m: Ints, request: int) -> int:
    """KV tokens that a request reserves while it decodes."""
    return int(m[request + TOTAL] + m[request + OUTPUT])


@compiled
def admits(m: Ints, stepper: int, request: int) -> bool:
    """Would `request` be let in now?"""
    fits = m[KV_TOKENS] < 0 or m[stepper + KV_HELD] + kv_need(m, request) <= m[KV_TOKENS]
    return bool(fits and m[stepper + ADMITTED] < m[MAX_SEQS])


@compiled
def start_sequence(m: Ints, stepper: int, request: int) -> None:
    """`request` decodes from the worker's next step on, output-1 steps, the first at context total+1."""
    last = m[stepper + STEP] + m[request + OUTPUT] - 1
    ends = m[stepper + ENDS]
    i = m[stepper + RUNNING] + 1
    m[stepper + RUNNING] = i
    m[stepper + CONTEXT] += m[request + TOTAL] + 1
    while i > 1 and m[ends + 2 * (i >> 1)] > last:
        m[ends + 2 * i], m[ends + 2 * i + 1] = m[ends + 2 * (i >> 1)], m[ends + 2 * (i >> 1) + 1]
        i >>= 1
    m[ends + 2 * i], m[ends + 2 * i + 1] = last, request


@compiled
def _drop_first(m: Ints, ends: int, size: int) -> None:
    """Remove the first of the heap's `size` entries."""
    last, request = m[ends + 2 * size], m[ends + 2 * size + 1]
    i = 1
    while 2 * i < size:
        child = 2 * i
        if child + 1 < size and m[ends + 2 * child + 2] < m[ends + 2 * child]:
            child += 1
        if m[ends + 2 * child] >= last:
            break
        m[ends + 2 * i], m[ends + 2 * i + 1] = m[ends + 2 * child], m[ends + 2 * child + 1]
        i = child
    m[ends + 2 * i], m[ends + 2 * i + 1] = last, request


@compiled
def finish_steps(m: Ints, stepper: int, now: int, decode_end: int) -> None:
    """The planned steps are done; sequences at their last step end. Decode's part of them ended at `decode_end`."""
    if m[stepper + PLAN] > 0 and m[stepper + RUNNING] > 0:
        record(m, LOG_DECODE, m[stepper + BEGAN], decode_end, m[stepper + RUNNING], m[stepper + PLAN])
        m[stepper + STEP] += m[stepper + PLAN]
        m[stepper + CONTEXT] += m[stepper + PLAN] * m[stepper + RUNNING]
        ends = m[stepper + ENDS]
        while m[stepper + RUNNING] > 0 and m[ends + 2] == m[stepper + STEP]:
            request = m[ends + 3]
            _drop_first(m, ends, m[stepper + RUNNING])
            m[stepper + RUNNING] -= 1
            m[stepper + CONTEXT] -= kv_need(m, request)
            end_sequence(m, stepper, request, now)
    m[stepper + PLAN] = 0


@compiled
def end_sequence(m: Ints, stepper: int, request: int, now: int) -> None:
    need = kv_need(m, request)
    m[stepper + ADMITTED] -= 1
    m[stepper + KV_HELD] -= need
    m[stepper + KV_ALL] -= need
    m[request + FINISH] = now
    m[request + STATUS] = 1


@compiled
def plan_run(m: Ints, f: Floats, stepper: int, now: int) -> None:
    """Step on until a sequence ends."""
    m[stepper + PLAN] = m[m[stepper + ENDS] + 2] - m[stepper + STEP]
    m[stepper + BEGAN] = now
    m[stepper + NEXT_AT] = now + run_ns(m, f, stepper, m[stepper + PLAN])


@compiled
def step_ns(m: Ints, f: Floats, batch: int, context: float) -> float:
    """One step of `batch` sequences at this mean context, unrounded."""
    row = m[DECODE_ROWS] + batch * m[DECODE_POINTS]
    return noted(m, AT_DECODE, batch, context, linear(f, m[DECODE_AXIS], m[DECODE_POINTS], row, context))


@compiled
def run_ns(m: Ints, f: Floats, stepper: int, steps: int) -> int:
    """Duration of the running batch's next `steps` steps."""
    batch, points = m[stepper + RUNNING], m[DECODE_POINTS]
    context = m[stepper + CONTEXT] / batch
    if m[DECODE_RISKY] == 1:
        step_ns(m, f, batch, context)
        step_ns(m, f, batch, context + steps - 1)
    else:
        noted(m, AT_DECODE, batch, context + steps - 1, 0.0)
    row = batch * points
    took = steps_ns(f, m[DECODE_AXIS], points, m[DECODE_ROWS] + row, m[DECODE_SLOPES] + row, context, steps)
    return int(max(0, took))


@compiled
def cut_run(m: Ints, f: Floats, stepper: int, when: int) -> None:
    """End the run under way at the first step boundary at or after `when`."""
    batch, points = m[stepper + RUNNING], m[DECODE_POINTS]
    context = m[stepper + CONTEXT] / batch
    steps, took = steps_until(
        f,
        m[DECODE_AXIS],
        points,
        m[DECODE_ROWS] + batch * points,
        m[DECODE_SLOPES] + batch * points,
        context,
        when - m[stepper + BEGAN],
        m[stepper + PLAN],
    )
    if steps < m[stepper + PLAN]:
        m[stepper + PLAN] = steps
        m[stepper + NEXT_AT] = m[stepper + BEGAN] + took

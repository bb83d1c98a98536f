"""What decode workers and iterating workers share: the running batch and its run of steps.

All running sequences advance together, so each needs only the number of its last step, kept in a
heap per worker; S_CONTEXT is the sum of their contexts at the worker's next step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.core.compiled import compiled
from has.sim.columns import (
    AT_DECODE,
    COUNT,
    FINISH,
    NEGATIVE,
    OUTPUT,
    S_ADMITTED,
    S_CONTEXT,
    S_KV_ALL,
    S_KV_HELD,
    S_NEXT,
    S_PLAN,
    S_RUNNING,
    S_SINCE,
    S_STEP,
    STATUS,
    TOTAL,
)
from has.sim.state import State
from has.sim.steps import steps_ns, steps_until
from has.sim.tables import Tables, linear

Ints = NDArray[np.int64]


@compiled
def start_sequence(ends: Ints, stepper: Ints, request: int, total: int, output: int) -> None:
    """`request` decodes from the worker's next step on, output-1 steps, the first at context total+1."""
    last = stepper[S_STEP] + output - 1
    i = stepper[S_RUNNING] + 1
    stepper[S_RUNNING] = i
    stepper[S_CONTEXT] += total + 1
    while i > 1 and ends[i >> 1, 0] > last:
        ends[i, 0], ends[i, 1] = ends[i >> 1, 0], ends[i >> 1, 1]
        i >>= 1
    ends[i, 0], ends[i, 1] = last, request


@compiled
def _drop_first(ends: Ints, size: int) -> None:
    """Remove the heap's first of `size`."""
    last, request = ends[size, 0], ends[size, 1]
    i = 1
    while 2 * i < size:
        child = 2 * i
        if child + 1 < size and ends[child + 1, 0] < ends[child, 0]:
            child += 1
        if ends[child, 0] >= last:
            break
        ends[i, 0], ends[i, 1] = ends[child, 0], ends[child, 1]
        i = child
    ends[i, 0], ends[i, 1] = last, request


@compiled
def finish_steps(state: State, worker: int, now: int) -> None:
    """The planned steps are done: sequences at their last step end and give back what they held."""
    stepper, ends = state.steppers[worker], state.ends[worker]
    stepper[S_STEP] += stepper[S_PLAN]
    stepper[S_CONTEXT] += stepper[S_PLAN] * stepper[S_RUNNING]
    stepper[S_PLAN] = 0
    while stepper[S_RUNNING] > 0 and ends[1, 0] == stepper[S_STEP]:
        request = ends[1, 1]
        _drop_first(ends, stepper[S_RUNNING])
        stepper[S_RUNNING] -= 1
        stepper[S_CONTEXT] -= state.given[request, TOTAL] + state.given[request, OUTPUT]
        end_sequence(state, stepper, request, now)


@compiled
def end_sequence(state: State, stepper: Ints, request: int, now: int) -> None:
    held = state.given[request, TOTAL] + state.given[request, OUTPUT]
    stepper[S_ADMITTED] -= 1
    stepper[S_KV_HELD] -= held
    stepper[S_KV_ALL] -= held
    state.out[request, FINISH] = now
    state.out[request, STATUS] = 1


@compiled
def admits(stepper: Ints, need: int, max_seqs: int, kv_tokens: int) -> bool:
    """Would a sequence that reserves `need` KV tokens be let in now?"""
    return bool(
        stepper[S_ADMITTED] < max_seqs and (kv_tokens < 0 or stepper[S_KV_HELD] + need <= kv_tokens)
    )


@compiled
def plan_run(state: State, tables: Tables, worker: int, now: int) -> None:
    """Step on until a sequence ends."""
    stepper = state.steppers[worker]
    stepper[S_PLAN] = state.ends[worker, 1, 0] - stepper[S_STEP]
    stepper[S_SINCE] = now
    stepper[S_NEXT] = now + run_ns(state, tables, stepper, stepper[S_PLAN])


@compiled
def run_ns(state: State, tables: Tables, stepper: Ints, steps: int) -> int:
    """Duration of the running batch's next `steps` steps."""
    batch = stepper[S_RUNNING]
    context = stepper[S_CONTEXT] / batch
    row = tables.decode[batch]
    state.reach[AT_DECODE, 0] = max(state.reach[AT_DECODE, 0], batch)
    state.reach[AT_DECODE, 1] = max(state.reach[AT_DECODE, 1], int(context) + steps)
    if linear(tables.decode_tokens, row, context) < 0.0 or (
        linear(tables.decode_tokens, row, context + steps - 1) < 0.0
    ):
        state.tally[NEGATIVE] = 1 + AT_DECODE
        return 0
    return int(steps_ns(tables.decode_tokens, row, context, steps))


@compiled
def cut_run(stepper: Ints, tables: Tables, when: int) -> None:
    """End the run under way at the first step boundary at or after `when`."""
    batch = stepper[S_RUNNING]
    context = stepper[S_CONTEXT] / batch
    row = tables.decode[batch]
    steps = steps_until(tables.decode_tokens, row, context, when - stepper[S_SINCE], stepper[S_PLAN])
    if steps < stepper[S_PLAN]:
        stepper[S_PLAN] = steps
        stepper[S_NEXT] = stepper[S_SINCE] + steps_ns(tables.decode_tokens, row, context, steps)


@compiled
def emptiest(state: State, kv_tokens: int) -> int:
    """The worker with most free KV tokens (fewest sequences where KV is unlimited), waiting ones counted."""
    best, least = 0, -1
    for w in range(len(state.steppers)):
        stepper = state.steppers[w]
        load = stepper[S_KV_ALL] if kv_tokens >= 0 else stepper[S_ADMITTED] + stepper[COUNT]
        if least < 0 or load < least:
            best, least = w, load
    return best

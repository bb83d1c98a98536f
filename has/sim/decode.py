"""The decode pool: continuous batching, joined at step boundaries, first come first served."""

from __future__ import annotations

from has.core.compiled import compiled
from has.sim.columns import (
    COUNT,
    DECODE_START,
    DECODE_WORKER,
    FOREVER,
    HEAD,
    LOG_DECODE,
    NEXT,
    OUTPUT,
    S_ADMITTED,
    S_KV_ALL,
    S_KV_HELD,
    S_NEXT,
    S_PLAN,
    S_RUNNING,
    S_SINCE,
    TOTAL,
)
from has.sim.encode import answered
from has.sim.heap import pop
from has.sim.lines import join, leave, record
from has.sim.state import Rules, State
from has.sim.stepping import (
    admits,
    cut_run,
    emptiest,
    finish_steps,
    plan_run,
    run_ns,
    start_sequence,
)
from has.sim.tables import Tables


@compiled
def advance_decode(state: State, rules: Rules, tables: Tables, until: int) -> None:
    """Sequences that arrive before `until` are placed; workers run up to it (no step starts at `until`)."""
    line = state.decode_ready
    while line[0, 0] > 0 and line[1, 0] < until:
        now = line[1, 0]
        _advance_workers(state, rules, tables, now)
        _place(state, rules, tables, pop(line), now)
    _advance_workers(state, rules, tables, until)


@compiled
def _advance_workers(state: State, rules: Rules, tables: Tables, until: int) -> None:
    for w in range(len(state.steppers)):
        stepper = state.steppers[w]
        while stepper[S_NEXT] < until:
            now = stepper[S_NEXT]
            _finish(state, w, now)
            _start(state, rules, tables, w, now)
        if stepper[S_NEXT] == until:
            _finish(state, w, until)


@compiled
def _place(state: State, rules: Rules, tables: Tables, request: int, now: int) -> None:
    worker = emptiest(state, rules.kv_tokens)
    stepper = state.steppers[worker]
    need = state.given[request, TOTAL] + state.given[request, OUTPUT]
    state.out[request, DECODE_WORKER] = worker
    stepper[S_KV_ALL] += need
    join(stepper, state.out, request)
    if stepper[S_RUNNING] == 0:
        stepper[S_NEXT] = now
    elif (
        stepper[COUNT] == 1
        and stepper[S_NEXT] > now
        and admits(stepper, need, rules.max_seqs, rules.kv_tokens)
    ):
        cut_run(stepper, tables, now)


@compiled
def _finish(state: State, worker: int, now: int) -> None:
    stepper = state.steppers[worker]
    if stepper[S_PLAN] > 0:
        record(
            state.decode_log,
            state.used,
            LOG_DECODE,
            state.tally,
            stepper[S_SINCE],
            now,
            stepper[S_RUNNING],
            stepper[S_PLAN],
        )
        finish_steps(state, worker, now)


@compiled
def _start(state: State, rules: Rules, tables: Tables, worker: int, now: int) -> None:
    stepper, given, out = state.steppers[worker], state.given, state.out
    first = stepper[HEAD]
    joined = 0
    while stepper[COUNT] > 0:
        request = stepper[HEAD]
        need = given[request, TOTAL] + given[request, OUTPUT]
        if not admits(stepper, need, rules.max_seqs, rules.kv_tokens):
            break
        leave(stepper, out)
        stepper[S_ADMITTED] += 1
        stepper[S_KV_HELD] += need
        out[request, DECODE_START] = now
        start_sequence(state.ends[worker], stepper, request, given[request, TOTAL], given[request, OUTPUT])
        joined += 1
    if stepper[S_RUNNING] == 0:
        stepper[S_NEXT] = FOREVER
        return
    plan_run(state, tables, worker, now)
    if rules.first_by_decode and joined > 0:
        seen = now + run_ns(state, tables, stepper, 1)
        request = first
        for _ in range(joined):
            answered(state, rules, request, seen)
            request = out[request, NEXT]

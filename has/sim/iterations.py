"""Workers that prefill and decode in one loop: the PD pool of e_pd, and monolithic workers.

An iteration decodes one token of every running sequence and spends what is left of the token budget
on prefill chunks, first come first served; at most one request is partly prefilled. While nothing is
prefilled, iterations are plain decode steps and run in closed form.
"""

from __future__ import annotations

import numpy as np

from has.core.compiled import compiled
from has.sim.columns import (
    AT_DECODE,
    COUNT,
    DECODE_READY,
    DECODE_START,
    DECODE_WORKER,
    FOREVER,
    HEAD,
    IS_MEDIA,
    LOG_DECODE,
    LOG_ENCODE,
    LOG_PREFILL,
    MEDIA_TOKENS,
    MONOLITHIC,
    NEXT,
    OUTPUT,
    PREFILL_READY,
    PREFILL_START,
    PREFILL_WORKER,
    S_ADMITTED,
    S_CONTEXT,
    S_DECODE_NS,
    S_DONE,
    S_KV_ALL,
    S_KV_HELD,
    S_NEXT,
    S_PART,
    S_PLAN,
    S_PREFILLED,
    S_PREFILLED_COUNT,
    S_RUNNING,
    S_SINCE,
    TOTAL,
)
from has.sim.encode import answered
from has.sim.lines import join, leave, record
from has.sim.state import Rules, State
from has.sim.stepping import (
    admits,
    cut_run,
    end_sequence,
    finish_steps,
    plan_run,
    start_sequence,
)
from has.sim.tables import Tables, encode_ns, linear, note, prefill_ns


@compiled
def advance_iterations(state: State, rules: Rules, tables: Tables, w: int, until: int) -> None:
    """Worker `w` up to `until`: what completes then is completed, no iteration starts then."""
    stepper = state.steppers[w]
    while stepper[S_NEXT] < until:
        now = stepper[S_NEXT]
        _finish(state, w, now)
        _start(state, rules, tables, w, now)
    if stepper[S_NEXT] == until:
        _finish(state, w, until)


@compiled
def enqueue(state: State, rules: Rules, tables: Tables, worker: int, request: int, now: int) -> None:
    """`request` waits for its prefill at `worker`."""
    stepper, given = state.steppers[worker], state.given
    state.out[request, PREFILL_READY] = now
    state.out[request, PREFILL_WORKER] = worker
    join(stepper, state.out, request)
    if stepper[S_NEXT] == FOREVER:
        stepper[S_NEXT] = now
        return
    pure_decode = stepper[S_PREFILLED_COUNT] == 0 and stepper[S_PART] < 0 and stepper[S_DECODE_NS] < 0
    need = given[request, TOTAL] + given[request, OUTPUT]
    if (
        pure_decode
        and stepper[COUNT] == 1
        and stepper[S_NEXT] > now
        and rules.token_budget > stepper[S_RUNNING]
        and admits(stepper, need, rules.max_seqs, rules.kv_tokens)
    ):
        cut_run(stepper, tables, now)


@compiled
def _finish(state: State, worker: int, now: int) -> None:
    stepper, given, out = state.steppers[worker], state.given, state.out
    if stepper[S_PLAN] > 0 and stepper[S_RUNNING] > 0:
        mixed = stepper[S_DECODE_NS]
        end = now if mixed < 0 else stepper[S_SINCE] + mixed
        record(
            state.decode_log,
            state.used,
            LOG_DECODE,
            state.tally,
            stepper[S_SINCE],
            end,
            stepper[S_RUNNING],
            stepper[S_PLAN],
        )
        finish_steps(state, worker, now)
    stepper[S_PLAN] = 0
    request = stepper[S_PREFILLED]
    for _ in range(stepper[S_PREFILLED_COUNT]):
        behind = out[request, NEXT]
        if given[request, OUTPUT] == 1:
            end_sequence(state, stepper, request, now)
        else:
            out[request, DECODE_READY] = now
            out[request, DECODE_START] = now
            out[request, DECODE_WORKER] = worker
            start_sequence(
                state.ends[worker], stepper, request, given[request, TOTAL], given[request, OUTPUT]
            )
        request = behind
    stepper[S_PREFILLED_COUNT] = 0


@compiled
def _start(state: State, rules: Rules, tables: Tables, worker: int, now: int) -> None:
    """The next iteration, or run of plain decode iterations."""
    stepper, given, out = state.steppers[worker], state.given, state.out
    reach, tally = state.reach, state.tally
    left = rules.token_budget - stepper[S_RUNNING]
    chunks, tokens, last = 0, 0, -1
    extra, encode = 0.0, 0.0
    while left > 0:
        done = 0
        request = stepper[S_PART]
        if request >= 0:
            done = stepper[S_DONE]
        else:
            if stepper[COUNT] == 0:
                break
            request = stepper[HEAD]
            need = given[request, TOTAL] + given[request, OUTPUT]
            if not admits(stepper, need, rules.max_seqs, rules.kv_tokens):
                break
            leave(stepper, out)
            stepper[S_ADMITTED] += 1
            stepper[S_KV_HELD] += need
            stepper[S_KV_ALL] += need
            out[request, PREFILL_START] = now
            if rules.topology == MONOLITHIC and given[request, IS_MEDIA] == 1:
                pass_ns = encode_ns(tables, reach, tally, 1, float(given[request, MEDIA_TOKENS]))
                encode += pass_ns
                end = now + int(np.rint(pass_ns))
                record(state.encode_log, state.used, LOG_ENCODE, tally, now, end, 1, 0)
        chunk = min(left, given[request, TOTAL] - done)
        if done > 0:
            extra += _earlier_context_ns(state, tables, done, chunk)
        chunks += 1
        tokens += chunk
        left -= chunk
        stepper[S_DONE] = done + chunk
        if stepper[S_DONE] < given[request, TOTAL]:
            stepper[S_PART] = request
            break
        stepper[S_PART] = -1
        if stepper[S_PREFILLED_COUNT] == 0:
            stepper[S_PREFILLED] = request
        else:
            out[last, NEXT] = request
        last = request
        stepper[S_PREFILLED_COUNT] += 1
    stepper[S_DECODE_NS] = -1
    if chunks == 0:
        if stepper[S_RUNNING] == 0:
            stepper[S_NEXT] = FOREVER
        else:
            plan_run(state, tables, worker, now)
        return
    decode = 0.0
    batch = stepper[S_RUNNING]
    if batch > 0:
        context = stepper[S_CONTEXT] / batch
        decode = linear(tables.decode_tokens, tables.decode[batch], context)
        decode = note(reach, tally, AT_DECODE, batch, context, decode)
    prefill = max(0.0, prefill_ns(tables, reach, tally, 0, chunks, tokens / chunks) + extra)
    end = now + int(np.rint(decode + prefill + encode))
    record(
        state.prefill_log, state.used, LOG_PREFILL, tally, now, now + int(np.rint(prefill)), chunks, 0
    )
    stepper[S_DECODE_NS] = int(np.rint(decode))
    stepper[S_PLAN] = 1
    stepper[S_SINCE] = now
    stepper[S_NEXT] = end
    request = stepper[S_PREFILLED]
    for _ in range(stepper[S_PREFILLED_COUNT]):
        answered(state, rules, request, end)
        request = out[request, NEXT]


@compiled
def _earlier_context_ns(state: State, tables: Tables, done: int, chunk: int) -> float:
    """What `done` tokens of earlier context add to a chunk; 0 where prefill is linear in tokens."""
    reach, tally = state.reach, state.tally
    return (
        prefill_ns(tables, reach, tally, 0, 1, float(done + chunk))
        - prefill_ns(tables, reach, tally, 0, 1, float(done))
        - prefill_ns(tables, reach, tally, 0, 1, float(chunk))
        + prefill_ns(tables, reach, tally, 0, 1, 0.0)
    )

"""Workers that prefill and decode in one loop: the PD pool of e_pd, and monolithic workers.

An iteration decodes one token of every running sequence and spends what is left of the token budget
on prefill chunks, first come first served; at most one request is partly prefilled. While nothing is
prefilled, iterations are plain decode steps and run in closed form.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.sim.answers import answered
from has.sim.compiled import compiled
from has.sim.lines import join, leave, record
from has.sim.memory import (
    ADMITTED,
    BEGAN,
    CONTEXT,
    COUNT,
    DECODE_NS,
    DECODE_READY,
    DECODE_START,
    DECODE_WORKER,
    DONE,
    FOREVER,
    HEAD,
    IS_MEDIA,
    KV_ALL,
    KV_HELD,
    LOG_ENCODE,
    LOG_PREFILL,
    MEDIA_TOKENS,
    MONOLITHIC,
    N_PREFILLED,
    NEVER,
    NEXT,
    NEXT_AT,
    OUTPUT,
    PART,
    PLAN,
    PREFILL_READY,
    PREFILL_START,
    PREFILL_WORKER,
    PREFILLED,
    RUNNING,
    STEPPERS_WAKE,
    TOKEN_BUDGET,
    TOPOLOGY,
    TOTAL,
)
from has.sim.stepping import (
    admits,
    cut_run,
    end_sequence,
    finish_steps,
    kv_need,
    note_load,
    plan_run,
    set_alarm,
    start_sequence,
    step_ns,
    stepper_at,
)
from has.sim.tables import encode_ns, whole_prefill_ns
from has.sim.tournament import first_within, least

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@compiled
def advance_iterations(m: Ints, f: Floats, worker: int, until: int) -> None:
    """`worker` up to `until`: what completes then is completed, no iteration starts then."""
    stepper = stepper_at(m, worker)
    if m[stepper + NEXT_AT] > until:
        return
    while m[stepper + NEXT_AT] < until:
        now = m[stepper + NEXT_AT]
        _finish(m, worker, now)
        _start(m, f, stepper, now)
    if m[stepper + NEXT_AT] == until:
        _finish(m, worker, until)
    set_alarm(m, worker, until)


@compiled
def advance_all_iterations(m: Ints, f: Floats, until: int) -> None:
    while least(m, m[STEPPERS_WAKE]) <= until:
        advance_iterations(m, f, first_within(m, m[STEPPERS_WAKE], until), until)


@compiled
def enqueue(m: Ints, f: Floats, worker: int, request: int, now: int) -> None:
    """`request` waits for its prefill at `worker`."""
    stepper = stepper_at(m, worker)
    m[request + PREFILL_READY] = now
    m[request + PREFILL_WORKER] = worker
    join(m, stepper, request)
    if m[stepper + NEXT_AT] == FOREVER:
        m[stepper + NEXT_AT] = now
    elif (
        m[stepper + NEXT_AT] > now
        and m[stepper + DECODE_NS] == NEVER
        and m[stepper + PART] == NEVER
        and m[stepper + COUNT] == 1
        and m[TOKEN_BUDGET] > m[stepper + RUNNING]
        and admits(m, stepper, request)
    ):
        cut_run(m, f, stepper, now)
    set_alarm(m, worker, now)
    note_load(m, worker)


@compiled
def _finish(m: Ints, worker: int, now: int) -> None:
    """The iteration, or run of them, is done: tokens, and prefills that are complete."""
    stepper = stepper_at(m, worker)
    decode_ns = m[stepper + DECODE_NS]
    finish_steps(m, stepper, now, now if decode_ns == NEVER else m[stepper + BEGAN] + decode_ns)
    request = m[stepper + PREFILLED]
    for _ in range(m[stepper + N_PREFILLED]):
        behind = m[request + NEXT]
        if m[request + OUTPUT] == 1:
            end_sequence(m, stepper, request, now)
        else:
            m[request + DECODE_READY] = now
            m[request + DECODE_START] = now
            m[request + DECODE_WORKER] = worker
            start_sequence(m, stepper, request)
        request = behind
    m[stepper + N_PREFILLED] = 0
    note_load(m, worker)


@compiled
def _start(m: Ints, f: Floats, stepper: int, now: int) -> None:
    """The next iteration; or, where there is nothing to prefill, a run of plain decode steps."""
    left = m[TOKEN_BUDGET] - m[stepper + RUNNING]
    chunks, tokens, last = 0, 0, -1
    extra, encode = 0.0, 0.0
    while left > 0:
        request, done = m[stepper + PART], m[stepper + DONE]
        if request == NEVER:
            if m[stepper + COUNT] == 0 or not admits(m, stepper, m[stepper + HEAD]):
                break
            request, done = leave(m, stepper), 0
            m[stepper + ADMITTED] += 1
            m[stepper + KV_HELD] += kv_need(m, request)
            m[stepper + KV_ALL] += kv_need(m, request)
            m[request + PREFILL_START] = now
            if m[TOPOLOGY] == MONOLITHIC and m[request + IS_MEDIA] == 1:
                pass_ns = encode_ns(m, f, 1, float(m[request + MEDIA_TOKENS]))
                record(m, LOG_ENCODE, now, now + int(np.rint(pass_ns)), 1, 0)
                encode += pass_ns
        chunk = min(left, m[request + TOTAL] - done)
        if done > 0:
            extra += _earlier_context_ns(m, f, done, chunk)
        chunks += 1
        tokens += chunk
        left -= chunk
        if done + chunk < m[request + TOTAL]:
            m[stepper + PART], m[stepper + DONE] = request, done + chunk
            break
        m[stepper + PART] = NEVER
        if m[stepper + N_PREFILLED] == 0:
            m[stepper + PREFILLED] = request
        else:
            m[last + NEXT] = request
        last = request
        m[stepper + N_PREFILLED] += 1
    m[stepper + DECODE_NS] = NEVER
    if chunks > 0:
        _iterate(m, f, stepper, chunks, tokens, extra, encode, now)
    elif m[stepper + RUNNING] > 0:
        plan_run(m, f, stepper, now)
    else:
        m[stepper + NEXT_AT] = FOREVER


@compiled
def _iterate(
    m: Ints, f: Floats, stepper: int, chunks: int, tokens: int, extra: float, encode: float, now: int
) -> None:
    """One iteration with `chunks` prefill chunks of `tokens` in all."""
    batch = m[stepper + RUNNING]
    decode = step_ns(m, f, batch, m[stepper + CONTEXT] / batch) if batch > 0 else 0.0
    prefill = max(0.0, whole_prefill_ns(m, f, chunks, tokens / chunks) + extra)
    record(m, LOG_PREFILL, now, now + int(np.rint(prefill)), chunks, 0)
    m[stepper + DECODE_NS] = int(np.rint(decode))
    m[stepper + PLAN] = 1
    m[stepper + BEGAN] = now
    m[stepper + NEXT_AT] = now + int(np.rint(decode + prefill + encode))
    request = m[stepper + PREFILLED]
    for _ in range(m[stepper + N_PREFILLED]):
        answered(m, request, m[stepper + NEXT_AT])
        request = m[request + NEXT]


@compiled
def _earlier_context_ns(m: Ints, f: Floats, done: int, chunk: int) -> float:
    """What `done` tokens of earlier context add to a chunk; 0 where prefill is linear in tokens."""
    return (
        whole_prefill_ns(m, f, 1, float(done + chunk))
        - whole_prefill_ns(m, f, 1, float(done))
        - whole_prefill_ns(m, f, 1, float(chunk))
        + whole_prefill_ns(m, f, 1, 0.0)
    )

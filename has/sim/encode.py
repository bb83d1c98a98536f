"""Encode workers, their micro-batchers, and the local prefill that shares their GPUs.

A group is SPAN consecutive encode workers and the one local prefill queue that spans them. Within an
instant completions come first, then starts: encode by worker, then local prefill; then whatever runs
is repriced if what runs beside it has changed; and so on until nothing changes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.policy.microbatch import FULL as REASON_FULL
from has.policy.microbatch import due_ns, reason_at
from has.policy.offload import step as route_step
from has.policy.rate import WINDOW
from has.policy.rate import step as rate_step
from has.sim.compiled import behind, compiled
from has.sim.lines import join, leave, left_at, push, rank, record
from has.sim.memory import (
    ALONE,
    BATCH,
    BATCH_BOUND,
    BESIDE,
    BUSY,
    COEFFICIENT,
    COUNT,
    DECODE_LINE,
    DECODE_READY,
    DEFICIT,
    EMBEDDING_NS,
    ENCODE_BESIDE,
    ENCODE_END,
    ENCODE_START,
    ENCODE_WORKER,
    ENCODER,
    ENCODERS,
    ENCODERS_LOAD,
    END,
    FINISH,
    FIRST,
    FIRST_BY_DECODE,
    FIRST_TOKEN,
    FIRST_TOKENS,
    FOREVER,
    FULL,
    GAP,
    GROUP,
    GROUPS,
    GROUPS_WAKE,
    HEAD,
    KV_NS,
    LAST_ADD,
    LEFT,
    LEVEL,
    LOCAL,
    LOG_ENCODE,
    LOG_LOCAL,
    MAX_QUEUE,
    MAX_WAIT,
    MEAN,
    MEDIA_TOKENS,
    NEXT,
    OF,
    ONLINE,
    OUTPUT,
    PACE,
    PREFILL_BESIDE,
    PREFILL_LINE,
    PREFILL_READY,
    PREFILL_REQUESTS,
    PREFILL_START,
    PREFILL_WORKER,
    RATE_AT,
    READY,
    REMOTE,
    ROUTE,
    SHARE_DENOMINATOR,
    SHARE_NUMERATOR,
    SHARES,
    SINCE,
    SIZE,
    SPAN,
    STATUS,
    TOKEN_BUDGET,
    TOKEN_UNIT,
    TOTAL,
    WAKE,
)
from has.sim.tables import encode_beside_ns, encode_ns, prefill_beside_ns, prefill_ns
from has.sim.tournament import first_within, least, put

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

RATE_STATE = WINDOW + 4
"""Room kept for one online rate estimate."""


@compiled
def _encoder(m: Ints, worker: int) -> int:
    return int(m[ENCODERS] + worker * ENCODER)


@compiled
def _group(m: Ints, g: int) -> int:
    return int(m[GROUPS] + g * GROUP)


@compiled
def group_of(m: Ints, worker: int) -> int:
    return int(m[_encoder(m, worker) + OF])


@compiled
def _route(m: Ints, encoder: int, request: int) -> int:
    """Local or remote, by this worker's own router."""
    if m[SHARE_NUMERATOR] == 0:
        return LOCAL
    if m[SHARE_NUMERATOR] == m[SHARE_DENOMINATOR]:
        return REMOTE
    m[encoder + DEFICIT], remote = route_step(
        m[encoder + DEFICIT],
        m[SHARE_NUMERATOR],
        m[SHARE_DENOMINATOR],
        m[request + TOTAL],
        m[TOKEN_UNIT] == 1,
    )
    return REMOTE if remote else LOCAL


@compiled
def add_media(m: Ints, f: Floats, worker: int, request: int, now: int) -> None:
    """A media request joins the batcher of `worker`."""
    encoder = _encoder(m, worker)
    join(m, encoder, request)
    m[encoder + LAST_ADD] = now
    m[request + ENCODE_WORKER] = worker
    if m[ONLINE] == 1:
        at = m[encoder + RATE_AT]
        rate = rate_step(behind(m, at), now)
        gap = 0.0
        if f[COEFFICIENT] > 0.0:
            gap = f[COEFFICIENT] / rate * 1e9 if rate > 0.0 else np.inf
        m[encoder + GAP] = int(np.rint(gap)) if gap < FOREVER else -1
    _note_load(m, worker)
    g = m[encoder + OF]
    if m[_group(m, g) + WAKE] > now:
        _set_alarm(m, g, max(now, _next(m, g)), now)


@compiled
def _note_load(m: Ints, worker: int) -> None:
    """Requests that wait or are encoded at `worker`, where dispatch asks."""
    if m[ENCODERS_LOAD] > 0:
        encoder = _encoder(m, worker)
        put(m, m[ENCODERS_LOAD], worker, m[encoder + COUNT] + m[encoder + BUSY] * m[encoder + SIZE])


@compiled
def _set_alarm(m: Ints, g: int, when: int, now: int) -> None:
    """Something happens to group `g`, which has come to `now`, at `when`; if that is now, a start,
    which waits for the arrivals of this instant."""
    m[_group(m, g) + WAKE] = when
    put(m, m[GROUPS_WAKE], g, when + 1 if when == now else when)


@compiled
def add_text(m: Ints, worker: int, request: int, now: int) -> None:
    """A text request passes straight through the router of `worker`."""
    m[request + ENCODE_WORKER] = worker
    m[request + PREFILL_READY] = now
    m[request + ROUTE] = _route(m, _encoder(m, worker), request)
    if m[request + ROUTE] == REMOTE:
        push(m, m[PREFILL_LINE], now, FOREVER, request, request)
    else:
        g = group_of(m, worker)
        join(m, _group(m, g), request)
        if m[_group(m, g) + BUSY] == 0:
            _set_alarm(m, g, now, now)


@compiled
def advance_group(m: Ints, f: Floats, g: int, until: int) -> None:
    """Everything of group `g` before `until`, and what completes at `until`; no starts at `until`."""
    group = _group(m, g)
    if m[group + WAKE] > until:
        return
    while m[group + WAKE] < until:
        _instant(m, f, g, m[group + WAKE], until)
    if m[group + WAKE] == until:
        _instant(m, f, g, until, until)
    _set_alarm(m, g, m[group + WAKE], until)


@compiled
def advance_groups(m: Ints, f: Floats, until: int) -> None:
    while least(m, m[GROUPS_WAKE]) <= until:
        advance_group(m, f, first_within(m, m[GROUPS_WAKE], until), until)


@compiled
def _instant(m: Ints, f: Floats, g: int, now: int, until: int) -> None:
    group = _group(m, g)
    first, beyond = g * m[SPAN], (g + 1) * m[SPAN]
    again = True
    while again:
        for worker in range(first, beyond):
            encoder = _encoder(m, worker)
            if m[encoder + BUSY] == 1 and m[encoder + END] == now:
                _complete_encode(m, worker, now)
        if m[group + BUSY] == 1 and m[group + END] == now:
            _complete_prefill(m, g, now)
        if now == until:
            m[group + WAKE] = now
            return
        for worker in range(first, beyond):
            encoder = _encoder(m, worker)
            while m[encoder + BUSY] == 0 and m[encoder + COUNT] > 0 and _due(m, encoder) <= now:
                _launch(m, f, worker, now)
                if m[encoder + END] == now:
                    _complete_encode(m, worker, now)
        level = _level(m, f, g)
        while m[group + BUSY] == 0 and m[group + COUNT] > 0 and f[m[SHARES] + level] > 0.0:
            _start_prefill(m, f, g, level, now)
            if m[group + END] == now:
                _complete_prefill(m, g, now)
        again = _reprice(m, f, g, level, now)
    m[group + WAKE] = _next(m, g)


@compiled
def _due(m: Ints, encoder: int) -> int:
    """When the waiting batch may launch; FOREVER if no rule says when."""
    due = due_ns(
        m[encoder + COUNT],
        m[BATCH_BOUND],
        m[m[encoder + HEAD] + READY],
        m[encoder + LAST_ADD],
        m[encoder + GAP],
        m[MAX_WAIT],
    )
    return FOREVER if due < 0 else int(due)


@compiled
def _next(m: Ints, g: int) -> int:
    """When something next happens to the group, if nobody comes."""
    group = _group(m, g)
    soonest = m[group + END] if m[group + BUSY] == 1 else FOREVER
    for worker in range(g * m[SPAN], (g + 1) * m[SPAN]):
        encoder = _encoder(m, worker)
        if m[encoder + BUSY] == 1:
            soonest = min(soonest, m[encoder + END])
        elif m[encoder + COUNT] > 0:
            soonest = min(soonest, _due(m, encoder))
    return int(soonest)


@compiled
def _level(m: Ints, f: Floats, g: int) -> int:
    """Which share local prefill has: the batch size of the encoder that leaves it least, 0 if none runs."""
    level = 0
    for worker in range(g * m[SPAN], (g + 1) * m[SPAN]):
        encoder = _encoder(m, worker)
        if m[encoder + BUSY] == 1:
            size = m[encoder + SIZE]
            if level == 0 or f[m[SHARES] + size] < f[m[SHARES] + level]:
                level = size
    return int(level)


@compiled
def _prefill_runs(m: Ints, f: Floats, g: int, level: int) -> bool:
    """A prefill at share 0 is busy, but it stands still."""
    return bool(m[_group(m, g) + BUSY] == 1 and f[m[SHARES] + level] > 0.0)


@compiled
def _begin(m: Ints, f: Floats, server: int, size: int, pace: float, now: int) -> None:
    m[server + BUSY] = 1
    m[server + SIZE] = size
    m[server + SINCE] = now
    m[server + END] = now + int(np.rint(pace))
    f[server + LEFT] = 1.0
    f[server + PACE] = pace


@compiled
def _launch(m: Ints, f: Floats, worker: int, now: int) -> None:
    encoder = _encoder(m, worker)
    reason = reason_at(
        now,
        m[encoder + COUNT],
        m[BATCH_BOUND],
        m[m[encoder + HEAD] + READY],
        m[encoder + LAST_ADD],
        m[encoder + GAP],
        m[MAX_WAIT],
    )
    m[encoder + FULL] = 1 if reason == REASON_FULL else 0
    m[encoder + FIRST] = m[encoder + HEAD]
    size = min(m[BATCH_BOUND], m[encoder + COUNT])
    tokens = 0
    for _ in range(size):
        request = leave(m, encoder)
        tokens += m[request + MEDIA_TOKENS]
        m[request + ENCODE_START] = now
        m[request + BATCH] = size
        m[request + ROUTE] = _route(m, encoder, request)
    mean = tokens / size
    f[encoder + ALONE] = encode_ns(m, f, size, mean)
    f[encoder + BESIDE] = f[encoder + ALONE]
    beside = False
    if m[ENCODE_BESIDE] == 1:
        f[encoder + BESIDE] = encode_beside_ns(m, f, size, mean)
        g = m[encoder + OF]
        beside = _prefill_runs(m, f, g, _level(m, f, g))
    _begin(m, f, encoder, size, f[encoder + BESIDE] if beside else f[encoder + ALONE], now)


@compiled
def _complete_encode(m: Ints, worker: int, now: int) -> None:
    encoder = _encoder(m, worker)
    request, size = m[encoder + FIRST], m[encoder + SIZE]
    start = m[request + ENCODE_START]
    record(m, LOG_ENCODE, start, now, size, m[encoder + FULL])
    for _ in range(size):
        following = m[request + NEXT]
        m[request + ENCODE_END] = now
        if m[request + ROUTE] == REMOTE:
            ready = now + m[request + EMBEDDING_NS]
            m[request + PREFILL_READY] = ready
            push(m, m[PREFILL_LINE], ready, left_at(start, now, ready), rank(m, 0, worker), request)
        else:
            m[request + PREFILL_READY] = now
            join(m, _group(m, m[encoder + OF]), request)
        request = following
    m[encoder + BUSY] = 0
    _note_load(m, worker)


@compiled
def _start_prefill(m: Ints, f: Floats, g: int, level: int, now: int) -> None:
    group = _group(m, g)
    m[group + FIRST] = m[group + HEAD]
    size, tokens = 0, 0
    while m[group + COUNT] > 0:
        more = m[m[group + HEAD] + TOTAL]
        if size > 0 and (tokens + more > m[TOKEN_BUDGET] or size == m[PREFILL_REQUESTS]):
            break
        request = leave(m, group)
        m[request + PREFILL_START] = now
        m[request + PREFILL_WORKER] = g
        tokens += more
        size += 1
    f[group + MEAN] = tokens / size
    m[group + LEVEL] = level
    _begin(m, f, group, size, _prefill_pace(m, f, level, size, f[group + MEAN]), now)


@compiled
def _prefill_pace(m: Ints, f: Floats, level: int, size: int, mean: float) -> float:
    """ns that the whole batch would take at this level; infinite at share 0, where it stands still."""
    if f[m[SHARES] + level] == 0.0:
        return np.inf
    if level > 0 and m[PREFILL_BESIDE] == 1:
        return prefill_beside_ns(m, f, level, size, mean)
    return prefill_ns(m, f, level, size, mean)


@compiled
def _reprice(m: Ints, f: Floats, g: int, level: int, now: int) -> bool:
    """What is left of each running batch goes on at the pace that now rules. True if one is thereby done."""
    done = False
    group = _group(m, g)
    if m[ENCODE_BESIDE] == 1:
        beside = _prefill_runs(m, f, g, level)
        for worker in range(g * m[SPAN], (g + 1) * m[SPAN]):
            encoder = _encoder(m, worker)
            if m[encoder + BUSY] == 1:
                pace = f[encoder + BESIDE] if beside else f[encoder + ALONE]
                done = _set_pace(m, f, encoder, pace, now) or done
    if m[group + BUSY] == 1 and m[group + LEVEL] != level:
        m[group + LEVEL] = level
        pace = _prefill_pace(m, f, level, m[group + SIZE], f[group + MEAN])
        done = _set_pace(m, f, group, pace, now) or done
    return bool(done)


@compiled
def _set_pace(m: Ints, f: Floats, server: int, pace: float, now: int) -> bool:
    """Go on at `pace` ns for the whole batch. True if nothing is left to do."""
    before = f[server + PACE]
    if pace == before:
        return False
    elapsed = now - m[server + SINCE]
    if elapsed > 0 and not np.isinf(before):
        f[server + LEFT] = max(0.0, f[server + LEFT] - elapsed / before) if before > 0.0 else 0.0
    f[server + PACE] = pace
    m[server + SINCE] = now
    m[server + END] = FOREVER if np.isinf(pace) else now + int(np.rint(f[server + LEFT] * pace))
    return bool(m[server + END] == now)


@compiled
def _complete_prefill(m: Ints, g: int, now: int) -> None:
    group = _group(m, g)
    request, size = m[group + FIRST], m[group + SIZE]
    record(m, LOG_LOCAL, m[request + PREFILL_START], now, size, 0)
    for _ in range(size):
        following = m[request + NEXT]
        prefilled(m, request, now, rank(m, 0, g))
        request = following
    m[group + BUSY] = 0


@compiled
def prefilled(m: Ints, request: int, now: int, place: int) -> None:
    """The prefill of a disaggregated request ends at `now` (which may lie ahead): first token, then KV transfer."""
    last = m[request + OUTPUT] == 1
    if last or m[FIRST_BY_DECODE] == 0:
        answered(m, request, now)
    if last:
        m[request + FINISH] = now
        m[request + STATUS] = 1
    else:
        ready = now + m[request + KV_NS]
        m[request + DECODE_READY] = ready
        push(m, m[DECODE_LINE], ready, left_at(m[request + PREFILL_START], now, ready), place, request)


@compiled
def answered(m: Ints, request: int, when: int) -> None:
    """The client sees the first token at `when`."""
    m[request + FIRST_TOKEN] = when
    if m[MAX_QUEUE] >= 0:
        push(m, m[FIRST_TOKENS], when, 0, request, request)

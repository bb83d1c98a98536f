"""Encode workers and their micro-batchers, a group at a time.

Within an instant completions come first, then starts: encode by worker, then the group's local prefill
(`sharing`); then whatever runs is repriced if what runs beside it has changed; and so on until nothing
changes.
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
    DEFICIT,
    EMBEDDING_NS,
    ENCODE_BESIDE,
    ENCODE_END,
    ENCODE_START,
    ENCODE_WORKER,
    ENCODERS_LOAD,
    END,
    FIRST,
    FOREVER,
    FULL,
    GAP,
    GROUPS_WAKE,
    HEAD,
    LAST_ADD,
    LOCAL,
    LOG_ENCODE,
    MAX_WAIT,
    MEDIA_TOKENS,
    NEXT,
    OF,
    ONLINE,
    PREFILL_LINE,
    PREFILL_READY,
    RATE_AT,
    READY,
    REMOTE,
    ROUTE,
    SHARE_DENOMINATOR,
    SHARE_NUMERATOR,
    SHARES,
    SIZE,
    SPAN,
    TOKEN_UNIT,
    TOTAL,
    WAKE,
)
from has.sim.sharing import (
    begin,
    complete_prefill,
    encoder_at,
    group_at,
    level_of,
    prefill_runs,
    reprice,
    start_prefill,
)
from has.sim.tables import encode_beside_ns, encode_ns
from has.sim.tournament import first_within, least, put

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

RATE_STATE = WINDOW + 4
"""Room kept for one online rate estimate."""


@compiled
def group_of(m: Ints, worker: int) -> int:
    return int(m[encoder_at(m, worker) + OF])


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
    encoder = encoder_at(m, worker)
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
    if m[group_at(m, g) + WAKE] > now:
        _set_alarm(m, g, max(now, _next(m, g)), now)


@compiled
def _note_load(m: Ints, worker: int) -> None:
    """Requests that wait or are encoded at `worker`, where dispatch asks."""
    if m[ENCODERS_LOAD] > 0:
        encoder = encoder_at(m, worker)
        put(m, m[ENCODERS_LOAD], worker, m[encoder + COUNT] + m[encoder + BUSY] * m[encoder + SIZE])


@compiled
def _set_alarm(m: Ints, g: int, when: int, now: int) -> None:
    """Something happens to group `g`, which has come to `now`, at `when`; if that is now, a start,
    which waits for the arrivals of this instant."""
    m[group_at(m, g) + WAKE] = when
    put(m, m[GROUPS_WAKE], g, when + 1 if when == now else when)


@compiled
def add_text(m: Ints, worker: int, request: int, now: int) -> None:
    """A text request passes straight through the router of `worker`."""
    m[request + ENCODE_WORKER] = worker
    m[request + PREFILL_READY] = now
    m[request + ROUTE] = _route(m, encoder_at(m, worker), request)
    if m[request + ROUTE] == REMOTE:
        push(m, m[PREFILL_LINE], now, FOREVER, request, request)
    else:
        g = group_of(m, worker)
        join(m, group_at(m, g), request)
        if m[group_at(m, g) + BUSY] == 0:
            _set_alarm(m, g, now, now)


@compiled
def advance_group(m: Ints, f: Floats, g: int, until: int) -> None:
    """Everything of group `g` before `until`, and what completes at `until`; no starts at `until`."""
    group = group_at(m, g)
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
    group = group_at(m, g)
    first, beyond = g * m[SPAN], (g + 1) * m[SPAN]
    again = True
    while again:
        for worker in range(first, beyond):
            encoder = encoder_at(m, worker)
            if m[encoder + BUSY] == 1 and m[encoder + END] == now:
                _complete_encode(m, worker, now)
        if m[group + BUSY] == 1 and m[group + END] == now:
            complete_prefill(m, g, now)
        if now == until:
            m[group + WAKE] = now
            return
        for worker in range(first, beyond):
            encoder = encoder_at(m, worker)
            while m[encoder + BUSY] == 0 and m[encoder + COUNT] > 0 and _due(m, encoder) <= now:
                _launch(m, f, worker, now)
                if m[encoder + END] == now:
                    _complete_encode(m, worker, now)
        level = level_of(m, f, g)
        while m[group + BUSY] == 0 and m[group + COUNT] > 0 and f[m[SHARES] + level] > 0.0:
            start_prefill(m, f, g, level, now)
            if m[group + END] == now:
                complete_prefill(m, g, now)
        again = reprice(m, f, g, level, now)
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
    group = group_at(m, g)
    soonest = m[group + END] if m[group + BUSY] == 1 else FOREVER
    for worker in range(g * m[SPAN], (g + 1) * m[SPAN]):
        encoder = encoder_at(m, worker)
        if m[encoder + BUSY] == 1:
            soonest = min(soonest, m[encoder + END])
        elif m[encoder + COUNT] > 0:
            soonest = min(soonest, _due(m, encoder))
    return int(soonest)


@compiled
def _launch(m: Ints, f: Floats, worker: int, now: int) -> None:
    encoder = encoder_at(m, worker)
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
        beside = prefill_runs(m, f, g, level_of(m, f, g))
    begin(m, f, encoder, size, f[encoder + BESIDE] if beside else f[encoder + ALONE], now)


@compiled
def _complete_encode(m: Ints, worker: int, now: int) -> None:
    encoder = encoder_at(m, worker)
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
            join(m, group_at(m, m[encoder + OF]), request)
        request = following
    m[encoder + BUSY] = 0
    _note_load(m, worker)

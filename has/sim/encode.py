"""Encode workers, their micro-batchers, and the local prefill that shares their GPUs.

A group is `span` consecutive encode workers and the one local prefill queue that spans them. Within
an instant completions come first, then starts: encode by worker, then local prefill, until nothing
changes; then whatever runs is repriced if what runs beside it has changed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.core.compiled import compiled
from has.policy.microbatch import FULL, due_ns, reason_at
from has.policy.offload import step as route_step
from has.policy.rate import step as rate_step
from has.sim.columns import (
    BATCH,
    COUNT,
    DECODE_READY,
    E_ALONE,
    E_BESIDE,
    E_BUSY,
    E_DEFICIT,
    E_END,
    E_FIRST,
    E_FULL,
    E_GAP,
    E_LAST_ADD,
    E_LATENCY,
    E_LEFT,
    E_SINCE,
    E_SIZE,
    EMBEDDING_NS,
    ENCODE_END,
    ENCODE_START,
    ENCODE_WORKER,
    FINISH,
    FIRST_TOKEN,
    FOREVER,
    G_BUSY,
    G_END,
    G_FIRST,
    G_LATENCY,
    G_LEFT,
    G_MEAN,
    G_NEXT,
    G_SINCE,
    G_SIZE,
    HEAD,
    KV_NS,
    LOCAL,
    LOG_ENCODE,
    LOG_LOCAL,
    MEDIA_TOKENS,
    NEXT,
    OUTPUT,
    PREFILL_READY,
    PREFILL_START,
    PREFILL_WORKER,
    READY,
    REMOTE,
    ROUTE,
    STATUS,
    TOTAL,
)
from has.sim.heap import place, push
from has.sim.lines import join, leave, record
from has.sim.state import Rules, State
from has.sim.tables import Tables, encode_beside_ns, encode_ns, prefill_beside_ns, prefill_ns

Ints = NDArray[np.int64]


@compiled
def route(state: State, rules: Rules, worker: int, request: int) -> int:
    """Local or remote, by this worker's router."""
    if rules.share_numerator == 0:
        return LOCAL
    if rules.share_numerator == rules.share_denominator:
        return REMOTE
    encoder = state.encoders[worker]
    deficit, remote = route_step(
        encoder[E_DEFICIT],
        rules.share_numerator,
        rules.share_denominator,
        state.given[request, TOTAL],
        rules.token_unit,
    )
    encoder[E_DEFICIT] = deficit
    return REMOTE if remote else LOCAL


@compiled
def add_media(state: State, rules: Rules, worker: int, request: int, now: int) -> None:
    """A media request joins the batcher of `worker`."""
    encoder = state.encoders[worker]
    join(encoder, state.out, request)
    encoder[E_LAST_ADD] = now
    state.out[request, ENCODE_WORKER] = worker
    if rules.online:
        rate = rate_step(state.rates[worker], now)
        gap = 0.0
        if rules.coefficient > 0.0:
            gap = rules.coefficient / rate * 1e9 if rate > 0.0 else np.inf
        encoder[E_GAP] = int(np.rint(gap)) if gap < FOREVER else -1
    group = state.groups[worker // rules.span]
    group[G_NEXT] = min(group[G_NEXT], now)


@compiled
def add_text(state: State, rules: Rules, worker: int, request: int, now: int) -> None:
    """A text request passes straight through the router of `worker`."""
    out = state.out
    out[request, ENCODE_WORKER] = worker
    out[request, PREFILL_READY] = now
    out[request, ROUTE] = route(state, rules, worker, request)
    if out[request, ROUTE] == REMOTE:
        push(state.prefill_ready, now, FOREVER, request, request)
    else:
        group = state.groups[worker // rules.span]
        join(group, out, request)
        group[G_NEXT] = min(group[G_NEXT], now)


@compiled
def advance_group(state: State, rules: Rules, tables: Tables, g: int, until: int) -> None:
    """Everything of group `g` before `until`, and what completes at `until`; no starts at `until`."""
    group = state.groups[g]
    while group[G_NEXT] < until:
        _instant(state, rules, tables, g, group[G_NEXT], True)
    if group[G_NEXT] == until:
        _instant(state, rules, tables, g, until, False)


@compiled
def advance_groups(state: State, rules: Rules, tables: Tables, until: int) -> None:
    for g in range(len(state.groups)):
        if state.groups[g, G_NEXT] <= until:
            advance_group(state, rules, tables, g, until)


@compiled
def _instant(state: State, rules: Rules, tables: Tables, g: int, now: int, starts: bool) -> None:
    encoders, group = state.encoders, state.groups[g]
    first, behind = g * rules.span, (g + 1) * rules.span
    again = True
    while again:
        again = False
        for w in range(first, behind):
            if encoders[w, E_BUSY] == 1 and encoders[w, E_END] == now:
                _complete_encode(state, rules, w, now)
        if group[G_BUSY] == 1 and group[G_END] == now:
            _complete_prefill(state, rules, g, now)
        if not starts:
            group[G_NEXT] = now
            return
        for w in range(first, behind):
            encoder = encoders[w]
            while encoder[E_BUSY] == 0 and encoder[COUNT] > 0 and _due(state, rules, w) <= now:
                _launch(state, rules, tables, w, now)
                if encoder[E_END] == now:
                    _complete_encode(state, rules, w, now)
        level = _level(state, rules, tables, g)
        while group[G_BUSY] == 0 and group[COUNT] > 0 and tables.prefill_share[level] > 0.0:
            _start_prefill(state, rules, tables, g, level, now)
            if group[G_END] == now:
                _complete_prefill(state, rules, g, now)
        again = _reprice(state, rules, tables, g, level, now)
    group[G_NEXT] = _next(state, rules, g)


@compiled
def _due(state: State, rules: Rules, worker: int) -> int:
    """When the waiting batch may launch; FOREVER if no rule says when."""
    encoder = state.encoders[worker]
    due = due_ns(
        encoder[COUNT],
        rules.batch_bound,
        state.out[encoder[HEAD], READY],
        encoder[E_LAST_ADD],
        encoder[E_GAP],
        rules.max_wait_ns,
    )
    return FOREVER if due < 0 else int(due)


@compiled
def _next(state: State, rules: Rules, g: int) -> int:
    encoders, group = state.encoders, state.groups[g]
    soonest = group[G_END] if group[G_BUSY] == 1 else FOREVER
    for w in range(g * rules.span, (g + 1) * rules.span):
        if encoders[w, E_BUSY] == 1:
            soonest = min(soonest, encoders[w, E_END])
        elif encoders[w, COUNT] > 0:
            soonest = min(soonest, _due(state, rules, w))
    return int(soonest)


@compiled
def _level(state: State, rules: Rules, tables: Tables, g: int) -> int:
    """Which share local prefill has: the batch size of the encoder that leaves it least, 0 if none runs."""
    level = 0
    for w in range(g * rules.span, (g + 1) * rules.span):
        if state.encoders[w, E_BUSY] == 1:
            size = state.encoders[w, E_SIZE]
            if level == 0 or tables.prefill_share[size] < tables.prefill_share[level]:
                level = size
    return int(level)


@compiled
def _prefill_runs(state: State, tables: Tables, g: int, level: int) -> bool:
    return bool(state.groups[g, G_BUSY] == 1 and tables.prefill_share[level] > 0.0)


@compiled
def _launch(state: State, rules: Rules, tables: Tables, worker: int, now: int) -> None:
    encoder, pace, out = state.encoders[worker], state.encoders_f[worker], state.out
    size = min(rules.batch_bound, encoder[COUNT])
    reason = reason_at(
        now,
        encoder[COUNT],
        rules.batch_bound,
        out[encoder[HEAD], READY],
        encoder[E_LAST_ADD],
        encoder[E_GAP],
        rules.max_wait_ns,
    )
    encoder[E_FIRST] = encoder[HEAD]
    tokens = 0
    for _ in range(size):
        request = leave(encoder, out)
        tokens += state.given[request, MEDIA_TOKENS]
        out[request, ENCODE_START] = now
        out[request, BATCH] = size
        out[request, ROUTE] = route(state, rules, worker, request)
    mean = tokens / size
    pace[E_ALONE] = encode_ns(tables, state.reach, state.tally, size, mean)
    pace[E_BESIDE] = pace[E_ALONE]
    if rules.encode_beside:
        pace[E_BESIDE] = encode_beside_ns(tables, state.reach, state.tally, size, mean)
    g = worker // rules.span
    beside = rules.encode_beside and _prefill_runs(state, tables, g, _level(state, rules, tables, g))
    pace[E_LATENCY] = pace[E_BESIDE] if beside else pace[E_ALONE]
    pace[E_LEFT] = 1.0
    encoder[E_BUSY] = 1
    encoder[E_SIZE] = size
    encoder[E_FULL] = 1 if reason == FULL else 0
    encoder[E_SINCE] = now
    encoder[E_END] = now + int(np.rint(pace[E_LATENCY]))


@compiled
def _complete_encode(state: State, rules: Rules, worker: int, now: int) -> None:
    encoder, out = state.encoders[worker], state.out
    request = encoder[E_FIRST]
    size = encoder[E_SIZE]
    record(
        state.encode_log,
        state.used,
        LOG_ENCODE,
        state.tally,
        out[request, ENCODE_START],
        now,
        size,
        encoder[E_FULL],
    )
    for position in range(size):
        behind = out[request, NEXT]
        out[request, ENCODE_END] = now
        if out[request, ROUTE] == REMOTE:
            ready = now + state.given[request, EMBEDDING_NS]
            out[request, PREFILL_READY] = ready
            push(state.prefill_ready, ready, now, place(0, worker, position), request)
        else:
            out[request, PREFILL_READY] = now
            join(state.groups[worker // rules.span], out, request)
        request = behind
    encoder[E_BUSY] = 0


@compiled
def _start_prefill(state: State, rules: Rules, tables: Tables, g: int, level: int, now: int) -> None:
    group, pace, out = state.groups[g], state.groups_f[g], state.out
    group[G_FIRST] = group[HEAD]
    size, tokens = 0, 0
    while group[COUNT] > 0:
        more = state.given[group[HEAD], TOTAL]
        if size > 0 and (tokens + more > rules.token_budget or size == rules.prefill_requests):
            break
        request = leave(group, out)
        out[request, PREFILL_START] = now
        out[request, PREFILL_WORKER] = g
        tokens += more
        size += 1
    group[G_BUSY] = 1
    group[G_SIZE] = size
    group[G_SINCE] = now
    pace[G_MEAN] = tokens / size
    pace[G_LATENCY] = _prefill_pace(state, rules, tables, g, level)
    pace[G_LEFT] = 1.0
    group[G_END] = now + int(np.rint(pace[G_LATENCY]))


@compiled
def _prefill_pace(state: State, rules: Rules, tables: Tables, g: int, level: int) -> float:
    """ns that the whole batch would take at this level; infinite at share 0, where it stands still."""
    size, mean = state.groups[g, G_SIZE], state.groups_f[g, G_MEAN]
    if tables.prefill_share[level] == 0.0:
        return np.inf
    if level > 0 and rules.prefill_beside:
        return prefill_beside_ns(tables, state.reach, state.tally, level, size, mean)
    return prefill_ns(tables, state.reach, state.tally, level, size, mean)


@compiled
def _reprice(state: State, rules: Rules, tables: Tables, g: int, level: int, now: int) -> bool:
    """What is left of each running batch goes on at the pace that now rules. True if something is thereby done."""
    done = False
    group, pace = state.groups[g], state.groups_f[g]
    if rules.encode_beside:
        beside = _prefill_runs(state, tables, g, level)
        for w in range(g * rules.span, (g + 1) * rules.span):
            encoder, speed = state.encoders[w], state.encoders_f[w]
            latency = speed[E_BESIDE] if beside else speed[E_ALONE]
            if encoder[E_BUSY] == 1 and latency != speed[E_LATENCY]:
                speed[E_LEFT] = _left(speed[E_LEFT], speed[E_LATENCY], now - encoder[E_SINCE])
                speed[E_LATENCY] = latency
                encoder[E_SINCE] = now
                encoder[E_END] = now + int(np.rint(speed[E_LEFT] * latency))
                done = done or encoder[E_END] == now
    if group[G_BUSY] == 1:
        latency = _prefill_pace(state, rules, tables, g, level)
        if latency != pace[G_LATENCY]:
            pace[G_LEFT] = _left(pace[G_LEFT], pace[G_LATENCY], now - group[G_SINCE])
            pace[G_LATENCY] = latency
            group[G_SINCE] = now
            group[G_END] = FOREVER if np.isinf(latency) else now + int(np.rint(pace[G_LEFT] * latency))
            done = done or group[G_END] == now
    return bool(done)


@compiled
def _left(left: float, latency: float, elapsed: int) -> float:
    """The fraction of the work still to do after `elapsed` ns at a pace of `latency` for the whole."""
    if elapsed == 0 or np.isinf(latency):
        return left
    if latency == 0.0:
        return 0.0
    return max(0.0, left - elapsed / latency)


@compiled
def _complete_prefill(state: State, rules: Rules, g: int, now: int) -> None:
    group, out = state.groups[g], state.out
    request = group[G_FIRST]
    record(
        state.local_log,
        state.used,
        LOG_LOCAL,
        state.tally,
        out[request, PREFILL_START],
        now,
        group[G_SIZE],
        0,
    )
    for position in range(group[G_SIZE]):
        behind = out[request, NEXT]
        prefilled(state, rules, request, now, place(0, g, position))
        request = behind
    group[G_BUSY] = 0


@compiled
def prefilled(state: State, rules: Rules, request: int, now: int, rank: int) -> None:
    """The prefill of a disaggregated request ends at `now` (which may lie ahead): first token, then KV transfer."""
    given, out = state.given, state.out
    last = given[request, OUTPUT] == 1
    if last or not rules.first_by_decode:
        answered(state, rules, request, now)
    if last:
        out[request, FINISH] = now
        out[request, STATUS] = 1
    else:
        ready = now + given[request, KV_NS]
        out[request, DECODE_READY] = ready
        push(state.decode_ready, ready, now, rank, request)


@compiled
def answered(state: State, rules: Rules, request: int, when: int) -> None:
    """The client sees the first token at `when`."""
    state.out[request, FIRST_TOKEN] = when
    if rules.max_queue >= 0:
        push(state.first_tokens, when, 0, request, request)

"""The whole way of every request, in one pass over the arrivals.

Every stage is a machine that can be advanced to an instant: all that lies before it happens, and
what completes at it completes; starts at it wait until the arrivals of that instant are in. Stages
feed one another through heaps ordered by (when, who came first), so nothing flows back, and how often
the pipeline is advanced changes nothing, except where an arrival looks at the state (a bounded queue,
draws shared by two pools): there it is advanced at every arrival (LOCKSTEP).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.sim.compiled import address_of, compiled, entry
from has.sim.decode import advance_decode
from has.sim.dispatch import choose_encoder, choose_stepper
from has.sim.encode import add_media, add_text, advance_group, advance_groups, group_of
from has.sim.iterations import advance_all_iterations, advance_iterations, enqueue
from has.sim.lines import first, pop, push, waits, when
from has.sim.memory import (
    ARRIVAL,
    DISAGGREGATED,
    DISPATCH,
    E_PD,
    FIRST_TOKENS,
    FOREVER,
    HAS_PREPROCESS,
    IS_MEDIA,
    KV_TOKENS,
    LOCKSTEP,
    MAX_QUEUE,
    MONOLITHIC,
    N_REQUESTS,
    PENDING,
    PREFILL_LINE,
    PREPROCESS_NS,
    PREPROCESSED,
    READY,
    REQUEST,
    REQUESTS,
    SERVERS,
    SHORTEST_QUEUE,
    STATUS,
    STRIDE,
    TOPOLOGY,
    UNANSWERED,
)
from has.sim.prefill import advance_pool
from has.sim.stepping import kv_need
from has.sim.tournament import first_within, least, put

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@entry
def run(m: Ints, f: Floats) -> None:
    """Everything that happens to the requests in `m`."""
    _run(address_of(m), address_of(f))


@compiled
def _run(m: Ints, f: Floats) -> None:
    left = 0
    for i in range(m[N_REQUESTS] + 1):
        request = m[REQUESTS] + i * REQUEST
        now = m[request + ARRIVAL] if i < m[N_REQUESTS] else FOREVER
        _preprocessed(m, f, now)
        if m[LOCKSTEP] == 1 or left == 0 or now == FOREVER:
            _advance(m, f, now)
            left = m[STRIDE]
        left -= 1
        if now < FOREVER and _admitted(m, request, now):
            _arrive(m, f, request, now)


@compiled
def _admitted(m: Ints, request: int, now: int) -> bool:
    """Refused when too many await their first token; failed when no worker could ever hold its KV."""
    if m[MAX_QUEUE] >= 0:
        answers = m[FIRST_TOKENS]
        while waits(m, answers) and when(m, answers) <= now:
            pop(m, answers)
            m[UNANSWERED] -= 1
        if m[UNANSWERED] >= m[MAX_QUEUE]:
            m[request + STATUS] = 2
            return False
    if m[KV_TOKENS] >= 0 and kv_need(m, request) > m[KV_TOKENS]:
        return False
    m[UNANSWERED] += 1
    return True


@compiled
def _arrive(m: Ints, f: Floats, request: int, now: int) -> None:
    m[request + READY] = now
    if m[request + IS_MEDIA] == 0:
        if m[TOPOLOGY] == DISAGGREGATED:
            add_text(m, _choose_encoder(m, f, now), request, now)
        elif m[TOPOLOGY] == E_PD:
            push(m, m[PREFILL_LINE], now, FOREVER, request, request)
        else:
            _to_stepper(m, f, request, now)
    elif m[HAS_PREPROCESS] == 0:
        _encode(m, f, request, now)
    else:
        free = least(m, m[SERVERS])
        ready = max(now, free) + m[request + PREPROCESS_NS]
        put(m, m[SERVERS], first_within(m, m[SERVERS], free), ready)
        m[request + PREPROCESSED] = ready
        m[request + READY] = ready
        push(m, m[PENDING], ready, int(m[request + PREPROCESS_NS] == 0), request, request)


@compiled
def _preprocessed(m: Ints, f: Floats, until: int) -> None:
    """Requests whose preprocessing ends by `until` go on to encode.

    One that takes no time at all is a start, and comes after the arrivals of its instant.
    """
    line = m[PENDING]
    while waits(m, line) and when(m, line) <= until:
        now = when(m, line)
        instantly = m[first(m, line) + PREPROCESS_NS] == 0
        if instantly and now == until:
            return
        if m[LOCKSTEP] == 1 and m[TOPOLOGY] == E_PD:
            advance_groups(m, f, now)
            _to_steppers(m, f, now if instantly else now - 1)
        _encode(m, f, pop(m, line), now)


@compiled
def _encode(m: Ints, f: Floats, request: int, now: int) -> None:
    if m[TOPOLOGY] == MONOLITHIC:
        _to_stepper(m, f, request, now)
    else:
        add_media(m, f, _choose_encoder(m, f, now), request, now)


@compiled
def _choose_encoder(m: Ints, f: Floats, now: int) -> int:
    """The worker that dispatch chooses, its group brought up to `now`."""
    if m[DISPATCH] == SHORTEST_QUEUE:
        advance_groups(m, f, now)
    worker = choose_encoder(m)
    advance_group(m, f, group_of(m, worker), now)
    return worker


@compiled
def _to_stepper(m: Ints, f: Floats, request: int, now: int) -> None:
    """Assign `request` to a worker that prefills and decodes."""
    if m[DISPATCH] == SHORTEST_QUEUE:
        advance_all_iterations(m, f, now)
    worker = choose_stepper(m)
    advance_iterations(m, f, worker, now)
    enqueue(m, f, worker, request, now)


@compiled
def _to_steppers(m: Ints, f: Floats, until: int) -> None:
    """Everybody whose embeddings (or text) reach the PD pool by `until`."""
    line = m[PREFILL_LINE]
    while waits(m, line) and when(m, line) <= until:
        now = when(m, line)
        _to_stepper(m, f, pop(m, line), now)


@compiled
def _advance(m: Ints, f: Floats, until: int) -> None:
    """Every stage in turn, up to `until`."""
    if m[TOPOLOGY] != MONOLITHIC:
        advance_groups(m, f, until)
    if m[TOPOLOGY] == DISAGGREGATED:
        advance_pool(m, f, until)
        advance_decode(m, f, until)
        return
    if m[TOPOLOGY] == E_PD:
        _to_steppers(m, f, until)
    advance_all_iterations(m, f, until)

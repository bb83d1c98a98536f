"""The whole way of every request, in one pass over the arrivals.

Every stage is a machine that can be advanced to an instant: all that lies before it happens, and
what completes at it completes; starts at it wait until the arrivals of that instant are in. Stages
feed one another through heaps ordered by (when, who came first), so nothing flows back, and how often
the pipeline is advanced changes nothing, except where an arrival looks at the state (a bounded queue,
the shortest queue, a draw shared by two pools): there it is advanced at every arrival (`lockstep`).
"""

from __future__ import annotations

from has.core.compiled import compiled
from has.sim.columns import (
    ARRIVAL,
    DISAGGREGATED,
    E_PD,
    FOREVER,
    IS_MEDIA,
    MONOLITHIC,
    OUTPUT,
    PREPROCESS_NS,
    PREPROCESSED,
    READY,
    SHORTEST_QUEUE,
    STATUS,
    TOTAL,
    TURN,
    TURN_PD,
    UNANSWERED,
)
from has.sim.decode import advance_decode
from has.sim.dispatch import encoder_for, stepper_for
from has.sim.encode import add_media, add_text, advance_group, advance_groups
from has.sim.heap import pop, push
from has.sim.iterations import advance_iterations, enqueue
from has.sim.prefill import advance_pool
from has.sim.state import Rules, State
from has.sim.tables import Tables


@compiled
def run(state: State, rules: Rules, tables: Tables) -> None:
    """Fills `state.out` and the logs."""
    given = state.given
    n = len(given)
    for request in range(n):
        now = given[request, ARRIVAL]
        _preprocessed(state, rules, tables, now)
        if rules.lockstep or request % rules.stride == 0:
            _advance(state, rules, tables, now)
        if _admitted(state, rules, request, now):
            _arrive(state, rules, tables, request, now)
    _preprocessed(state, rules, tables, FOREVER)
    _advance(state, rules, tables, FOREVER)


@compiled
def _admitted(state: State, rules: Rules, request: int, now: int) -> bool:
    """Refused when too many await their first token; failed when no worker could ever hold its KV."""
    given, tally = state.given, state.tally
    if rules.max_queue >= 0:
        while state.first_tokens[0, 0] > 0 and state.first_tokens[1, 0] <= now:
            pop(state.first_tokens)
            tally[UNANSWERED] -= 1
        if tally[UNANSWERED] >= rules.max_queue:
            state.out[request, STATUS] = 2
            return False
    if rules.kv_tokens >= 0 and given[request, TOTAL] + given[request, OUTPUT] > rules.kv_tokens:
        return False
    tally[UNANSWERED] += 1
    return True


@compiled
def _arrive(state: State, rules: Rules, tables: Tables, request: int, now: int) -> None:
    given, out = state.given, state.out
    out[request, READY] = now
    if given[request, IS_MEDIA] == 0:
        if rules.topology == DISAGGREGATED:
            worker = _choose_encoder(state, rules, tables, now)
            add_text(state, rules, worker, request, now)
        elif rules.topology == E_PD:
            push(state.prefill_ready, now, FOREVER, request, request)
        else:
            _to_stepper(state, rules, tables, request, now)
        return
    if not rules.preprocess:
        _encode(state, rules, tables, request, now)
        return
    free = state.preprocess_free
    server = 0
    for i in range(1, len(free)):
        if free[i] < free[server]:
            server = i
    ready = max(now, free[server]) + given[request, PREPROCESS_NS]
    free[server] = ready
    out[request, PREPROCESSED] = ready
    out[request, READY] = ready
    push(state.pending, ready, 0, request, request)


@compiled
def _preprocessed(state: State, rules: Rules, tables: Tables, until: int) -> None:
    """Requests whose preprocessing ends by `until` go on to encode."""
    if not rules.preprocess:
        return
    line = state.pending
    while line[0, 0] > 0 and line[1, 0] <= until:
        now = line[1, 0]
        if rules.lockstep and rules.topology == E_PD:
            advance_groups(state, rules, tables, now)
            _to_steppers(state, rules, tables, now - 1)
        _encode(state, rules, tables, pop(line), now)


@compiled
def _encode(state: State, rules: Rules, tables: Tables, request: int, now: int) -> None:
    if rules.topology == MONOLITHIC:
        _to_stepper(state, rules, tables, request, now)
    else:
        add_media(state, rules, _choose_encoder(state, rules, tables, now), request, now)


@compiled
def _choose_encoder(state: State, rules: Rules, tables: Tables, now: int) -> int:
    """The worker that dispatch chooses, its group brought up to `now`."""
    if rules.dispatch == SHORTEST_QUEUE:
        advance_groups(state, rules, tables, now)
    worker = encoder_for(state.encoders, rules.dispatch, state.draws, state.tally, TURN)
    advance_group(state, rules, tables, worker // rules.span, now)
    return worker


@compiled
def _to_stepper(state: State, rules: Rules, tables: Tables, request: int, now: int) -> None:
    """Assign `request` to a worker that prefills and decodes."""
    if rules.dispatch == SHORTEST_QUEUE:
        for w in range(len(state.steppers)):
            advance_iterations(state, rules, tables, w, now)
    worker = stepper_for(state.steppers, rules.dispatch, state.draws, state.tally, TURN_PD)
    advance_iterations(state, rules, tables, worker, now)
    enqueue(state, rules, tables, worker, request, now)


@compiled
def _to_steppers(state: State, rules: Rules, tables: Tables, until: int) -> None:
    """Everybody whose embeddings (or text) reach the PD pool by `until`."""
    line = state.prefill_ready
    while line[0, 0] > 0 and line[1, 0] <= until:
        now = line[1, 0]
        _to_stepper(state, rules, tables, pop(line), now)


@compiled
def _advance(state: State, rules: Rules, tables: Tables, until: int) -> None:
    """Every stage in turn, up to `until`."""
    if rules.topology != MONOLITHIC:
        advance_groups(state, rules, tables, until)
    if rules.topology == DISAGGREGATED:
        advance_pool(state, rules, tables, until)
        advance_decode(state, rules, tables, until)
        return
    if rules.topology == E_PD:
        _to_steppers(state, rules, tables, until)
    for w in range(len(state.steppers)):
        advance_iterations(state, rules, tables, w, until)

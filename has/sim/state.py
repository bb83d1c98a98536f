"""What the kernel is told (`Rules`) and what it keeps while it runs (`State`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from has.policy.rate import new_state
from has.sim import columns as c
from has.sim.heap import new_heap

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Rules(NamedTuple):
    """A deployment in numbers. -1 switches an optional rule off."""

    topology: int
    dispatch: int
    first_by_decode: bool
    max_queue: int
    preprocess: bool
    batch_bound: int
    coefficient: float
    online: bool
    max_wait_ns: int
    share_numerator: int
    share_denominator: int
    token_unit: bool
    span: int
    encode_beside: bool
    prefill_beside: bool
    token_budget: int
    prefill_requests: int
    max_seqs: int
    kv_tokens: int
    lockstep: bool
    stride: int


class State(NamedTuple):
    """The kernel's tables; see `columns` for what a row holds.

    given int64[N, GIVEN], out int64[N, OUT]   requests
    preprocess_free int64[servers]             when each preprocess server is free
    pending, prefill_ready, decode_ready       heaps of requests on their way to a stage
    first_tokens                               heap of first tokens to come (kept where max_queue asks)
    encoders, groups, steppers                 workers
    rates int64[n_E, ...]                      online rate estimates
    pool_free int64[n_P]                       when each remote prefill worker is free
    ends int64[workers, S+1, 2]                a heap per stepper: last step, request
    draws int64[...]                           32-bit words of the dispatch generator
    """

    given: Ints
    out: Ints
    preprocess_free: Ints
    pending: Ints
    prefill_ready: Ints
    decode_ready: Ints
    first_tokens: Ints
    encoders: Ints
    encoders_f: Floats
    rates: Ints
    groups: Ints
    groups_f: Floats
    pool_free: Ints
    steppers: Ints
    ends: Ints
    draws: Ints
    tally: Ints
    reach: Ints
    used: Ints
    encode_log: Ints
    local_log: Ints
    prefill_log: Ints
    decode_log: Ints


def new_state_of(
    given: Ints,
    draws: Ints,
    rules: Rules,
    *,
    encode_workers: int,
    prefill_workers: int,
    step_workers: int,
    preprocess_servers: int,
    gap_ns: int,
    initial_rate: float | None,
    log_factor: int,
) -> State:
    """Everything idle and empty. `log_factor` scales the logs' room: services per request."""
    n = len(given)
    groups = max(1, encode_workers // rules.span)
    seqs = min(rules.max_seqs, n)

    def table(count: int, width: int) -> Ints:
        return np.zeros((count, width), np.int64)

    encoders = table(encode_workers, c.ENCODER)
    encoders[:, c.E_GAP] = gap_ns
    groups_table = table(groups, c.GROUP)
    groups_table[:, c.G_NEXT] = c.FOREVER
    steppers = table(step_workers, c.STEPPER)
    steppers[:, c.S_NEXT] = c.FOREVER
    steppers[:, c.S_PART] = -1
    estimate = new_state(initial_rate)
    out = np.full((n, c.OUT), c.NEVER, np.int64)
    out[:, c.STATUS] = 0
    iterations = rules.topology != c.DISAGGREGATED
    room = log_factor * n + 64
    return State(
        given=given,
        out=out,
        preprocess_free=np.zeros(preprocess_servers, np.int64),
        pending=new_heap(n if rules.preprocess else 0),
        prefill_ready=new_heap(0 if rules.topology == c.MONOLITHIC else n),
        decode_ready=new_heap(0 if iterations else n),
        first_tokens=new_heap(n if rules.max_queue >= 0 else 0),
        encoders=encoders,
        encoders_f=np.zeros((encode_workers, c.ENCODER_F)),
        rates=np.tile(estimate, (encode_workers if rules.online else 1, 1)),
        groups=groups_table,
        groups_f=np.zeros((groups, c.GROUP_F)),
        pool_free=np.zeros(prefill_workers, np.int64),
        steppers=steppers,
        ends=np.zeros((step_workers, seqs + 1, 2), np.int64),
        draws=draws,
        tally=np.zeros(c.TALLY, np.int64),
        reach=np.zeros((c.STAGES, 2), np.int64),
        used=np.zeros(c.LOGS, np.int64),
        encode_log=table(n, c.LOG),
        local_log=table(n if not iterations and rules.share_numerator < rules.share_denominator else 0, c.LOG),
        prefill_log=table(room if iterations else n, c.LOG),
        decode_log=table(room, c.LOG),
    )

"""The end of a disaggregated request's prefill: its first token, and its KV on the way to a decode worker."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.sim.compiled import compiled
from has.sim.lines import left_at, push
from has.sim.memory import (
    DECODE_LINE,
    DECODE_READY,
    FINISH,
    FIRST_BY_DECODE,
    FIRST_TOKEN,
    FIRST_TOKENS,
    KV_NS,
    MAX_QUEUE,
    OUTPUT,
    PREFILL_START,
    STATUS,
)

Ints = NDArray[np.int64]


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

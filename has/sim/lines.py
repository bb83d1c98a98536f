"""Lines of requests, chained through their own rows: no allocation, first come first served."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.core.compiled import compiled
from has.sim.columns import (
    COUNT,
    HEAD,
    LOG_END,
    LOG_MARK,
    LOG_SIZE,
    LOG_START,
    NEXT,
    OVERFLOW,
    TAIL,
)

Ints = NDArray[np.int64]


@compiled
def join(owner: Ints, out: Ints, request: int) -> None:
    """`request` stands at the end of the line in row `owner`."""
    out[request, NEXT] = -1
    if owner[COUNT] == 0:
        owner[HEAD] = request
    else:
        out[owner[TAIL], NEXT] = request
    owner[TAIL] = request
    owner[COUNT] += 1


@compiled
def leave(owner: Ints, out: Ints) -> int:
    """The head leaves the line; returns it. Its NEXT still names the one behind it."""
    request = owner[HEAD]
    owner[HEAD] = out[request, NEXT]
    owner[COUNT] -= 1
    return int(request)


@compiled
def record(log: Ints, used: Ints, which: int, tally: Ints, start: int, end: int, size: int, mark: int) -> None:
    """One service in a stage's log; says so in `tally` when the log is full."""
    k = used[which]
    if k >= len(log):
        tally[OVERFLOW] = 1
        return
    used[which] = k + 1
    log[k, LOG_START], log[k, LOG_END], log[k, LOG_SIZE], log[k, LOG_MARK] = start, end, size, mark

"""Counts what a run came to, straight from the kernel's memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.sim.compiled import entry
from has.sim.memory import ARRIVAL, FINISH, FIRST_TOKEN, N_REQUESTS, REQUEST, REQUESTS, STATUS

Ints = NDArray[np.int64]


@entry
def count(m: Ints, ttft_bounds: Ints, pace_bounds: Ints, begin: int, ttft: Ints, counts: Ints) -> None:
    """Requests that arrived from `begin` on. counts: [all, within both bounds, completed, last completion];
    `ttft` takes those of the completed, in order of arrival."""
    kept, met, done, last = 0, 0, 0, begin
    for i in range(m[N_REQUESTS]):
        request = m[REQUESTS] + i * REQUEST
        if m[request + ARRIVAL] < begin:
            continue
        kept += 1
        if m[request + STATUS] != 1:
            continue
        seen, finish = m[request + FIRST_TOKEN], m[request + FINISH]
        wait = seen - m[request + ARRIVAL]
        ttft[done] = wait
        done += 1
        last = max(last, finish)
        if wait <= ttft_bounds[i] and finish - seen <= pace_bounds[i]:
            met += 1
    counts[0], counts[1], counts[2], counts[3] = kept, met, done, last

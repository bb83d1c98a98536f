"""The GPUs of a group: local prefill beside encode, and the pace at which each goes on.

A group is SPAN consecutive encode workers and the one local prefill queue that spans them. Its level is
the batch size of the encoder that leaves local prefill least; when it changes, or what runs beside a
batch starts or stops, what is left of whatever runs goes on at the new pace.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.sim.answers import prefilled
from has.sim.compiled import compiled
from has.sim.lines import leave, rank, record
from has.sim.memory import (
    ALONE,
    BESIDE,
    BUSY,
    COUNT,
    ENCODE_BESIDE,
    ENCODER,
    ENCODERS,
    END,
    FIRST,
    FOREVER,
    GROUP,
    GROUPS,
    HEAD,
    LEFT,
    LEVEL,
    LOG_LOCAL,
    MEAN,
    NEXT,
    PACE,
    PREFILL_BESIDE,
    PREFILL_REQUESTS,
    PREFILL_START,
    PREFILL_WORKER,
    SHARES,
    SINCE,
    SIZE,
    SPAN,
    TOKEN_BUDGET,
    TOTAL,
)
from has.sim.tables import prefill_beside_ns, prefill_ns

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@compiled
def encoder_at(m: Ints, worker: int) -> int:
    return int(m[ENCODERS] + worker * ENCODER)


@compiled
def group_at(m: Ints, g: int) -> int:
    return int(m[GROUPS] + g * GROUP)


@compiled
def level_of(m: Ints, f: Floats, g: int) -> int:
    """Which share local prefill has: the batch size of the encoder that leaves it least, 0 if none runs."""
    level = 0
    for worker in range(g * m[SPAN], (g + 1) * m[SPAN]):
        encoder = encoder_at(m, worker)
        if m[encoder + BUSY] == 1:
            size = m[encoder + SIZE]
            if level == 0 or f[m[SHARES] + size] < f[m[SHARES] + level]:
                level = size
    return int(level)


@compiled
def prefill_runs(m: Ints, f: Floats, g: int, level: int) -> bool:
    """A prefill at share 0 is busy, but it stands still."""
    return bool(m[group_at(m, g) + BUSY] == 1 and f[m[SHARES] + level] > 0.0)


@compiled
def begin(m: Ints, f: Floats, server: int, size: int, pace: float, now: int) -> None:
    m[server + BUSY] = 1
    m[server + SIZE] = size
    m[server + SINCE] = now
    m[server + END] = now + int(np.rint(pace))
    f[server + LEFT] = 1.0
    f[server + PACE] = pace


@compiled
def start_prefill(m: Ints, f: Floats, g: int, level: int, now: int) -> None:
    group = group_at(m, g)
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
    begin(m, f, group, size, _prefill_pace(m, f, level, size, f[group + MEAN]), now)


@compiled
def _prefill_pace(m: Ints, f: Floats, level: int, size: int, mean: float) -> float:
    """ns that the whole batch would take at this level; infinite at share 0, where it stands still."""
    if f[m[SHARES] + level] == 0.0:
        return np.inf
    if level > 0 and m[PREFILL_BESIDE] == 1:
        return prefill_beside_ns(m, f, level, size, mean)
    return prefill_ns(m, f, level, size, mean)


@compiled
def reprice(m: Ints, f: Floats, g: int, level: int, now: int) -> bool:
    """What is left of each running batch goes on at the pace that now rules. True if one is thereby done."""
    done = False
    group = group_at(m, g)
    if m[ENCODE_BESIDE] == 1:
        beside = prefill_runs(m, f, g, level)
        for worker in range(g * m[SPAN], (g + 1) * m[SPAN]):
            encoder = encoder_at(m, worker)
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
def complete_prefill(m: Ints, g: int, now: int) -> None:
    group = group_at(m, g)
    request, size = m[group + FIRST], m[group + SIZE]
    record(m, LOG_LOCAL, m[request + PREFILL_START], now, size, 0)
    for _ in range(size):
        following = m[request + NEXT]
        prefilled(m, request, now, rank(m, 0, g))
        request = following
    m[group + BUSY] = 0

"""Latencies as the kernel reads them: for one deployment, in ns, with what is constant folded in.

A stage's grid over (sm, batch, tokens) is multilinear, so fixing the share, or the share and the
batch, and keeping the profiled points of the other axes loses nothing. In `f`:

| table | rows | by |
|---|---|---|
| ENCODE | B+1 | batch, each at its own share x*(batch) |
| ENCODE_B | B+1 | the same beside a prefill |
| PREFILL | (B+1) x batch points | level, batch point; level 0 is the whole GPU, n what x*(n) leaves |
| PREFILL_B | (B+1) x batch points | the same beside an encode batch |
| WHOLE | batch points | prefill by a worker that has the GPU to itself: the remote pool, e_pd, monolithic |
| DECODE | S+1 | batch, whole GPU |

each row over the stage's token points (AXIS, POINTS).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.latency.lookup import Grid, interpolate
from has.sim.compiled import compiled, entry
from has.sim.memory import (
    AT_ENCODE,
    AT_PREFILL,
    ENCODE_AXIS,
    ENCODE_B_AXIS,
    ENCODE_B_POINTS,
    ENCODE_B_ROWS,
    ENCODE_POINTS,
    ENCODE_ROWS,
    NEGATIVE,
    PREFILL,
    PREFILL_B,
    REACH,
    T_AXIS,
    T_BATCHES,
    T_N_BATCHES,
    T_POINTS,
    T_ROWS,
    WHOLE,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@entry
def fill_rows(
    sm: Floats, batch: Floats, tokens: Floats, values: Floats, shares: Floats, rows: Floats
) -> None:
    """rows[n, k]: ns of a batch of n at token point k and share shares[n]; row 0, no batch, is 0."""
    for k in range(len(tokens)):
        rows[0, k] = 0.0
    for n in range(1, len(shares)):
        for k in range(len(tokens)):
            rows[n, k] = 1e9 * interpolate(sm, batch, tokens, values, shares[n], float(n), tokens[k])


@entry
def fill_planes(
    sm: Floats, batch: Floats, tokens: Floats, values: Floats, shares: Floats, planes: Floats
) -> None:
    """planes[level, b, k]: ns at batch point b, token point k, share shares[level]; 0 at share 0, where nothing runs."""
    for level in range(len(shares)):
        for b in range(len(batch)):
            for k in range(len(tokens)):
                planes[level, b, k] = 0.0
                if shares[level] > 0.0:
                    planes[level, b, k] = 1e9 * interpolate(
                        sm, batch, tokens, values, shares[level], batch[b], tokens[k]
                    )


@entry
def fill_delays(sm: Floats, batch: Floats, tokens: Floats, values: Floats, sizes: Ints, result: Ints) -> None:
    """Latency of one request each on the whole GPU, by its size, rounded to ns."""
    for i in range(len(sizes)):
        seconds = interpolate(sm, batch, tokens, values, 100.0, 1.0, float(sizes[i]))
        result[i] = int(np.rint(seconds * 1e9))


def rows_of(grid: Grid, shares: Floats) -> Floats:
    """float64[len(shares), K]; see `fill_rows`."""
    rows = np.empty((len(shares), len(grid.tokens)))
    fill_rows(grid.sm, grid.batch, grid.tokens, grid.values, shares, rows)
    return rows


def slopes_of(rows: Floats, axis: Floats) -> Floats:
    """float64 like `rows`: ns per token from each point to the next; 0 behind the last."""
    slopes = np.zeros_like(rows)
    if len(axis) > 1:
        slopes[:, :-1] = (rows[:, 1:] - rows[:, :-1]) / (axis[1:] - axis[:-1])
    return slopes


def may_fall_below_zero(rows: Floats, slopes: Floats, axis: Floats) -> bool:
    """Whether a look-up along `axis`, from 0 to however far, could be negative."""
    if len(axis) == 1:
        return bool((rows < 0).any())
    at_zero = rows[:, 0] - slopes[:, 0] * axis[0]
    return bool((rows < 0).any() or (at_zero < 0).any() or (slopes[:, -2] < 0).any())


def planes_of(grid: Grid, shares: Floats) -> Floats:
    """float64[len(shares), P, K]; see `fill_planes`."""
    planes = np.empty((len(shares), len(grid.batch), len(grid.tokens)))
    fill_planes(grid.sm, grid.batch, grid.tokens, grid.values, shares, planes)
    return planes


def delays_of(grid: Grid, sizes: Ints) -> Ints:
    """int64[N] ns; see `fill_delays`."""
    result = np.empty(len(sizes), np.int64)
    fill_delays(grid.sm, grid.batch, grid.tokens, grid.values, np.ascontiguousarray(sizes), result)
    return result


@compiled
def linear(f: Floats, axis: int, points: int, row: int, x: float) -> float:
    """Piecewise linear, end segments prolonged; one point is constant."""
    if points == 1:
        return float(f[row])
    k = 0
    while k < points - 2 and x >= f[axis + k + 1]:
        k += 1
    low = f[row + k]
    return float(low + (f[row + k + 1] - low) * ((x - f[axis + k]) / (f[axis + k + 1] - f[axis + k])))


@compiled
def _bilinear(m: Ints, f: Floats, table: int, level: int, n: float, x: float) -> float:
    """The same in batch and tokens, on one level of the `table` whose header begins there (TABLE)."""
    axis, points = m[table + T_AXIS], m[table + T_POINTS]
    batches, n_batches = m[table + T_BATCHES], m[table + T_N_BATCHES]
    plane = m[table + T_ROWS] + level * n_batches * points
    if n_batches == 1:
        return linear(f, axis, points, plane, x)
    b = 0
    while b < n_batches - 2 and n >= f[batches + b + 1]:
        b += 1
    low = linear(f, axis, points, plane + b * points, x)
    if n == f[batches + b]:
        return low
    high = linear(f, axis, points, plane + (b + 1) * points, x)
    return float(low + (high - low) * ((n - f[batches + b]) / (f[batches + b + 1] - f[batches + b])))


@compiled
def noted(m: Ints, stage: int, batch: int, tokens: float, latency: float) -> float:
    """`latency`, remembering how far out the look-up went; a negative one is remembered and counts as 0."""
    at = REACH + 2 * stage
    if batch > m[at]:
        m[at] = batch
    if tokens > m[at + 1]:
        m[at + 1] = int(np.ceil(tokens))
    if latency < 0.0:
        m[NEGATIVE] = 1 + stage
        return 0.0
    return latency


@compiled
def encode_ns(m: Ints, f: Floats, batch: int, tokens: float) -> float:
    row = m[ENCODE_ROWS] + batch * m[ENCODE_POINTS]
    return noted(m, AT_ENCODE, batch, tokens, linear(f, m[ENCODE_AXIS], m[ENCODE_POINTS], row, tokens))


@compiled
def encode_beside_ns(m: Ints, f: Floats, batch: int, tokens: float) -> float:
    row = m[ENCODE_B_ROWS] + batch * m[ENCODE_B_POINTS]
    latency = linear(f, m[ENCODE_B_AXIS], m[ENCODE_B_POINTS], row, tokens)
    return noted(m, AT_ENCODE, batch, tokens, latency)


@compiled
def prefill_ns(m: Ints, f: Floats, level: int, batch: int, tokens: float) -> float:
    """A local prefill, at the share that this level leaves it."""
    return noted(m, AT_PREFILL, batch, tokens, _bilinear(m, f, PREFILL, level, float(batch), tokens))


@compiled
def prefill_beside_ns(m: Ints, f: Floats, level: int, batch: int, tokens: float) -> float:
    return noted(m, AT_PREFILL, batch, tokens, _bilinear(m, f, PREFILL_B, level, float(batch), tokens))


@compiled
def whole_prefill_ns(m: Ints, f: Floats, batch: int, tokens: float) -> float:
    """A prefill by a worker that has its GPU to itself."""
    return noted(m, AT_PREFILL, batch, tokens, _bilinear(m, f, WHOLE, 0, float(batch), tokens))

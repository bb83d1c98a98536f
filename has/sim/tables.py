"""Latencies as the kernel reads them: for one deployment, in ns, with what is constant folded in.

A stage's grid over (sm, batch, tokens) is multilinear, so that fixing the share, or the share and
the batch, and keeping the profiled points of the other axes loses nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from has.core.compiled import compiled
from has.latency.lookup import Grid, interpolate
from has.sim.columns import AT_ENCODE, AT_PREFILL, NEGATIVE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Tables(NamedTuple):
    """Latencies in ns. B the encode batch bound, K a stage's token points, P its batch points.

    encode_tokens [K], encode [B+1, K]            by batch, each at its own share x*(batch)
    beside_tokens [K'], encode_beside [B+1, K']   beside a prefill; empty where the profile has none
    prefill_batch [P], prefill_tokens [K], prefill [B+1, P, K]   level 0: whole GPU; level n: beside x*(n)
    ... and beside an encode, levels 1.. (empty where the profile has none)
    decode_tokens [K], decode [S+1, K]            by batch, whole GPU
    prefill_share [B+1]                           percent of the SMs at each level
    """

    encode_tokens: Floats
    encode: Floats
    encode_beside_tokens: Floats
    encode_beside: Floats
    prefill_batch: Floats
    prefill_tokens: Floats
    prefill: Floats
    prefill_beside_batch: Floats
    prefill_beside_tokens: Floats
    prefill_beside: Floats
    decode_tokens: Floats
    decode: Floats
    prefill_share: Floats


@compiled
def rows_at(
    sm: Floats, batch: Floats, tokens: Floats, values: Floats, shares: Floats, most: int
) -> Floats:
    """ns at (n, each token point), n = 0..most, at share shares[n]; row 0 is that of no batch at all."""
    rows = np.zeros((most + 1, len(tokens)))
    for n in range(1, most + 1):
        for k in range(len(tokens)):
            rows[n, k] = 1e9 * interpolate(sm, batch, tokens, values, shares[n], float(n), tokens[k])
    return rows


@compiled
def planes_at(sm: Floats, batch: Floats, tokens: Floats, values: Floats, shares: Floats) -> Floats:
    """ns at (share, each batch point, each token point); NaN where the share is 0."""
    planes = np.empty((len(shares), len(batch), len(tokens)))
    for level in range(len(shares)):
        for b in range(len(batch)):
            for k in range(len(tokens)):
                if shares[level] > 0.0:
                    planes[level, b, k] = 1e9 * interpolate(
                        sm, batch, tokens, values, shares[level], batch[b], tokens[k]
                    )
                else:
                    planes[level, b, k] = np.nan
    return planes


def rows(grid: Grid, shares: Floats) -> Floats:
    """`rows_at` of a grid, for batches up to len(shares) - 1."""
    result: Floats = rows_at(grid.sm, grid.batch, grid.tokens, grid.values, shares, len(shares) - 1)
    return result


def planes(grid: Grid, shares: Floats) -> Floats:
    """`planes_at` of a grid."""
    result: Floats = planes_at(grid.sm, grid.batch, grid.tokens, grid.values, shares)
    return result


@compiled
def delays(batch: Floats, tokens: Floats, plane: Floats, sizes: Ints) -> Ints:
    """Latency of one request each, by its size, rounded to ns."""
    result = np.empty(len(sizes), np.int64)
    for i in range(len(sizes)):
        result[i] = int(np.rint(bilinear(batch, tokens, plane, 1.0, float(sizes[i]))))
    return result


@compiled
def linear(axis: Floats, values: Floats, x: float) -> float:
    """Piecewise linear, end segments prolonged; one point is constant."""
    if len(axis) == 1:
        return float(values[0])
    k = 0
    while k < len(axis) - 2 and x >= axis[k + 1]:
        k += 1
    low = values[k]
    return float(low + (values[k + 1] - low) * ((x - axis[k]) / (axis[k + 1] - axis[k])))


@compiled
def bilinear(batch: Floats, tokens: Floats, plane: Floats, n: float, x: float) -> float:
    """The same in batch and tokens."""
    if len(batch) == 1:
        return linear(tokens, plane[0], x)
    b = 0
    while b < len(batch) - 2 and n >= batch[b + 1]:
        b += 1
    low = linear(tokens, plane[b], x)
    if n == batch[b]:
        return low
    return low + (linear(tokens, plane[b + 1], x) - low) * ((n - batch[b]) / (batch[b + 1] - batch[b]))


@compiled
def note(reach: Ints, tally: Ints, stage: int, batch: int, tokens: float, latency: float) -> float:
    """Remember how far out a look-up went; a negative latency is remembered and counts as 0."""
    if batch > reach[stage, 0]:
        reach[stage, 0] = batch
    if tokens > reach[stage, 1]:
        reach[stage, 1] = int(np.ceil(tokens))
    if latency < 0.0:
        tally[NEGATIVE] = 1 + stage
        return 0.0
    return latency


@compiled
def encode_ns(tables: Tables, reach: Ints, tally: Ints, batch: int, tokens: float) -> float:
    latency = linear(tables.encode_tokens, tables.encode[batch], tokens)
    return note(reach, tally, AT_ENCODE, batch, tokens, latency)


@compiled
def encode_beside_ns(tables: Tables, reach: Ints, tally: Ints, batch: int, tokens: float) -> float:
    latency = linear(tables.encode_beside_tokens, tables.encode_beside[batch], tokens)
    return note(reach, tally, AT_ENCODE, batch, tokens, latency)


@compiled
def prefill_ns(tables: Tables, reach: Ints, tally: Ints, level: int, batch: int, tokens: float) -> float:
    latency = bilinear(
        tables.prefill_batch, tables.prefill_tokens, tables.prefill[level], float(batch), tokens
    )
    return note(reach, tally, AT_PREFILL, batch, tokens, latency)


@compiled
def prefill_beside_ns(
    tables: Tables, reach: Ints, tally: Ints, level: int, batch: int, tokens: float
) -> float:
    latency = bilinear(
        tables.prefill_beside_batch,
        tables.prefill_beside_tokens,
        tables.prefill_beside[level],
        float(batch),
        tokens,
    )
    return note(reach, tally, AT_PREFILL, batch, tokens, latency)

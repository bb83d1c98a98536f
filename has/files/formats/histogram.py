"""Counts of whole numbers in bounded memory: exact below 131,072, to a thousandth above."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from has.files.trace import MOST_TOKENS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

EXACT = 1 << 17
STEP = math.log(1.001)
_COARSE = int(math.log(MOST_TOKENS / EXACT) / STEP) + 2
_VALUES = np.concatenate([np.arange(EXACT), EXACT * np.exp((np.arange(_COARSE) + 0.5) * STEP)])
"""What stands for each bin: the number itself, above EXACT the middle of a thousandth."""


class Histogram:
    """A multiset of whole numbers from 0 to 2^40; mean and extremes are exact throughout."""

    def __init__(self) -> None:
        self._counts: Ints = np.zeros(0, np.int64)
        self.total = 0
        self.sum = 0
        self.most = 0

    def add(self, values: Ints, weights: Ints | None = None) -> None:
        """Count every value, `weights` times each."""
        if len(values) == 0:
            return
        weights = np.ones(len(values), np.int64) if weights is None else weights
        self.total += int(weights.sum())
        self.sum += int((values * weights).sum())
        self.most = max(self.most, int(values.max()))
        bins = np.bincount(_bin(values), weights).astype(np.int64)
        if len(bins) > len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros(len(bins) - len(self._counts), np.int64)])
        self._counts[: len(bins)] += bins

    @property
    def mean(self) -> float:
        return self.sum / self.total

    def percentile(self, q: float) -> float:
        """Linear between order statistics, as numpy's default is."""
        return float(self.percentiles(np.array([q]))[0])

    def percentiles(self, qs: Floats) -> Floats:
        running = np.cumsum(self._counts)
        rank = (self.total - 1) * np.asarray(qs, np.float64) / 100
        low = np.floor(rank)
        below = self._at(running, low)
        above = self._at(running, np.minimum(low + 1, self.total - 1))
        return below + (above - below) * (rank - low)

    def _at(self, running: Ints, ranks: Floats) -> Floats:
        values: Floats = _VALUES[np.searchsorted(running, ranks, side="right")]
        capped: Floats = np.minimum(values, self.most)
        return capped

    def distinct(self) -> dict[int, int]:
        """Value → count, ascending. Above EXACT the values are rounded."""
        (present,) = np.nonzero(self._counts)
        return {round(float(_VALUES[i])): int(self._counts[i]) for i in present}

    def slices(self, parts: int) -> Ints:
        """`parts` numbers that stand for the whole, all alike: the mean of each equal slice of the order.

        Slice means keep the mean of the whole, which slice medians would not.
        """
        ends = self.total * np.arange(parts + 1) / parts
        running = np.concatenate([[0], np.cumsum(self._counts)]).astype(np.float64)
        (present,) = np.nonzero(self._counts)
        mass = np.concatenate([[0.0], np.cumsum(self._counts[present] * _VALUES[present])])
        upto = np.interp(ends, np.concatenate([[0.0], running[present + 1]]), mass)
        means: Ints = np.rint(np.diff(upto) * parts / self.total).astype(np.int64)
        return means


def _bin(values: Ints) -> Ints:
    coarse = values >= EXACT
    if not coarse.any():
        return values
    bins = values.copy()
    bins[coarse] = EXACT + (np.log(values[coarse] / EXACT) / STEP).astype(np.int64)
    return bins

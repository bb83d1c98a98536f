"""What may be wrong with a profile: log factors on its stage latencies, in the order of one vector θ.

    preprocess | encode at each of its knots | prefill | decode at each of its knots | beside

`beside` is what co-location adds to encode and local prefill. A profile taken with another driver,
engine or device is wrong by one share where launching costs most and by another where arithmetic
does. So the log factor of encode and decode is a curve over the log of the batch size: it is held at
a few batch sizes (knots) and linear between them. Neighbouring sizes are wrong alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from has.core.requests import Floats
from has.core.stage import Stage
from has.latency.lookup import LatencyModel

FACTORS = ("preprocess", "encode", "prefill", "decode", "beside")
VARYING = 0.3
"""Share of a factor's variance that differs from batch size to batch size; the rest is common to all."""
ALIKE = math.log(8)
"""How far that reaches: batch sizes three doublings apart have .6 of it in common."""

Curve = Callable[[Floats], Floats]
"""Log factor at batch sizes [B] → [B]."""


@dataclass(frozen=True)
class Factors:
    """Where θ has its knots: by name of the factor, the batch sizes, ascending. One of no name is constant."""

    knots: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, latency: LatencyModel, encode_batch: int, decode_batch: int) -> Factors:
        """With knots over the batches that a search uses and the profile tells apart."""
        knots = {}
        for stage, largest, step in ((Stage.ENCODE, encode_batch, 2), (Stage.DECODE, decode_batch, 4)):
            if latency.covers(stage) and len(axis := latency.grid(stage).batch) > 1:
                knots[str(stage)] = sizes(min(largest, axis[-1]), step)
        return cls(knots)

    @cached_property
    def _place(self) -> Mapping[str, slice]:
        places, begin = {}, 0
        for name in FACTORS:
            places[name] = slice(begin, begin + len(self.knots.get(name, (1.0,))))
            begin = places[name].stop
        return places

    @property
    def size(self) -> int:
        return int(self._place[FACTORS[-1]].stop)

    def row(self, name: str, batch: float = 1.0) -> Floats:
        """Weights [F]: row @ θ is the log factor `name` at this batch size."""
        row = np.zeros(self.size)
        knots = self.knots.get(name, (1.0,))
        at = np.interp(math.log(max(batch, 1e-9)), np.log(knots), np.arange(len(knots)))
        low = min(int(at), max(len(knots) - 2, 0))
        begin = self._place[name].start
        row[begin + low] = 1 - (at - low)
        if len(knots) > 1:
            row[begin + low + 1] = at - low
        return row

    def rows(self, batches: Mapping[str, float]) -> Floats:
        """All of `FACTORS`, each at its own batch size: [5, F]."""
        return np.array([self.row(name, batches.get(name, 1.0)) for name in FACTORS])

    def prior(self, sd: Floats) -> Floats:
        """Covariance of θ [F, F], where `sd` [5] is the standard deviation of each factor at any batch size."""
        covariance = np.zeros((self.size, self.size))
        for name, deviation in zip(FACTORS, sd, strict=True):
            logs = np.log(self.knots.get(name, (1.0,)))
            apart = (logs[:, None] - logs) / ALIKE
            block = self._place[name]
            covariance[block, block] = deviation**2 * (1 - VARYING + VARYING * np.exp(-(apart**2) / 2))
        return covariance

    def widest(self, sd: Floats) -> Floats:
        """Of the standard deviations of θ [F] the largest of each factor [5]."""
        return np.array([sd[self._place[name]].max() for name in FACTORS])

    def parts(self, theta: Floats) -> tuple[Floats, Mapping[str, Curve]]:
        """θ as one number for each constant factor [5] (0 for others), and a curve for each of the others."""
        constant = np.zeros(len(FACTORS))
        curves: dict[str, Curve] = {}
        for i, name in enumerate(FACTORS):
            values = theta[self._place[name]]
            if len(values) == 1:
                constant[i] = values[0]
            else:
                curves[name] = _curve(np.log(self.knots[name]), values)
        return constant, curves


def _curve(logs: Floats, values: Floats) -> Curve:
    return lambda batch: np.interp(np.log(np.maximum(batch, 1e-9)), logs, values)


def sizes(largest: float, step: int) -> tuple[float, ...]:
    """1, then `step` times as much each, and `largest`."""
    count = int(math.log(max(largest, 1.0), step) + 1e-9) + 1
    return tuple(sorted({*(float(step**k) for k in range(count)), max(float(largest), 1.0)}))

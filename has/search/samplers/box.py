"""A box for samplers that know only boxes: what they ask for becomes the nearest candidate left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from has.core.requests import Floats
from has.search.space import Candidate

OTHER_TOPOLOGY = 3.0
"""Distance that a wrong topology adds; an axis of the box has length 1."""


class Box:
    """Axes that vary over a list of candidates, each in its own unit, and the way back.

    topology; gpus in all; encode and prefill GPUs; TP of prefill and decode; B by its index; s.
    """

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        rows = [_raw(c) for c in candidates]
        self.choices: dict[str, list[Any]] = {name: sorted({row[name] for row in rows}) for name in rows[0]}
        self.axes = [name for name, values in self.choices.items() if len(values) > 1]

    def values(self, candidate: Candidate) -> dict[str, Any]:
        """The candidate's place on each axis that varies."""
        raw = _raw(candidate)
        return {name: raw[name] for name in self.axes}

    def nearest(self, asked: Mapping[str, Any], left: Sequence[Candidate]) -> Candidate:
        """Of `left`, the one closest to what was asked; the first of equals."""
        target = self._unit(dict(asked))
        points = np.array([self._unit(_raw(c)) for c in left])
        distance = np.abs(points - target).sum(axis=1)
        if "topology" in self.axes:
            distance = distance + OTHER_TOPOLOGY * np.array([c.topology != asked["topology"] for c in left])
        return left[int(np.argmin(distance))]

    def _unit(self, values: Mapping[str, Any]) -> Floats:
        return np.array([self._place(name, values[name]) for name in self.axes if name != "topology"])

    def _place(self, name: str, value: float) -> float:
        low, high = self.choices[name][0], self.choices[name][-1]
        if name == "encode_batch":
            low, high, value = (math.log2(max(v, 1)) for v in (low, high, value))
        return (value - low) / (high - low) if high > low else 0.0


def _raw(c: Candidate) -> dict[str, Any]:
    disaggregated = c.topology == "disaggregated"
    return {
        "topology": c.topology,
        "gpus": c.total,
        "encode": c.gpus[0],
        "prefill": c.gpus[1] if disaggregated else 0,
        "tp_prefill": c.tp[1] if disaggregated else 1,
        "tp_decode": c.tp[-1],
        "encode_batch": c.encode_batch,
        "prefill_offload": c.share,
    }

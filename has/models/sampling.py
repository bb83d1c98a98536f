"""Choosing the next token. Greedy, or by temperature with randomness that belongs to the request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request samples. Temperature 0 is greedy; `top_p` keeps the smallest set of that mass.

    The draw for a request's n-th token depends on (`seed`, n) alone, so neither batching nor the
    worker it runs on changes what a request is told.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def choose(self, logits: npt.NDArray[np.float32], step: int) -> int:
        """The id for a request's token number `step` (from 0), given its logits [vocab]."""
        if self.temperature == 0.0:
            return int(logits.argmax())
        order = np.argsort(-logits, kind="stable")
        if self.top_k:
            order = order[: self.top_k]
        scaled = logits[order].astype(np.float64) / self.temperature
        weights = np.exp(scaled - scaled[0])
        mass = np.cumsum(weights)
        if self.top_p < 1.0:
            mass = mass[: int(np.searchsorted(mass, self.top_p * mass[-1])) + 1]
        draw = np.random.Generator(np.random.Philox(key=self.seed % 2**64, counter=step)).random()
        return int(order[min(int(np.searchsorted(mass, draw * mass[-1], side="right")), len(mass) - 1)])

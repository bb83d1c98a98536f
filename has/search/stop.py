"""When to stop proposing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StopRule:
    """Satisfied once the expected improvement was below `threshold` (a share of the best) `patience` times running.

    Each proposal reports its own expected improvement; None (a sampler without one) never stops.
    """

    threshold: float = 0.01
    patience: int = 2
    _small: int = 0

    def heard(self, expected_improvement: float | None) -> None:
        if expected_improvement is None or expected_improvement >= self.threshold:
            self._small = 0
        else:
            self._small += 1

    @property
    def satisfied(self) -> bool:
        return self._small >= self.patience

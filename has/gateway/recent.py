"""What the last minute was like: latencies, misses and encode batches, for the status page."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from has.core.slo import Slo

WINDOW_S = 60.0
MOST = 10_000
"""Entries kept at most, whatever comes in a minute."""


@dataclass(frozen=True, slots=True)
class _Answered:
    at_s: float
    ttft_s: float
    tpot_s: float | None


@dataclass(slots=True)
class Recent:
    """Told of ends and launches with their instant; instants never go back by more than a moment."""

    _answered: deque[_Answered] = field(default_factory=lambda: deque(maxlen=MOST))
    _missed: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=MOST))
    _batches: deque[tuple[float, int, str]] = field(default_factory=lambda: deque(maxlen=MOST))

    def answered(self, now_s: float, ttft_s: float, tpot_s: float | None) -> None:
        """A whole answer; `tpot_s` is None where it had one token."""
        self._answered.append(_Answered(now_s, ttft_s, tpot_s))

    def missed(self, now_s: float, reason: str) -> None:
        """A request that was refused, or ended by a fault of ours."""
        self._missed.append((now_s, reason))

    def launched(self, now_s: float, size: int, reason: str) -> None:
        """An encode batch."""
        self._batches.append((now_s, size, reason))

    def summary(self, now_s: float, slo: Slo | None) -> dict[str, Any]:
        """Figures of the last WINDOW_S; null where there is nothing to average."""
        since_s = now_s - WINDOW_S
        answered = [entry for entry in self._answered if entry.at_s >= since_s]
        missed = Counter(reason for at_s, reason in self._missed if at_s >= since_s)
        batches = [(size, reason) for at_s, size, reason in self._batches if at_s >= since_s]
        ended = len(answered) + missed.total()
        met = sum(
            entry.ttft_s <= slo.ttft_s and (entry.tpot_s is None or entry.tpot_s <= slo.tpot_s)
            for entry in answered
            if slo is not None
        )
        return {
            "window_s": WINDOW_S,
            "answered": len(answered),
            "answered_rps": len(answered) / WINDOW_S,
            "missed": dict(missed),
            "attainment": met / ended if ended and slo is not None else None,
            "ttft_ms": _spread([entry.ttft_s for entry in answered]),
            "tpot_ms": _spread([entry.tpot_s for entry in answered if entry.tpot_s is not None]),
            "encode_batches": {
                "mean": sum(size for size, _ in batches) / len(batches) if batches else None,
                "sizes": dict(sorted(Counter(size for size, _ in batches).items())),
                "reasons": dict(Counter(reason for _, reason in batches)),
            },
        }


def _spread(seconds: list[float]) -> dict[str, float | None]:
    if not seconds:
        return {"p50": None, "p90": None, "p99": None}
    values = 1e3 * np.percentile(seconds, [50, 90, 99])
    return {"p50": float(values[0]), "p90": float(values[1]), "p99": float(values[2])}

"""The validity gate: was the host quiet enough for a trial or a profile point to be believed?

Deadline pacing makes a stage last what the device means it to, unless the host cannot keep up; then figures
would describe the host. The bounds are those at which simulated and live figures were seen to agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from has.device.base import Span

P90_BOUND: dict[str, float] = {"encode": 1.03, "prefill": 1.03, "decode": 1.08, "mixed": 1.08}
LOAD_LATE_BOUND_S = 0.025


@dataclass(frozen=True, slots=True)
class Verdict:
    """passed; the p90 of real/meant duration per stage; how late the load was; reason in words, or empty."""

    passed: bool
    p90: dict[str, float]
    load_late_s: float
    reason: str


def p90(values: Sequence[float]) -> float:
    """The value that 90 % are at or below, by linear interpolation."""
    ordered = sorted(values)
    place = 0.9 * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def gate(spans: Mapping[str, Sequence[Span]], load_late_s: float = 0.0) -> Verdict:
    """Judge the spans of each stage (keys as in P90_BOUND) and the lateness of the load generator."""
    measured = {stage: p90([span.ratio for span in of]) for stage, of in spans.items() if of}
    reasons = [
        f"{stage} took {ratio:.3f} of its meant duration at p90 (at most {P90_BOUND[stage]})"
        for stage, ratio in measured.items()
        if ratio > P90_BOUND[stage]
    ]
    if load_late_s >= LOAD_LATE_BOUND_S:
        reasons.append(
            f"the load generator was {load_late_s * 1e3:.0f} ms late (less than {LOAD_LATE_BOUND_S * 1e3:.0f})"
        )
    return Verdict(
        not reasons, measured, load_late_s, "; ".join(reasons) and "host too busy: " + "; ".join(reasons)
    )

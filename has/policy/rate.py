"""Online estimate of the arrival rate at one encoder.

The estimate is (n - 1/3)/S over the last n = 60 gaps between arrivals, S their sum. For Poisson
arrivals S is Gamma(n, λ), whose median is (n - 1/3)/λ to a part in 10^4: the estimate is as often too high as too low,
from the first gaps on. Why 60 gaps:

- 64 arrivals after a tenfold change the window must hold gaps of the new rate alone. When the rate
  rises, the gap that straddles the change is of the old kind, as long as ten new ones: it must be out.
- Within 25 % of λ: P(S in [(n-1/3)/1.25λ, (n-1/3)/.75λ]) = .942 for n = 60 (.912 for 48, .883 for 40).
- Ten arrivals at one instant put ten gaps of 0 into the window: the estimate rises by 60/50, far
  below the factor of two that a change detector, quicker by design, would follow a burst to.
- The window forgets by arrivals, so a fall of the rate shows within a few arrivals (long gaps weigh
  by their length), and a rise, which full batches absorb anyway, within sixty.

Silence: `estimate_at` is never above 1/(time since the last arrival). The gap threshold of a batch
that waits should nevertheless be that of its last arrival (`step`): were it to follow the silence,
g = κ·elapsed would run ahead of elapsed for every κ > 1 and the gap rule never fire.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.core.compiled import compiled
from has.policy.arguments import real, time_ns

WINDOW = 60
"""Gaps the estimate looks back on."""

State = NDArray[np.int64]
"""int64[WINDOW + 4]: gaps known, slot of the newest arrival, spacing in ns assumed before the first
arrival (0: nothing assumed), then a ring of the last WINDOW + 1 arrivals, whose gaps the window is."""

_KNOWN, _NEWEST, _ASSUMED, _RING = 0, 1, 2, 3
_SLOTS = WINDOW + 1


def new_state(initial_rate: float | None = None) -> State:
    """A state before its first arrival. `initial_rate` (per second) stands in until 60 gaps are known.

    It counts as sixty gaps of that rate, pushed out one by one; without it the estimate is 0
    (unknown) until the second arrival.
    """
    state = np.zeros(_RING + _SLOTS, np.int64)
    if initial_rate is not None:
        state[_ASSUMED] = max(1, min(round(1e9 / initial_rate), 2**55))
    return state


@compiled
def step(state: State, now_ns: int) -> float:
    """An arrival at `now_ns`: changes `state`, returns the estimate per second (0: unknown).

    A time before the last arrival counts as that arrival's time.
    """
    newest = state[_NEWEST]
    if state[_KNOWN] == 0 and newest == 0:
        # Slot 0 is never written by a first arrival, so newest = 0 with no gap known means none came yet.
        newest = 1
        state[_RING + newest] = now_ns
        if state[_ASSUMED] > 0:
            # The assumed past, oldest gap first in slots 2..60 and 0, spaced so that the estimate is the given rate.
            for back in range(1, _SLOTS):
                slot = (newest - back) % _SLOTS
                state[_RING + slot] = now_ns - state[_ASSUMED] * back + state[_ASSUMED] * back // (3 * WINDOW)
            state[_KNOWN] = WINDOW
        state[_NEWEST] = newest
    else:
        now_ns = max(now_ns, state[_RING + newest])
        newest = (newest + 1) % _SLOTS
        state[_RING + newest] = now_ns
        state[_NEWEST] = newest
        if state[_KNOWN] < WINDOW:
            state[_KNOWN] += 1
    return _over_window(state)


@compiled
def estimate_at(state: State, now_ns: int) -> float:
    """The estimate per second at `now_ns`, no arrival: at most 1/(time since the last one). 0: unknown."""
    if state[_KNOWN] == 0 and state[_NEWEST] == 0:
        return 1e9 / state[_ASSUMED] if state[_ASSUMED] > 0 else 0.0
    estimate = _over_window(state)
    elapsed_ns = now_ns - state[_RING + state[_NEWEST]]
    if elapsed_ns > 0:
        estimate = min(estimate, 1e9 / elapsed_ns)
    return estimate


@compiled
def _over_window(state: State) -> float:
    known = state[_KNOWN]
    if known == 0:
        return 0.0
    newest = state[_NEWEST]
    span_ns = state[_RING + newest] - state[_RING + (newest - known) % _SLOTS]
    return float((known - 1 / 3) * 1e9 / max(span_ns, 1))


class RateEstimator:
    """λ at one encoder, learnt from its arrivals.

    `initial_rate` is what to believe before they say otherwise (requests per second), None for nothing.
    """

    def __init__(self, initial_rate: float | None = None) -> None:
        self._state = new_state(
            None if initial_rate is None else real(initial_rate, "initial_rate", 0.0, above=True)
        )

    def arrive(self, now_s: float) -> float | None:
        """One arrival; the rate believed after it, which is the one that g follows. None: unknown yet."""
        return float(step(self._state, time_ns(now_s))) or None

    def rate(self, now_s: float) -> float | None:
        """The rate believed at `now_s`; however good the past, at most 1/(time since the last arrival)."""
        return float(estimate_at(self._state, time_ns(now_s))) or None

"""Poisson-gap micro-batching: when to launch an encode batch that is not full.

    symbol  name              meaning
    B       batch_bound       most requests of one batch
    p       fill_probability  chance that a batch fills
    λ       rate              requests per second at this encoder
    κ       gap_coefficient   -ln(1 - p^(1/(B-1)))
    g       gap               κ/λ, the silence after which waiting on is not worth it

A batch fills when B-1 gaps in a row stay below g. Gaps of Poisson arrivals are exponential, so
P(full) = (1 - e^(-λg))^(B-1), and P(full) = p gives λg = κ. With q = p^(1/(B-1)) = P(gap < g):

    E[batch]      = (1 - q^B)/(1 - q)          the batch ends at the first long gap, or at B
    E[first wait] = E[batch] - 1               in units of 1/λ
    E[wait]       = Σ_{j=1}^{B-1} j·q^j / E[batch]

The batcher's clock never runs backwards, and requests added at one instant keep the order of their
adds: together a total order, so that simulated and live batches are the same batches.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from has.core.compiled import compiled
from has.policy.arguments import not_before_s, real, span_ns, time_ns, whole

Reason = Literal["none", "full", "gap", "age", "drain"]
REASONS: tuple[Reason, ...] = ("none", "full", "gap", "age", "drain")
"""Names of the codes that `reason_at` returns; `drain` is the live batcher's alone."""
NONE, FULL, GAP, AGE, DRAIN = range(5)
NEVER_NS = -1

T = TypeVar("T")


def gap_coefficient(batch_bound: int, fill_probability: float) -> float:
    """κ = -ln(1 - p^(1/(B-1))), dimensionless: the gap threshold is κ/λ.

    0 for B = 1 (launch at once) and for p = 0 (greedy), infinity for p = 1 (wait until full).
    Raises InputError unless B >= 1 and 0 <= p <= 1.
    """
    bound = whole(batch_bound, "batch_bound", 1)
    p = real(fill_probability, "fill_probability", 0.0, 1.0)
    if bound == 1 or p == 0:
        return 0.0
    if p == 1:
        return math.inf
    log_q = math.log(p) / (bound - 1)
    # 1 - q by whichever form cancels nothing: expm1 near q = 1, log1p near q = 0.
    return -math.log(-math.expm1(log_q)) if log_q > -math.log(2) else -math.log1p(-math.exp(log_q))


def gap_ns(coefficient: float, rate: float | None) -> int:
    """g = κ/λ in nanoseconds, rounded once; -1 (no gap rule) without a rate or when κ is infinite.

    κ = 0 is greedy whatever the rate. `rate` in requests per second at this encoder.
    """
    if coefficient == 0:
        return 0
    return NEVER_NS if not rate else span_ns(coefficient / rate)


@compiled
def due_ns(
    waiting: int, bound: int, oldest_add_ns: int, last_add_ns: int, gap_ns: int, max_wait_ns: int
) -> int:
    """The instant from which the batch may be launched, -1 for never.

    Full: the last add (or earlier). Otherwise the sooner of oldest add + `max_wait_ns` and last add
    + `gap_ns`; a negative span switches its rule off. Spans must be below `FOREVER_NS`.
    """
    if waiting <= 0:
        return -1
    due = -1
    if waiting >= bound:
        due = last_add_ns
    if max_wait_ns >= 0 and (due < 0 or oldest_add_ns + max_wait_ns < due):
        due = oldest_add_ns + max_wait_ns
    if gap_ns >= 0 and (due < 0 or last_add_ns + gap_ns < due):
        due = last_add_ns + gap_ns
    return due


@compiled
def reason_at(
    now_ns: int, waiting: int, bound: int, oldest_add_ns: int, last_add_ns: int, gap_ns: int, max_wait_ns: int
) -> int:
    """Why the batch is due at `now_ns`: 0 not due, 1 full, 2 gap, 3 age; full before age before gap."""
    if waiting <= 0:
        return 0
    if waiting >= bound:
        return 1
    if max_wait_ns >= 0 and now_ns >= oldest_add_ns + max_wait_ns:
        return 3
    if gap_ns >= 0 and now_ns >= last_add_ns + gap_ns:
        return 2
    return 0


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """What was launched: `items` oldest first, and why (`full`, `gap`, `age` or `drain`)."""

    items: tuple[T, ...]
    reason: Reason
    add_times_s: tuple[float, ...]


class MicroBatcher(Generic[T]):
    """The requests that wait for one encoder.

    It stays open while the encoder is busy; whoever owns the encoder calls `take` when it is idle.
    Times are seconds on any one clock, rounded once to nanoseconds. A time before one already
    handed in counts as that one. `rate` None means no gap rule, `max_wait_s` None no age rule.
    """

    def __init__(
        self,
        batch_bound: int,
        rate: float | None = None,
        fill_probability: float = 0.6,
        max_wait_s: float | None = None,
    ) -> None:
        self.batch_bound = whole(batch_bound, "batch_bound", 1)
        self.coefficient = gap_coefficient(self.batch_bound, fill_probability)
        self._rate = _rate(rate)
        self._max_wait_ns = NEVER_NS if max_wait_s is None else span_ns(real(max_wait_s, "max_wait_s", 0.0))
        self._waiting: deque[tuple[int, T]] = deque()
        self._last_add_ns = 0
        self._now_ns: int | None = None
        self._drain_ns: int | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def rate(self) -> float | None:
        return self._rate

    @property
    def gap_s(self) -> float | None:
        """g in force, or None when there is no gap rule."""
        gap = self._gap_ns
        return None if gap < 0 else gap / 1e9

    @property
    def draining(self) -> bool:
        return self._drain_ns is not None

    def add(self, item: T, now_s: float) -> None:
        """`item` waits from now on."""
        self._last_add_ns = self._advance(now_s)
        self._waiting.append((self._last_add_ns, item))

    def remove(self, item: T) -> bool:
        """Take back `item` (by identity), as when its client left; False if it no longer waits. The last add stays."""
        for i, (_, waiting) in enumerate(self._waiting):
            if waiting is item:
                del self._waiting[i]
                return True
        return False

    def clear(self) -> tuple[T, ...]:
        """Take back all that waits, oldest first, as when the encoder is lost. Launches nothing."""
        items = tuple(item for _, item in self._waiting)
        self._waiting.clear()
        return items

    def next_due_s(self, room: int | None = None) -> float | None:
        """When the batch is due as things stand (absolute, may lie in the past), or None: empty, or no rule says when.

        `take` at this very time, with this `room`, launches.
        """
        if not self._waiting:
            return None
        due = int(due_ns(*self._state(room)))
        if self._drain_ns is not None:
            drained = max(self._drain_ns, self._last_add_ns)
            due = drained if due < 0 else min(due, drained)
        return None if due < 0 else not_before_s(due)

    def take(self, now_s: float, room: int | None = None) -> Batch[T] | None:
        """The batch to launch now, at most B requests, or None when none is due.

        With `room` for fewer than B, that many are a full batch. What is left keeps its add times, and the
        last add stays the last add.
        """
        now_ns = self._advance(now_s)
        reason = reason_at(now_ns, *self._state(room)) if self._waiting else NONE
        if reason == NONE and self._waiting and self.draining:
            reason = DRAIN
        if reason == NONE:
            return None
        taken = [self._waiting.popleft() for _ in range(min(self._bound(room), len(self._waiting)))]
        return Batch(
            items=tuple(item for _, item in taken),
            reason=REASONS[reason],
            add_times_s=tuple(add_ns / 1e9 for add_ns, _ in taken),
        )

    def set_rate(self, rate: float | None, now_s: float) -> None:
        """λ from now on; it moves g at once, also for the batch that waits."""
        self._advance(now_s)
        self._rate = _rate(rate)

    def drain(self, now_s: float) -> None:
        """From now on whatever waits is due, in batches of at most B. Adds still work, and are due at once."""
        now_ns = self._advance(now_s)
        if self._drain_ns is None:
            self._drain_ns = now_ns

    @property
    def _gap_ns(self) -> int:
        return gap_ns(self.coefficient, self._rate)

    def _bound(self, room: int | None) -> int:
        return self.batch_bound if room is None else min(self.batch_bound, room)

    def _state(self, room: int | None) -> tuple[int, int, int, int, int, int]:
        oldest_ns = self._waiting[0][0]
        return (
            len(self._waiting),
            self._bound(room),
            oldest_ns,
            self._last_add_ns,
            self._gap_ns,
            self._max_wait_ns,
        )

    def _advance(self, now_s: Any) -> int:
        now_ns = time_ns(now_s)
        self._now_ns = now_ns if self._now_ns is None else max(self._now_ns, now_ns)
        return self._now_ns


def _rate(rate: float | None) -> float | None:
    return None if rate is None else real(rate, "rate", 0.0, above=True)

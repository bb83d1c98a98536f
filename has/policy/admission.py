"""Backpressure: admit a request only if what it will need is in sight, else refuse it at once.

Pools announce what they have: the decode pool its free KV tokens, the gateway how many requests
still await a first token. A request refused now (HTTP 429 with Retry-After) can be sent elsewhere;
one queued behind more work than its SLO leaves time for is lost, and takes others with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from has.policy.arguments import real, whole

RefusalReason = Literal["queue", "kv", "too_long"]
SHORTEST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """What the pools announce, at the moment of the decision.

    unanswered         requests admitted that have no first token yet
    promised_kv_tokens KV tokens that admitted requests will reserve and do not hold yet
    free_kv_tokens     KV tokens no decode worker has reserved, over the pool; None: unlimited
    first_tokens_rps   requests that lately got their first token, per second; 0: not known
    released_tps       KV tokens that lately were given back, per second; 0: not known
    """

    unanswered: int = 0
    promised_kv_tokens: int = 0
    free_kv_tokens: int | None = None
    first_tokens_rps: float = 0.0
    released_tps: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """`reason` is None when admitted. `retry_after_s` is 0 then, and infinite when no wait can help."""

    reason: RefusalReason | None = None
    retry_after_s: float = 0.0

    @property
    def admitted(self) -> bool:
        return self.reason is None


class Admission:
    """Admits against three bounds.

    too_long  a request longer than `kv_tokens`, what one decode worker can ever hold
    queue     `max_queue` requests already await their first token (None: no such bound)
    kv        the KV promised and not yet free would exceed `kv_backlog` times the pool, `kv_pool`
              tokens: that much may wait in line, since running sequences end while others encode
    """

    def __init__(
        self,
        *,
        max_queue: int | None = None,
        kv_tokens: int | None = None,
        decode_workers: int = 1,
        kv_backlog: float = 1.0,
    ) -> None:
        self.max_queue = None if max_queue is None else whole(max_queue, "max_queue", 1)
        self.kv_tokens = None if kv_tokens is None else whole(kv_tokens, "kv_tokens", 1)
        self.kv_pool = (
            None if self.kv_tokens is None else self.kv_tokens * whole(decode_workers, "decode_workers", 1)
        )
        self.kv_backlog = real(kv_backlog, "kv_backlog", 0.0)

    def decide(self, tokens: int, load: Load) -> Decision:
        """May a request that will reserve `tokens` KV tokens (prompt, media and output) come in?"""
        need = whole(tokens, "tokens", 0)
        if self.kv_tokens is not None and need > self.kv_tokens:
            return Decision("too_long", math.inf)
        if self.max_queue is not None and load.unanswered >= self.max_queue:
            excess = load.unanswered - self.max_queue + 1
            return Decision("queue", _retry_after_s(excess, load.first_tokens_rps))
        if self.kv_pool is not None and load.free_kv_tokens is not None:
            in_line = load.promised_kv_tokens + need - load.free_kv_tokens
            excess = in_line - math.floor(self.kv_backlog * self.kv_pool)
            if excess > 0:
                return Decision("kv", _retry_after_s(excess, load.released_tps))
        return Decision()


def _retry_after_s(excess: float, drained_per_s: float) -> float:
    """Time until `excess` is worked off at the pace lately seen; bounded, and the least bound if no pace is known."""
    if drained_per_s <= 0:
        return SHORTEST_RETRY_S
    return min(max(excess / drained_per_s, SHORTEST_RETRY_S), LONGEST_RETRY_S)

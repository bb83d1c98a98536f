"""How fast a service lately moved, for the time to come back that a refusal names."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_S = 10.0


@dataclass(slots=True)
class Pace:
    """First tokens, and KV given back, of the last ten seconds."""

    _first_tokens: deque[float] = field(default_factory=deque)
    _released: deque[tuple[float, int]] = field(default_factory=deque)
    _released_tokens: int = 0

    def first_token(self, now_s: float) -> None:
        self._first_tokens.append(now_s)

    def released(self, now_s: float, kv_tokens: int) -> None:
        self._released.append((now_s, kv_tokens))
        self._released_tokens += kv_tokens

    def rates(self, now_s: float) -> tuple[float, float]:
        """(first tokens, KV tokens given back) a second."""
        horizon_s = now_s - WINDOW_S
        while self._first_tokens and self._first_tokens[0] < horizon_s:
            self._first_tokens.popleft()
        while self._released and self._released[0][0] < horizon_s:
            self._released_tokens -= self._released.popleft()[1]
        return len(self._first_tokens) / WINDOW_S, self._released_tokens / WINDOW_S

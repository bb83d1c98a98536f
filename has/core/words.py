"""Small words of messages."""

from __future__ import annotations

import math


def plural(count: int, noun: str, nouns: str = "") -> str:
    """`1 trial`, `2 trials`; `nouns` where an s does not make it."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def signed(percent: float, digits: int = 1) -> str:
    """A change in percent, with its sign: `+2.5 %`; what rounds to nothing has none."""
    shown = f"{percent:+.{digits}f}"
    return f"{shown.lstrip('+-') if float(shown) == 0 else shown} %"


def time_left(seconds: float) -> str:
    """Seconds ahead, rounded up: as coarse as a forecast is."""
    whole = math.ceil(seconds)
    return f"{whole} s" if whole < 120 else f"{math.ceil(whole / 60)} min"

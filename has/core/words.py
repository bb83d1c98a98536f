"""Small words of messages."""

from __future__ import annotations

import math
from typing import overload


def plural(count: int, noun: str, nouns: str = "") -> str:
    """`1 trial`, `2 trials`; `nouns` where an s does not make it."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


@overload
def percent(share: float, digits: int | None = 1) -> str: ...


@overload
def percent(share: None, digits: int | None = 1) -> None: ...


def percent(share: float | None, digits: int | None = 1) -> str | None:
    """A share in percent: `90.7 %`; None of what is not known. `digits` None: of a bound, as it was written."""
    if share is None:
        return None
    shown = f"{100 * share:.6g}" if digits is None else f"{100 * share:.{digits}f}"
    return f"{shown} %"


def signed(change: float, digits: int = 1) -> str:
    """A change as a share, with its sign: `+2.5 %`; what rounds to nothing has none."""
    shown = f"{100 * change:+.{digits}f}"
    return f"{shown.lstrip('+-') if float(shown) == 0 else shown} %"


def time_left(seconds: float) -> str:
    """Seconds ahead, rounded up: as coarse as a forecast is."""
    whole = math.ceil(seconds)
    return f"{whole} s" if whole < 120 else f"{math.ceil(whole / 60)} min"

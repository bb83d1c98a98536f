"""Checks of what callers hand in, and the two clocks' units: seconds outside, integer nanoseconds inside."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from has.errors import InputError

FOREVER_NS = 2**62
"""Spans this long (146 years) switch a rule off; sums of two of them still fit an int64."""


def whole(value: Any, field: str, least: int, most: int | None = None) -> int:
    """`value` as an int in [least, most], or an InputError. `True` is no integer, 2.0 no count."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if number >= least and (most is None or number <= most):
            return number
    allowed = f"an integer >= {least}" if most is None else f"an integer in {least}..{most}"
    raise InputError("not a count", where="argument", field=field, value=value, allowed=allowed)


def real(value: Any, field: str, least: float, most: float = math.inf, *, above: bool = False) -> float:
    """`value` as a finite float in [least, most] (or ]least, most] if `above`), or an InputError."""
    if isinstance(value, Real) and not isinstance(value, bool):
        number = _float(value)
        if math.isfinite(number) and least <= number <= most and not (above and number == least):
            return number
    low = f"> {least:g}" if above else f">= {least:g}"
    high = "" if most == math.inf else f" and <= {most:g}"
    raise InputError(
        "not a usable number",
        where="argument",
        field=field,
        value=value,
        allowed=f"a finite number {low}{high}",
    )


def _float(value: Any) -> float:
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError):  # 10**400 is a Real that no float holds
        return math.nan


def time_ns(seconds: Any, field: str = "now_s") -> int:
    """An instant, rounded once to nanoseconds."""
    if isinstance(seconds, Real) and not isinstance(seconds, bool):
        instant = _float(seconds)
        if math.isfinite(instant) and abs(instant) * 1e9 < FOREVER_NS:
            return round(instant * 1e9)
    raise InputError(
        "not a time",
        where="argument",
        field=field,
        value=seconds,
        allowed="finite seconds within 146 years of 0",
    )


def span_ns(seconds: float) -> int:
    """A span, rounded once to nanoseconds; -1 (rule off) from 146 years on."""
    nanoseconds = seconds * 1e9
    return round(nanoseconds) if nanoseconds < FOREVER_NS else -1


def not_before_s(instant_ns: int) -> float:
    """The least float of seconds that rounds to `instant_ns` or later.

    So whoever waits until this time and hands it back finds the instant reached, however coarse
    the float (at 1.7e9 s, a Unix time, floats are 238 ns apart).
    """
    seconds = instant_ns / 1e9
    while round(seconds * 1e9) < instant_ns:
        seconds = math.nextafter(seconds, math.inf)
    return seconds

"""Figures in the words that people use for them."""

from __future__ import annotations

import math

from has.report.document import number


def duration(seconds: float) -> str:
    """Seconds in the unit that people would use."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{number(round(seconds / length, 2 - math.floor(math.log10(seconds / length))))} {unit}"
    return f"{number(seconds)} s"

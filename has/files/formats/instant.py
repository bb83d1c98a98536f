"""Instants of time as text, to the nanosecond (datetime ends at the microsecond)."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from has.files.formats.rows import BadRow


def instant_ns(text: str, column: str) -> int:
    """`2023-11-16 18:15:46.6805900`, with or without fraction and offset (without: UTC), since 1970."""
    text = text.strip()
    whole, dot, rest = text.partition(".")
    digits = rest
    offset = ""
    if dot:
        for mark in ("+", "-", "Z"):
            digits, sign, tail = rest.partition(mark)
            if sign:
                offset = sign + tail
                break
        if not (digits.isascii() and digits.isdigit()):
            raise BadRow(column, "is no instant of time", text)
    try:
        seconds = _seconds(whole + offset)
    except ValueError:
        raise BadRow(column, "is no instant of time" if text else "is empty", text or None) from None
    return seconds * 1_000_000_000 + (int(digits[:9].ljust(9, "0")) if dot else 0)


@lru_cache(maxsize=1024)
def _seconds(text: str) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp())

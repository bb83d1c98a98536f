"""Rows of a foreign trace: good ones in batches, bad ones counted with the reason and the place.

A batch is int64[n, 6] with the columns of COLUMNS: arrival in nanoseconds, modality as an index into
MODALITIES, items, media tokens of all items together, prompt tokens, output tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
from numpy.typing import NDArray

from has.core.words import percent
from has.errors import InputError
from has.files.trace import LAST_ARRIVAL_S, MOST_TOKENS

Batch = NDArray[np.int64]
Row = tuple[int, int, int, int, int, int]

COLUMNS = ("arrival_ns", "modality", "items", "media_tokens", "prompt_tokens", "output_tokens")
ARRIVAL, MODALITY, ITEMS, MEDIA, PROMPT, OUTPUT = range(6)
TEXT, IMAGE = 0, 1

BATCH_ROWS = 65_536
MOST_BAD_SHARE = 0.05
"""More bad rows than this are no slip of a few lines but another format or a damaged file."""
SHOWN = 10
LAST_ARRIVAL_NS = int(LAST_ARRIVAL_S * 1e9)


class BadRow(Exception):
    """One row that cannot be used: the column, what is wrong with it, what stood there."""

    def __init__(self, column: str, reason: str, value: Any = None) -> None:
        super().__init__(column, reason, value)
        self.column = column
        self.reason = reason
        self.value = value


@dataclass(slots=True)
class Account:
    """What became of the rows of a source, and what a reader has to say about it.

    `seen` rows in all, `bad` of them malformed (by reason, the first few with their place), and
    `left_out` well-formed rows that are no request, by reason. `notes` are sentences for people.
    """

    where: str
    seen: int = 0
    bad: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def add(self, place: str, row: BadRow) -> None:
        """Count one bad row."""
        reason = f"{row.column}: {row.reason}" if row.column else row.reason
        self.bad += 1
        self.reasons[reason] += 1
        if len(self.first) < SHOWN:
            value = "" if row.value is None else f": {_shown(row.value)}"
            self.first.append(f"{place}: {reason}{value}")

    def check(self) -> None:
        """Raise InputError where the bad rows are too many, or there is no row at all."""
        if self.seen == 0:
            raise InputError("has no rows", where=self.where, mend="the file may have been cut off")
        if self.bad > MOST_BAD_SHARE * self.seen:
            raise InputError(
                "\n".join([f"{self.summary()}: too many", *(f"  {line}" for line in self.first)]),
                where=self.where,
                field=self.first[0].partition(":")[0],
                allowed=f"at most {percent(MOST_BAD_SHARE, 0)} bad rows",
                mend=self._mend(),
            )

    def summary(self) -> str:
        """`3 of 100 rows are bad (2 × …, 1 × …)`."""
        why = ", ".join(f"{count} × {reason}" for reason, count in self.reasons.most_common(5))
        return f"{self.bad} of {self.seen} rows are bad" + (f" ({why})" if why else "")

    def _mend(self) -> str:
        worst = self.reasons.most_common(1)[0][0]
        if LATE in worst:
            return "sort the file by time; or a few wrong times are far ahead of the rest: remove those rows"
        return "check that --format names the right one; mend or remove these rows"


LATE = "is out of order"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def count(value: Any, column: str, least: int = 0) -> int:
    """A whole number of at least `least`, from text or JSON. `374.0` is 374; raises BadRow."""
    if type(value) is str:
        if value.isascii() and value.isdigit() and len(value) < 19:
            whole = int(value)
        else:
            whole = _whole(value.strip(), column)
    elif type(value) is int:
        whole = value
    elif type(value) is float:
        whole = _whole(repr(value), column)
    else:
        raise BadRow(column, "is missing" if value is None else "is no number", value)
    if whole < least:
        raise BadRow(column, "is negative" if whole < 0 else f"is below {least}", value)
    if whole > MOST_TOKENS:
        raise BadRow(column, "is too large", value)
    return whole


def _whole(text: str, column: str) -> int:
    value = _decimal(text, column)
    if value != value.to_integral_value():
        raise BadRow(column, "is no whole number", text)
    return int(value)


def nanoseconds(value: Any, column: str, unit_ns: int) -> int:
    """A time in units of `unit_ns`, exactly, from text or JSON; raises BadRow."""
    if type(value) is int:
        time_ns = value * unit_ns
    elif type(value) in (str, float):
        text = value.strip() if type(value) is str else repr(value)
        time_ns = int((_decimal(text, column) * unit_ns).to_integral_value())
    else:
        raise BadRow(column, "is missing" if value is None else "is no number", value)
    if time_ns < 0:
        raise BadRow(column, "is negative", value)
    if time_ns > LAST_ARRIVAL_NS:
        raise BadRow(column, f"lies beyond {LAST_ARRIVAL_S:g} s: is it in another unit?", value)
    return time_ns


def _decimal(text: str, column: str) -> Decimal:
    if not text:
        raise BadRow(column, "is empty")
    try:
        value = Decimal(text) if text.isascii() and "_" not in text else None
    except InvalidOperation:
        value = None
    if value is None:
        raise BadRow(column, "is no number", text)
    if not value.is_finite():
        raise BadRow(column, "is not finite", text)
    if abs(value) > 1e30:
        raise BadRow(column, "is too large", text)
    return value


def in_batches(rows: Iterable[tuple[str | int, Row]], account: Account, time_column: str) -> Iterator[Batch]:
    """Rows with their places, in batches; a row earlier than the one before is bad. Times start at 0."""
    first = last = -1
    kept: list[Row] = []
    for place, row in rows:
        arrival = row[0]
        if arrival < last:
            account.add(in_line(place), BadRow(time_column, LATE))
            continue
        if first < 0:
            first = arrival
        last = arrival
        kept.append(row)
        if len(kept) == BATCH_ROWS:
            yield _batch(kept, first)
            kept = []
    if kept:
        yield _batch(kept, first)


def in_line(place: str | int) -> str:
    """Where a person finds a row: line numbers count from 1."""
    return f"line {place}" if isinstance(place, int) else place


def _batch(rows: list[Row], first: int) -> Batch:
    batch = np.array(rows, np.int64)
    batch[:, ARRIVAL] -= first
    return batch

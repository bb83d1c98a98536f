"""What a report consists of, before it is ink: a title, the answer, and sections of words, tables, bars and curves.

One description of a noun or a run serves the terminal and the page; `terminal` and `html` draw it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Table:
    """`rows` hold one value per column; numbers are shown to four significant digits, None as a dash. What is drawn
    leaves out columns that say nothing."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""

    def without_empty(self) -> Table:
        """Without the columns of words in which no row says one. A figure that is not known is a dash, and stays."""
        kept = [
            i for i in range(len(self.columns)) if not self.rows or any(row[i] != "" for row in self.rows)
        ]
        return Table(
            [self.columns[i] for i in kept], [[row[i] for i in kept] for row in self.rows], self.caption
        )


@dataclass(frozen=True, slots=True)
class Bars:
    """Labelled shares of `full`; each row is (label, value, what to write beside the bar)."""

    rows: Sequence[tuple[str, float, str]]
    caption: str = ""
    full: float = 1.0


@dataclass(frozen=True, slots=True)
class Command:
    """A command line to be copied: never broken, never shortened."""

    line: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Values at even steps, drawn from 0 up; `start` and `end` are what to write at its two ends."""

    values: Sequence[float]
    start: str
    end: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot for the page: plotly's `traces` and `layout` as plain data.

    `words` say what it shows, for readers who cannot see it and for the terminal, which has no plots.
    """

    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    caption: str
    words: str
    height: int = 340


@dataclass(frozen=True, slots=True)
class Panels:
    """Pictures of one kind, side by side where there is room; the terminal shows their `words` once."""

    pictures: Sequence[Picture]
    words: str


Part = str | Command | Table | Bars | Curve | Picture | Panels
"""What stands under a heading; a plain string is a paragraph."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Document:
    """A title, the sentences that hold the answer, and the sections that back it."""

    title: str
    lead: Sequence[str] = ()
    sections: Sequence[Section] = field(default_factory=tuple)


def number(value: Any) -> str:
    """A value as a reader wants it: four significant digits, thousands kept whole, None a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if value != value:
            return "–"
        if value == 0 or 1e-4 <= abs(value) < 1e15:
            digits = f"{value:.4g}"
            return f"{value:.0f}" if "e" in digits else digits
        return f"{value:.3g}"
    return str(value)


_FIGURE = re.compile(r"[+-]?\d[\d.]*( ?%)?")


def is_number(value: Any) -> bool:
    """Whether a cell is set flush right: a number, a figure in words such as 12.5 %, or nothing."""
    if isinstance(value, str):
        return _FIGURE.fullmatch(value) is not None
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def numeric_columns(table: Table) -> list[bool]:
    """Which columns hold numbers only (and are set flush right)."""
    return [
        any(row[i] is not None for row in table.rows) and all(is_number(row[i]) for row in table.rows)
        for i in range(len(table.columns))
    ]


def two_columns(pairs: Iterable[tuple[str, Any]], caption: str = "") -> Table:
    """A table of names and values, those without a value left out."""
    return Table(("", ""), [(name, value) for name, value in pairs if value is not None], caption)

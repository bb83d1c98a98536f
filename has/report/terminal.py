"""A document as terminal text, drawn by rich: plain, uncoloured lines where stdout is no terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from has.report.document import (
    Bars,
    Command,
    Curve,
    Document,
    Panels,
    Picture,
    Table,
    number,
    numeric_columns,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

_BAR_CELLS = 24
_SPARK_CELLS = 72
_SPARKS = "▁▂▃▄▅▆▇█"


def draw(document: Document) -> RenderableType:
    """The whole document, top to bottom."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(document.title, style="bold")]
    parts += [Text(line) for line in document.lead]
    for section in document.sections:
        parts += [Text(""), Text(section.title, style="bold")]
        for part in section.parts:
            if isinstance(part, Command):
                parts.append(Text(part.line, no_wrap=True, overflow="ignore"))
                continue
            if isinstance(part, str | Picture | Panels):
                parts.append(Text(part if isinstance(part, str) else part.words))
                continue
            if part.caption:
                parts.append(Text(part.caption, style="italic"))
            parts.append(draw_part(part))
    return Group(*parts)


def draw_part(part: Table | Bars | Curve) -> RenderableType:
    """One table, bars drawn with block characters and the figure beside them, or a spark line."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    if isinstance(part, Curve):
        return Text(f"{part.start} {spark_line(part.values)} {part.end}")
    table = (part if isinstance(part, Table) else _as_table(part)).without_empty()
    drawn = RichTable(
        box=box.SIMPLE_HEAD if any(table.columns) else None,
        show_header=any(table.columns),
        show_edge=False,
        pad_edge=False,
    )
    for name, right in zip(table.columns, numeric_columns(table), strict=True):
        drawn.add_column(Text(name), justify="right" if right else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(number(value)) for value in row))
    return drawn


def spark_line(values: Sequence[float], cells: int = _SPARK_CELLS) -> str:
    """A line of blocks from 0 to the largest value; more values than `cells` are averaged in groups."""
    together = -(-len(values) // cells) or 1
    groups = [values[i : i + together] for i in range(0, len(values), together)]
    means = [sum(group) / len(group) for group in groups]
    most = max(means, default=0.0) or 1.0
    return "".join(_SPARKS[min(len(_SPARKS) - 1, int(mean / most * len(_SPARKS)))] for mean in means)


def _as_table(bars: Bars) -> Table:
    rows = []
    for label, value, text in bars.rows:
        cells = round(_BAR_CELLS * min(1.0, max(0.0, value / bars.full if bars.full else 0.0)))
        rows.append((label, "█" * cells + "·" * (_BAR_CELLS - cells), text))
    return Table(("", "", ""), rows, bars.caption)

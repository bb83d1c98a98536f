"""A document as terminal text, drawn by rich: plain, uncoloured lines where stdout is no terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from has.report.document import Bars, Document, Table, number, numeric_columns

if TYPE_CHECKING:
    from rich.console import RenderableType

_BAR_CELLS = 24


def draw(document: Document) -> RenderableType:
    """The whole document, top to bottom."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(document.title, style="bold")]
    parts += [Text(line) for line in document.lead]
    for section in document.sections:
        parts += [Text(""), Text(section.title, style="bold")]
        for part in section.parts:
            if isinstance(part, str):
                parts.append(Text(part))
                continue
            if part.caption:
                parts.append(Text(part.caption, style="italic"))
            parts.append(draw_part(part))
    return Group(*parts)


def draw_part(part: Table | Bars) -> RenderableType:
    """One table, or bars drawn with block characters and the figure beside them."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = part if isinstance(part, Table) else _as_table(part)
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


def _as_table(bars: Bars) -> Table:
    rows = []
    for label, value, text in bars.rows:
        cells = round(_BAR_CELLS * min(1.0, max(0.0, value / bars.full if bars.full else 0.0)))
        rows.append((label, "█" * cells + "·" * (_BAR_CELLS - cells), text))
    return Table(("", "", ""), rows, bars.caption)

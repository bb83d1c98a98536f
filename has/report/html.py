"""A document as one self-contained HTML page: no network, readable on a phone and on paper.

A page without pictures has no script. One with pictures carries plotly.js within; its words and
tables are there before, and without, any script.
"""

from __future__ import annotations

import json
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from has.report.document import (
    Bars,
    Command,
    Curve,
    Document,
    Panels,
    Part,
    Picture,
    Section,
    Table,
    number,
    numeric_columns,
)

_PLOTLY = Path(__file__).with_name("plotly") / "plotly-cartesian.min.js"
_DRAWS = Path(__file__).with_name("page.js")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
"""What a browser may load for the page: nothing but what is in it."""

LONGEST_LABEL = 32
SHORT = 20
"""Characters of a cell that is not broken: the name of a configuration."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --rule: #c9d1d9; --soft: #f3f5f7; --bar: #2f6f9f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --paper: #14171a; --rule: #3b434b; --soft: #1f2429; --bar: #79b4dd; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--rule); }
.lead { background: var(--soft); border-left: .3rem solid var(--bar); padding: .6rem 1rem; }
.lead p { margin: .3rem 0; }
.lead p:first-child, .lead b { font-weight: 600; }
.lead p::first-letter { text-transform: uppercase; }
.wide { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
caption span { position: sticky; left: 0; display: inline-block; max-width: min(100%, calc(100vw - 2rem)); }
th, td { padding: .25rem .7rem .25rem 0; text-align: left; border-bottom: 1px solid var(--rule); vertical-align: top; }
th, td { overflow-wrap: normal; }
th.n, td.n { text-align: right; }
td.n, td.s { white-space: nowrap; }
.track { display: inline-block; width: 12rem; max-width: 40vw; height: .8rem; border: 1px solid var(--bar); vertical-align: middle; }
.fill { display: block; height: 100%; background: var(--bar); print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.curve { margin: .8rem 0; }
.curve figcaption { font-weight: 600; font-size: .92rem; }
.curve svg { display: block; width: 100%; height: 7rem; fill: var(--bar); border-bottom: 1px solid var(--ink);
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.curve div { display: flex; justify-content: space-between; font-size: .85rem; }
.plot { margin: .8rem 0 1.4rem; break-inside: avoid; }
.plot figcaption { font-weight: 600; font-size: .92rem; }
.plot .words { font-size: .85rem; margin: .2rem 0 0; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: .2rem 1rem; }
.panels .plot { margin: 0; }
pre { background: var(--soft); padding: .6rem 1rem; font: .85rem/1.5 ui-monospace, monospace; white-space: pre-wrap; }
footer { margin-top: 2rem; font-size: .85rem; border-top: 1px solid var(--rule); padding-top: .5rem; }
@media print {
  :root { --ink: #000; --paper: #fff; --rule: #c9d1d9; --soft: #fff; --bar: #444; }
  body { max-width: none; font-size: 10pt; } .wide { overflow: visible; } table { font-size: 8pt; } h2 { break-after: avoid; } tr { break-inside: avoid; } }
"""


def page(document: Document, footer: str = "") -> str:
    """The whole page."""
    lead = "".join(map(_lead, document.lead))
    body = "\n".join(_section(section) for section in document.sections)
    drawn = any(isinstance(part, Picture | Panels) for section in document.sections for part in section.parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escape(document.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(document.title)}</h1>\n"
        + (f'<div class="lead">{lead}</div>\n' if lead else "")
        + f"{body}\n</main>\n<footer>{escape(footer)}</footer>\n{_scripts() if drawn else ''}</body>\n</html>\n"
    )


def _lead(line: str) -> str:
    """A sentence of the answer; one that begins by saying what it is of has that stand out."""
    label, colon, rest = line.partition(": ")
    if colon and len(label) <= LONGEST_LABEL:
        return f"<p><b>{_prose(label)}:</b> {_prose(rest)}</p>"
    return f"<p>{_prose(line)}</p>"


def _prose(words: str) -> str:
    """A sentence in which no line ends between a number and its percent sign."""
    return escape(words).replace(" %", "\u00a0%")


@cache
def _scripts() -> str:
    """plotly.js and what calls it, after all text: the answer is on the screen before they are read."""
    return "".join(f"<script>{path.read_text(encoding='utf-8')}</script>\n" for path in (_PLOTLY, _DRAWS))


def _section(section: Section) -> str:
    return (
        f"<section>\n<h2>{escape(section.title)}</h2>\n"
        + "\n".join(map(_part, section.parts))
        + "\n</section>"
    )


def _part(part: Part) -> str:
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Command):
        return f"<pre>{escape(part.line)}</pre>"
    if isinstance(part, Bars):
        return _bars(part)
    if isinstance(part, Curve):
        return _curve(part)
    if isinstance(part, Picture):
        return _picture(part)
    if isinstance(part, Panels):
        inside = "".join(_picture(picture, said=False) for picture in part.pictures)
        return f'<div class="panels">{inside}</div><p class="words">{_prose(part.words)}</p>'
    return f"<p>{_prose(part)}</p>"


def _table(whole: Table) -> str:
    table = whole.without_empty()
    right = numeric_columns(table)
    caption = _caption(table.caption)
    head = ""
    if any(table.columns):
        cells = "".join(
            f'<th scope="col"{_right(n)}>{escape(name)}</th>'
            for name, n in zip(table.columns, right, strict=True)
        )
        head = f"<thead><tr>{cells}</tr></thead>"
    rows = "\n".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{escape(number(value))}</th>' if i == 0 else _cell(value, n)
            for i, (value, n) in enumerate(zip(row, right, strict=True))
        )
        + "</tr>"
        for row in table.rows
    )
    return f'<div class="wide" tabindex="0"><table>{caption}{head}<tbody>\n{rows}\n</tbody></table></div>'


def _caption(words: str) -> str:
    """It stays on the screen while a wide table is moved under it."""
    return f"<caption><span>{escape(words)}</span></caption>" if words else ""


def _right(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def _cell(value: Any, numeric: bool) -> str:
    words = number(value)
    kind = _right(numeric) or (' class="s"' if len(words) <= SHORT else "")
    return f"<td{kind}>{_prose(words)}</td>"


def _bars(bars: Bars) -> str:
    caption = _caption(bars.caption)
    rows = "\n".join(
        f'<tr><th scope="row">{escape(label)}</th>'
        f'<td><span class="track" aria-hidden="true"><span class="fill" style="width:{_percent(value, bars.full)}%">'
        f"</span></span></td><td>{_prose(text)}</td></tr>"
        for label, value, text in bars.rows
    )
    return f'<div class="wide" tabindex="0"><table>{caption}<tbody>\n{rows}\n</tbody></table></div>'


def _curve(curve: Curve) -> str:
    """An area above its zero line, as wide as the page; what it shows is also said in words."""
    most = max(curve.values, default=0.0) or 1.0
    steps = "".join(f"V{100 - 100 * value / most:.2f}h1" for value in curve.values)
    width = max(1, len(curve.values))
    caption = f"<figcaption>{escape(curve.caption)}</figcaption>" if curve.caption else ""
    return (
        f'<figure class="curve">{caption}<svg viewBox="0 0 {width} 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(curve.caption)}"><path d="M0,100{steps}V100Z"/></svg>'
        f"<div><span>{escape(curve.start)}</span><span>{escape(curve.end)}</span></div></figure>"
    )


def _picture(picture: Picture, *, said: bool = True) -> str:
    """A box for plotly, and beside it the data that it draws; `said`: with the words under it."""
    data = json.dumps(
        {"traces": picture.traces, "layout": picture.layout}, ensure_ascii=False, separators=(",", ":")
    )
    words = f'<p class="words">{_prose(picture.words)}</p>' if said else ""
    return (
        f'<figure class="plot"><figcaption>{escape(picture.caption)}</figcaption>'
        f'<div class="canvas" style="height:{picture.height}px" role="img" aria-label="{escape(picture.words)}"></div>'
        f'<script type="application/json">{_no_tag(data)}</script>{words}</figure>'
    )


def _no_tag(data: str) -> str:
    """JSON in which no name written by others can end the script that holds it."""
    return data.replace("<", "\\u003c")


def _percent(value: float, full: float) -> str:
    return f"{100 * min(1.0, max(0.0, value / full if full else 0.0)):.1f}"

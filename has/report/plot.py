"""How HAS draws: one look for all plots, told apart without colour by dash, symbol and hatch.

Plots are plotly's own data (traces, layout); plotly.js in the page draws them. Nothing here needs
the Python package of that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#7F3C8D", "#A67C00", "#56B4E9")
"""Okabe and Ito's, which the colour-blind tell apart; the order also goes from dark to light in grey."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "x")
HATCHES = ("", "/", "x", ".", "-", "+")
SCALE = ((0.0, "#f4f6f8"), (0.5, "#7fb0d0"), (1.0, "#08306b"))
"""Of heat maps: lightness alone carries the value."""

Trace = dict[str, Any]


def line(
    x: Sequence[float], y: Sequence[float | None], name: str, look: int, *, markers: bool = True
) -> Trace:
    """A curve of the `look`-th colour, dash and symbol."""
    i = look % len(COLOURS)
    return {
        "type": "scatter",
        "mode": "lines+markers" if markers else "lines",
        "x": rounded(x),
        "y": rounded(y),
        "name": name,
        "line": {"color": COLOURS[i], "dash": DASHES[i], "width": 2},
        "marker": {"symbol": SYMBOLS[i], "size": 7, "color": COLOURS[i]},
    }


def points(
    x: Sequence[float],
    y: Sequence[float],
    name: str,
    look: int,
    texts: Sequence[str] = (),
    *,
    hollow: bool = False,
) -> Trace:
    """Marks of the `look`-th colour and symbol; `texts` appear where the mouse is."""
    i = look % len(COLOURS)
    return {
        "type": "scatter",
        "mode": "markers",
        "x": rounded(x),
        "y": rounded(y),
        "name": name,
        "text": list(texts),
        "marker": {
            "symbol": SYMBOLS[i] + ("-open" if hollow else ""),
            "size": 9,
            "color": COLOURS[i],
            "line": {"width": 1.5, "color": COLOURS[i]},
        },
    }


def bars(labels: Sequence[str], values: Sequence[float | None], name: str, look: int) -> Trace:
    """Lying bars of the `look`-th colour and hatch."""
    i = look % len(COLOURS)
    return {
        "type": "bar",
        "orientation": "h",
        "x": rounded(values),
        "y": list(labels),
        "name": name,
        "marker": {
            "color": COLOURS[i],
            "pattern": {"shape": HATCHES[i], "fgcolor": "#ffffff", "fillmode": "overlay"},
        },
    }


def layout(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Axes with their titles; `more` goes over it, key by key of the first level."""
    return {
        "xaxis": axis(x),
        "yaxis": axis(y),
        "margin": {"l": 56, "r": 12, "t": 12, "b": 44},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "hovermode": "closest",
        "dragmode": False,
    } | more


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {
        "title": {"text": title, "standoff": 6},
        "automargin": True,
        "zeroline": False,
        "ticks": "outside",
    } | more


def upright(x: float, words: str, *, dash: str = "dash") -> tuple[dict[str, Any], dict[str, Any]]:
    """(shape, annotation) of a line from bottom to top at `x`, with its words on it."""
    return (
        {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": {"width": 1.5, "dash": dash}},
        {"xref": "x", "yref": "paper", "x": x, "y": 0.02, "text": words, "showarrow": False, "textangle": -90,
         "xanchor": "right", "yanchor": "bottom", "font": {"size": 11}},
    )  # fmt: skip


def level(y: float, words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(shape, annotation) of a line from left to right at `y`, with its words on it."""
    return (
        {"type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": {"width": 1.5, "dash": "dash"}},
        {"xref": "paper", "yref": "y", "x": 1, "y": y, "text": words, "showarrow": False, "xanchor": "right",
         "yanchor": "top", "font": {"size": 11}},
    )  # fmt: skip


def with_marks(base: dict[str, Any], *marks: tuple[Mapping[str, Any], Mapping[str, Any]]) -> dict[str, Any]:
    """`base` with lines and their words drawn in."""
    return base | {"shapes": [shape for shape, _ in marks], "annotations": [words for _, words in marks]}


def rounded(values: Sequence[Any]) -> list[Any]:
    """Five digits are more than a screen shows, and keep a page small."""
    return [float(f"{v:.5g}") if isinstance(v, float) else v for v in values]

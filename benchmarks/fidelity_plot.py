"""The picture of benchmarks/fidelity.py: live over simulated, one panel a figure, as plain SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Protocol

SIDE, GAP, TOP = 250, 70, 60
COLOURS = {"saturated": "#c0392b", "0.85": "#d98324", "0.6": "#2f6fb3"}
PANELS = (
    ("throughput_rps", "throughput, req/s"),
    ("ttft_ms", "TTFT mean, ms"),
    ("ttft_p90_ms", "TTFT p90, ms"),
    ("tpot_ms", "TPOT mean, ms"),
)


class Run(Protocol):
    name: str
    load: str
    live: dict[str, float]
    simulated: dict[str, float]
    alone: dict[str, float]


def plot(runs: Sequence[Run]) -> str:
    """Filled dots: the measured profile; rings: one without beside rows. On the line, live is as simulated."""
    width = len(PANELS) * (SIDE + GAP) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {SIDE + TOP + 50}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{SIDE + TOP + 50}" fill="#fff"/>',
    ]
    for i, (load, colour) in enumerate(COLOURS.items()):
        parts.append(f'<circle cx="{30 + 110 * i}" cy="18" r="5" fill="{colour}"/>')
        parts.append(
            f'<text x="{40 + 110 * i}" y="22">{load if load == "saturated" else load + " load"}</text>'
        )
    parts.append(
        '<text x="370" y="22" fill="#555">filled: measured profile; rings: without beside rows; across: simulated, up: live</text>'
    )
    for i, (figure, title) in enumerate(PANELS):
        parts.append(
            f'<g transform="translate({50 + i * (SIDE + GAP)},{TOP})">{_panel(runs, figure, title)}</g>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _panel(runs: Sequence[Run], figure: str, title: str) -> str:
    values = [v for run in runs for v in (run.live[figure], run.simulated[figure], run.alone[figure])]
    low, high = (min(values) * 0.9, max(values) * 1.1) if values else (0.1, 1.0)

    def place(value: float) -> float:
        return SIDE * (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))

    parts = [
        f'<rect width="{SIDE}" height="{SIDE}" fill="none" stroke="#bbb"/>',
        f'<line x1="0" y1="{SIDE}" x2="{SIDE}" y2="0" stroke="#bbb"/>',
        f'<text x="0" y="-8" font-weight="bold">{escape(title)}</text>',
    ]
    for tick in _ticks(low, high):
        at = place(tick)
        parts.append(f'<text x="{at:.1f}" y="{SIDE + 16}" text-anchor="middle" fill="#555">{tick:g}</text>')
        parts.append(f'<text x="-6" y="{SIDE - at + 4:.1f}" text-anchor="end" fill="#555">{tick:g}</text>')
    for run in runs:
        colour = COLOURS.get(run.load, "#333")
        y = SIDE - place(run.live[figure])
        said = f"<title>{escape(run.name)} at {escape(run.load)}</title>"
        parts.append(
            f'<circle cx="{place(run.alone[figure]):.1f}" cy="{y:.1f}" r="4" fill="none" stroke="{colour}" stroke-opacity=".6">{said}</circle>'
        )
        parts.append(
            f'<circle cx="{place(run.simulated[figure]):.1f}" cy="{y:.1f}" r="4" fill="{colour}">{said}</circle>'
        )
    return "".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [
        step * 10.0**decade for decade in decades for step in (1, 2, 5) if low <= step * 10.0**decade <= high
    ]

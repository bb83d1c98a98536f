"""Curves as SVG: regret of the recommendation against trials, one line a strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f", "#bcbd22")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 60, 170, 40, 50


def curves(
    title: str, x_label: str, y_label: str, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]
) -> str:
    """`lines`: name -> (x, y). The y axis starts at 0; the legend stands right of the last points."""
    most_x = max((max(x) for x, _ in lines.values()), default=1.0)
    most_y = 1.05 * max((max(y) for _, y in lines.values()), default=1.0) or 1.0
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + wide * x / most_x, TOP + high * (1 - y / most_y)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
        f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text transform="translate(16 {TOP + high / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>',
    ]
    for i in range(6):
        for x, y, anchor, text in (
            (*place(most_x * i / 5, 0), "middle", f"{most_x * i / 5:g}"),
            (*place(0, most_y * i / 5), "end", f"{most_y * i / 5:.1f}"),
        ):
            dx, dy = (0, 16) if anchor == "middle" else (-6, 4)
            parts.append(f'<text x="{x + dx:.1f}" y="{y + dy:.1f}" text-anchor="{anchor}">{text}</text>')
        y = place(0, most_y * i / 5)[1]
        parts.append(f'<path d="M{LEFT} {y:.1f}h{wide}" stroke="#ddd"/>')
    order = sorted(lines.items(), key=lambda entry: -entry[1][1][-1])
    for i, (name, (xs, ys)) in enumerate(order):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(x, y) for x, y in zip(xs, ys, strict=True)))
        colour, wider = COLOURS[i % len(COLOURS)], 3 if name == "auto" else 1.5
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{wider}"/>')
        at = TOP + 16 * i + 8
        parts.append(f'<path d="M{WIDTH - RIGHT + 12} {at}h18" stroke="{colour}" stroke-width="{wider}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 36}" y="{at + 4}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])

"""Streams of requests as documents: rate over time, burstiness, sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from has.core.words import percent
from has.files.formats.histogram import Histogram
from has.files.formats.statistics import SIZES, Kind, Statistics
from has.report.document import Curve, Document, Section, Table, number, two_columns
from has.report.words import duration

_POINTS = 288
_PERCENTILES = (50, 75, 90, 99)
_COLUMNS = ("", "mean", *(f"p{q}" for q in _PERCENTILES), "max")


def describe_trace(statistics: Statistics, name: str) -> Document:
    """Rate, burstiness and sizes of a stream of requests."""
    return Document(f"Trace {name}", (), traffic_sections(statistics))


def traffic_sections(statistics: Statistics) -> list[Section]:
    """What the requests of `statistics` are like."""
    sections = [Section("Arrivals", [_arrivals(statistics)])]
    curve = _rate_curve(statistics)
    if curve is not None:
        sections.append(Section("Rate over time", [curve]))
    sections.append(Section("Sizes, all requests", [_sizes_table(statistics.sizes)]))
    if len(statistics.kinds) > 1:
        sections += [
            Section(
                f"Sizes, {' '.join(filter(None, key))}: {percent(kind.count / statistics.requests)} of requests",
                [_kind_table(kind)],
            )
            for key, kind in sorted(statistics.kinds.items())
        ]
    return sections


def _arrivals(statistics: Statistics) -> Table:
    busiest = statistics.busiest()
    by_modality: dict[str, int] = {}
    for (modality, _), kind in sorted(statistics.kinds.items()):
        by_modality[modality] = by_modality.get(modality, 0) + kind.count
    return two_columns(
        [
            ("requests", statistics.requests),
            ("span, s", statistics.span_s),
            ("mean rate, requests/s", statistics.rate),
            ("coefficient of variation of the gaps (Poisson: 1)", statistics.cv),
            ("requests at the same instant as the one before", statistics.same_instant or None),
            *(
                [(f"busiest {number(busiest[0])} s, times the mean rate", round(busiest[1], 2))]
                if busiest
                else []
            ),
            *((f"{modality} requests", count) for modality, count in by_modality.items()),
        ]
    )


def _rate_curve(statistics: Statistics) -> Curve | None:
    stretch_s, rates = statistics.timeline.curve(_POINTS)
    if len(rates) < 3:
        return None
    caption = (
        f"requests/s in stretches of {duration(stretch_s)}: least {number(float(rates.min()))}, "
        f"mean of all {number(statistics.rate)}, most {number(float(rates.max()))}"
    )
    return Curve(rates.tolist(), "0", duration(stretch_s * len(rates)), caption)


def _sizes_table(sizes: dict[str, Histogram]) -> Table:
    return Table(_COLUMNS, [_row(name, sizes[name]) for name in SIZES if sizes[name].most])


def _kind_table(kind: Kind) -> Table:
    rows = [_row(name, kind.sizes[name]) for name in SIZES if kind.sizes[name].most]
    if kind.item_tokens.total:
        rows.insert(1, _row("media_tokens of one item", kind.item_tokens))
    return Table(_COLUMNS, rows)


def _row(name: str, sizes: Histogram) -> Sequence[object]:
    at = sizes.percentiles(np.array(_PERCENTILES, np.float64)).tolist()
    return name.replace("_", " "), sizes.mean, *at, sizes.most

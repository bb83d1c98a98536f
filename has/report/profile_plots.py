"""Plots of a profile: latency over SM share, batch and tokens, each with its fit, and the split that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from has.core.profile import Profile, ProfilePoint
from has.core.stage import Beside, Stage
from has.core.words import percent, signed
from has.errors import InputError
from has.latency.curves import (
    LineFit,
    ShareFit,
    along_shares,
    fit_line,
    fit_shares,
    measured_rows,
    middle,
    some,
)
from has.policy.partition import WHOLE
from has.profiler.sharing import Sharing, sharing
from has.report import plot
from has.report.document import Panels, Part, Picture, Section, Table, number

PARTNER = {Stage.ENCODE: Beside.PREFILL, Stage.PREFILL: Beside.ENCODE}
SHARED = (Stage.ENCODE, Stage.PREFILL, Stage.DECODE)


def sections(profile: Profile) -> list[Section]:
    """What a profile says, in pictures and words; nothing for one whose latencies hang on nothing."""
    rows = measured_rows(profile)
    try:
        split = sharing(profile)
    except InputError:  # rows that fill no grid: the tables show them, nothing follows from them
        split = None
    found = [Section("Sharing a GPU", _split(split))] if split else []
    for stage in SHARED:
        own = [row for row in rows if row.stage == stage]
        parts = [
            part
            for part in (_over_shares(stage, own, split), _over_batch(stage, own), _over_tokens(stage, own))
            if part is not None
        ]
        if parts:
            found.append(Section(f"{stage.capitalize()}: curves", parts))
    return found


def _split(split: Sharing) -> list[Part]:
    rows = [
        (
            row.batch,
            row.encode_sm,
            row.partition.encode_slowdown if row.partition else None,
            row.partition.prefill_slowdown if row.partition else None,
            row.partition.progress if row.partition else None,
            row.streams.encode_slowdown if row.streams else None,
            row.streams.progress if row.streams else None,
        )
        for row in split.rows
    ]
    names = (
        "encode batch",
        "% SM for encode",
        "encode takes x",
        "prefill takes x",
        "work done",
        "streams: encode takes x",
        "streams: work done",
    )
    kept = [i for i in range(len(names)) if any(row[i] is not None for row in rows)]
    table = Table(
        [names[i] for i in kept],
        [[row[i] for i in kept] for row in rows],
        f"least share at which encode beside a prefill is within {percent(split.slowdown_budget, None)} of alone on all SMs"
        f" ({split.encode_tokens:g} media tokens); work done: 1 is taking turns",
    )
    return [split.words, table] if split.words else [table]


def _over_shares(stage: Stage, rows: Sequence[ProfilePoint], split: Sharing | None) -> Panels | None:
    """A picture a batch: points and fit alone, points beside its partner, streams; for encode the budget and the split."""
    tokens = middle(sorted({row.tokens for row in rows})) if rows else 0
    pictures, said = [], []
    for batch in some(sorted({row.batch for row in rows})) if rows else []:
        alone = along_shares(rows, stage, batch, tokens)
        fit = fit_shares(alone)
        if len(alone) < 2:
            continue
        traces = [plot.points(list(alone), _ms(alone.values()), "alone", 0)]
        if fit is not None:
            shares = [min(alone) + (WHOLE - min(alone)) * i / 60 for i in range(61)]
            traces.append(plot.line(shares, _ms(map(fit.seconds, shares)), "fit", 0, markers=False))
            said.append(f"batch {batch}: {_share_words(stage, fit)}")
        beside = PARTNER.get(stage)
        if beside is not None:
            other = along_shares(rows, stage, batch, tokens, beside)
            if other:
                traces.append(plot.points(list(other), _ms(other.values()), f"beside {beside}", 1))
            streams = [
                row.latency_s
                for row in rows
                if (row.beside, row.batch, row.tokens) == (beside, batch, tokens) and row.sm_percent >= WHOLE
            ]
            if streams:
                traces.append(plot.points([WHOLE], _ms(streams), "streams", 2, hollow=True))
        shape = plot.layout("% of the SMs", "ms")
        shape["yaxis"] |= {"rangemode": "tozero"}
        if stage is Stage.ENCODE and split is not None and WHOLE in alone:
            shape = plot.with_marks(shape, *_rule(split, batch, alone[WHOLE]))
        pictures.append(
            Picture(
                traces,
                shape,
                f"{stage}, batch {batch}, {tokens} tokens",
                f"{stage} over SM share at batch {batch}",
            )
        )
    if not pictures:
        return None
    return Panels(
        pictures, f"{stage} over SM share, {tokens} tokens. " + "; ".join(said) + ("." if said else "")
    )


def _rule(split: Sharing, batch: int, whole_s: float) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    allowed = 1 + split.slowdown_budget
    marks = [plot.level(1e3 * allowed * whole_s, signed(split.slowdown_budget, 0))]
    chosen = [row.encode_sm for row in split.rows if row.batch == batch]
    if chosen:
        marks.append(plot.upright(chosen[0], f"encode gets {chosen[0]:g} %"))
    return marks


def _share_words(stage: Stage, fit: ShareFit) -> str:
    flat = "saturates memory" if stage is Stage.DECODE else "fills"
    knee = (
        f"{flat} {fit.saturates:.0f} % ({fit.low:.0f} to {fit.high:.0f})"
        if fit.saturates < 99.5
        else "never flat"
    )
    return f"{knee}, fit off by {percent(fit.median_error)} at the median, {percent(fit.worst_error)} at most"


def _over_batch(stage: Stage, rows: Sequence[ProfilePoint]) -> Picture | None:
    curves = _curves(rows, lambda row: row.batch, lambda row: row.tokens)
    return _lines(stage, curves, "batch, requests", "tokens")


def _over_tokens(stage: Stage, rows: Sequence[ProfilePoint]) -> Picture | None:
    curves = _curves(rows, lambda row: row.tokens, lambda row: row.batch)
    return _lines(stage, curves, "tokens of a request", "batch")


Curves = dict[int, dict[float, float]]


def _curves(
    rows: Sequence[ProfilePoint], x: Callable[[ProfilePoint], int], by: Callable[[ProfilePoint], int]
) -> Curves:
    """by -> x -> seconds, alone at the largest share; three of them at most."""
    whole = max((row.sm_percent for row in rows), default=WHOLE)
    found: Curves = {}
    for row in rows:
        if row.beside == Beside.NONE and row.sm_percent == whole:
            found.setdefault(by(row), {})[x(row)] = row.latency_s
    return {key: found[key] for key in (some(sorted(found)) if found else [])}


def _lines(stage: Stage, curves: Curves, x: str, by: str) -> Picture | None:
    traces, said = [], []
    for look, (key, curve) in enumerate(curves.items()):
        if len(curve) < 2:
            continue
        ordered = dict(sorted(curve.items()))
        traces.append(plot.points(list(ordered), _ms(ordered.values()), f"{by} {key}", look))
        fit = fit_line(ordered)
        if fit is not None:
            ends = [min(ordered), max(ordered)]
            name = f"{by} {key}, line"
            traces.append(plot.line(ends, _ms(map(fit.seconds, ends)), name, look, markers=False))
            said.append(f"{by} {key}: {_line_words(fit)}")
    if not traces:
        return None
    shape = plot.layout(x, "ms")
    shape["yaxis"] |= {"rangemode": "tozero"}
    what = x.split(",")[0].split(" of")[0]
    words = f"{stage} over {what} on all SMs, with a line. " + "; ".join(said) + ("." if said else "")
    return Picture(traces, shape, f"{stage} over {what}, all SMs", words)


def _line_words(fit: LineFit) -> str:
    line = f"{number(1e3 * fit.start_s)} ms + {number(1e3 * fit.each_s)} ms each"
    if fit.points == 2:
        return f"{line}, by two points"
    sure = f" ±{percent(fit.each_half_width, 0)}" if fit.each_half_width is not None else ""
    return (
        f"{line}{sure}, off by {percent(fit.median_error)} at the median, {percent(fit.worst_error)} at most"
    )


def _ms(seconds: Iterable[float]) -> list[float]:
    return [1e3 * each for each in seconds]

"""The plots of a run. Each takes plain data and gives a Picture with the words that say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.slo import Slo
from has.core.stage import Beside, Stage
from has.core.trial import Trial, TrialState
from has.core.words import percent
from has.report import plot
from has.report.answer import BASELINE_WORDS
from has.report.binding import LABELS
from has.report.document import Panels, Picture, number
from has.report.landscape import Landscape
from has.report.replay import Sweep, share_below

SHORT = {"monolithic": "monolithic", "e_pd": "E+PD", "static_epd": "static E+P+D"}


def landscape(found: Landscape, best: Deployment) -> Panels:
    """A heat map a B: allocation over s, the darker the better; a cross marks the answer."""
    most = max(float(np.nanmax(table)) for table in found.values.values())
    pictures = []
    for batch, table in found.values.items():
        shown = [[None if np.isnan(v) else float(f"{v:.4g}") for v in row] for row in table.tolist()]
        traces: list[Mapping[str, Any]] = [
            {
                "type": "heatmap",
                "x": [f"{s:g}" for s in found.shares],
                "y": list(found.allocations),
                "z": shown,
                "zmin": 0,
                "zmax": float(f"{most:.4g}"),
                "colorscale": [list(stop) for stop in plot.SCALE],
                "showscale": False,
                "xgap": 1,
                "ygap": 1,
                "hovertemplate": "%{y}, s %{x}: %{z} requests/s<extra></extra>",
            }
        ]
        if found.answer and batch == best.encode_batch:
            traces += [_cross(f"{best.prefill_offload:g}", found.answer, *look) for look in CROSS]
        shape = plot.layout("s", "")
        shape["xaxis"] |= {"type": "category", "tickangle": 0}
        shape["yaxis"] |= {"type": "category", "autorange": "reversed", "title": {"text": ""}, "ticks": ""}
        pictures.append(
            Picture(
                traces,
                shape,
                f"B = {batch}: up to {number(float(np.nanmax(table)))} requests/s",
                f"Requests/s within the SLO of {len(found.allocations)} splits over s at B = {batch}",
                height=300,
            )
        )
    tops = {batch: int(np.nanargmax(table)) for batch, table in found.values.items()}
    b = max(tops, key=lambda batch: float(found.values[batch].flat[tops[batch]]))
    i, j = divmod(tops[b], len(found.shares))
    near = sum(int(np.nansum(t >= 0.99 * most)) for t in found.values.values())
    points = sum(int(np.sum(~np.isnan(t))) for t in found.values.values())
    nothing = sum(int(np.nansum(t <= 0.5 * most)) for t in found.values.values())
    words = (
        f"Requests/s within the SLO of {number(found.rate)} offered, over the split and s, the share of prefills sent to the remote pool; "
        f"simulated; white is 0, the darkest {number(most)}. Of the {points} "
        f"points shown {near} lie within 1 % of the best of them, {found.allocations[i]} B{b} s{found.shares[j]:g}, and {nothing} "
        "give less than half of it. A cross marks the answer; empty fields are no configurations."
        + (" A number in brackets: GPUs of one worker." if any("(" in a for a in found.allocations) else "")
        + (f" Beyond the profile's reach: B = {', '.join(map(str, found.beyond))}." if found.beyond else "")
    )
    return Panels(pictures, words)


CROSS = ((7, "#ffffff"), (3, "#D55E00"))
"""Widths and colours, the lower first: what is orange on dark is hard to tell without colour, and so it has a light edge."""


def _cross(x: str, y: str, width: int, colour: str) -> dict[str, Any]:
    cross = plot.points([], [], "the answer", 1) | {"x": [x], "y": [y], "showlegend": False}
    cross["marker"] = {"symbol": "x-thin", "size": 13, "line": {"width": width, "color": colour}}
    return cross


def trials_over_time(
    trials: Sequence[Trial], predicted: Sequence[float | None], tried: str = "measured"
) -> Picture | None:
    """What each trial carried within the SLO, `tried` (measured or simulated) and predicted (attainment times the rate), in order.

    Not goodput: that of a short trial counts the time in which its last requests end.
    """
    rows = [
        (t.number, t.figures["attainment"] * t.rate, said, t)
        for t, said in zip(trials, predicted, strict=True)
        if t.figures and t.figures.get("attainment") is not None and t.rate is not None
    ]
    if not rows:
        return None
    whole = [row for row in rows if row[3].state is TrialState.COMPLETE]
    ended = [row for row in rows if row[3].state is TrialState.STOPPED]
    foreseen = [row for row in rows if row[2] is not None]
    traces = [
        plot.points([r[0] for r in whole], [float(r[1] or 0) for r in whole], tried, 0, _labels(whole)),
        plot.points([r[0] for r in ended], [float(r[1] or 0) for r in ended], f"{tried}, ended early", 5, _labels(ended)),
        plot.points([r[0] for r in foreseen], [float(r[2] or 0) for r in foreseen], "predicted from the profile", 1, hollow=True),
    ]  # fmt: skip
    shape = plot.layout("trial", "within the SLO, requests/s")
    shape["xaxis"] |= {"dtick": 1 if len(rows) <= 20 else 5}
    shape["yaxis"] |= {"rangemode": "tozero"}
    errors = [abs((said or 0) / float(seen) - 1) for _, seen, said, t in whole if seen and said is not None]
    told = f"; in the mean they differ by {percent(float(np.mean(errors)))}" if errors else ""
    return Picture(
        [t for t in traces if t["x"]],
        shape,
        f"Trials over time, {tried} and predicted",
        f"Attainment times the rate offered, of {len(rows)} trials, and what the uncorrected profile had said{told}.",
    )


def _labels(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    return [f"{row[3].deployment.label} at {number(row[3].rate)}/s" for row in rows]


def sm_shares(profile: Profile, best: Deployment, media_tokens: float, total_tokens: float) -> Picture | None:
    """Latency against SM share of encode and prefill, alone and beside each other, with the chosen split."""
    bound = best.encode_batch or 1
    curves = []
    for look, (stage, beside, batch, tokens) in enumerate(
        (
            (Stage.ENCODE, Beside.NONE, bound, media_tokens),
            (Stage.ENCODE, Beside.PREFILL, bound, media_tokens),
            (Stage.PREFILL, Beside.NONE, 1, total_tokens),
            (Stage.PREFILL, Beside.ENCODE, 1, total_tokens),
        )
    ):
        curve = _curve(profile, stage, beside, batch, tokens, look)
        if curve is not None:
            curves.append(curve)
    if not curves:
        return None
    shape = plot.layout("share of SMs, %", "latency, ms")
    shape["yaxis"] |= {"type": "log", "dtick": 1, "minor": {"ticks": "outside"}}
    shape["xaxis"] |= {"range": [0, 104], "dtick": 20}
    words = f"How long a stage takes with a share of a GPU's SMs ({profile.metadata.source})."
    if best.topology != "disaggregated":
        words += f" A {best.topology} deployment splits no GPU."
    elif best.prefill_offload == 1:
        words += " The answer sends every prefill to its own pool, so that encode has whole GPUs."
    elif isinstance(best.sm_table, tuple):
        encode = next(
            (r.encode_sm for r in reversed(best.sm_table) if r.batch <= bound), best.sm_table[0].encode_sm
        )
        if encode == 50:
            marks = [plot.upright(50, "50 % each")]
        else:
            marks = [plot.upright(encode, f"encode, batch {bound}: {number(encode)} %")]
            if encode < 100:
                marks.append(
                    plot.upright(100 - encode, f"local prefill: {number(100 - encode)} %", dash="dot")
                )
        shape = plot.with_marks(shape, *marks)
        words += f" While a batch of {bound} is encoded, encode holds {number(encode)} % and local prefill the rest."
    elif best.sm_table == "streams":
        words += " The answer shares its encode GPUs without a partition (streams)."
    return Picture(curves, shape, "Latency against SM share", words)


def _curve(
    profile: Profile, stage: Stage, beside: Beside, batch: int, tokens: float, look: int
) -> dict[str, Any] | None:
    rows = [row for row in profile.rows if row.stage == stage and row.beside == beside]
    if not rows:
        return None
    b = min({row.batch for row in rows}, key=lambda value: abs(value - batch))
    t = min({row.tokens for row in rows}, key=lambda value: abs(value - tokens))
    shown = sorted((row.sm_percent, row.latency_s * 1e3) for row in rows if (row.batch, row.tokens) == (b, t))
    if len(shown) < 2:
        return None
    with_whom = "alone" if beside is Beside.NONE else f"beside {beside.value}"
    name = f"{stage.value} {with_whom}, batch {b}, {number(t)} tokens"
    return plot.line([x for x, _ in shown], [y for _, y in shown], name, look)


def stage_times(figures: Mapping[str, Any]) -> Picture | None:
    """Where a request's time goes: the mean wait and service of each stage."""
    rows = [
        (
            LABELS.get(name, name),
            (stage.get("wait_ms") or {}).get("mean"),
            (stage.get("service_ms") or {}).get("mean"),
        )
        for name, stage in (figures.get("stages") or {}).items()
        if stage and (stage.get("service_ms") or {}).get("mean") is not None
    ]
    if not rows:
        return None
    names = [row[0] for row in rows]
    traces = [
        plot.bars(names, [row[1] or 0.0 for row in rows], "waits for the stage", 1),
        plot.bars(names, [row[2] for row in rows], "is served by it", 0),
    ]
    shape = plot.layout("ms, mean", "", barmode="group")
    shape["xaxis"] |= {"type": "log", "dtick": 1}
    shape["yaxis"] |= {"autorange": "reversed", "title": {"text": ""}}
    longest = max(rows, key=lambda row: row[1] or 0.0)
    words = f"The longest wait is for {longest[0]}, {number(float(longest[1] or 0.0))} ms in the mean. Scale: logarithmic."
    return Picture(traces, shape, "Waits and service by stage", words, height=80 + 62 * len(rows))


def rate_sweep(sweeps: Sequence[Sweep], slo: Slo, rate: float) -> Picture:
    """Attainment over the offered rate: where each deployment has its knee."""
    traces = [
        plot.line(s.rates, [100 * a for a in s.attainment], s.name, look) for look, s in enumerate(sweeps)
    ]
    shape = plot.layout("offered, requests/s", "requests within the SLO, %")
    shape["yaxis"] |= {"range": [-3, 103]}
    shape = plot.with_marks(
        shape,
        plot.level(100 * slo.attainment, f"target {percent(slo.attainment, None)}"),
        plot.upright(rate, f"the answer's rate, {number(rate)}"),
    )
    knees = ", ".join(f"{s.name} {_knee(s, slo.attainment)}" for s in sweeps)
    return Picture(
        traces, shape, "Rate sweep to the knee", f"Simulated. Largest rate tried that meets the target: {knees}."
    )  # fmt: skip


def _knee(sweep: Sweep, target: float) -> str:
    held = [rate for rate, share in zip(sweep.rates, sweep.attainment, strict=True) if share >= target]
    return f"{number(max(held))}/s" if held else f"none from {number(sweep.rates[0])}/s on"


def distribution(
    name: str,
    curves: Sequence[tuple[str, Any]],
    seen_ms: Mapping[str, float | None],
    bound_ms: float,
    rate: float,
    tried: str = "measured",
) -> Picture:
    """Share of requests within a latency: simulated at `rate` as lines, percentiles of the trial as marks, the SLO upright.

    `tried` says of the trial at which rate it was, and whether it was measured.
    """
    seen = [(seen_ms.get(f"p{q}"), q) for q in (50, 90, 99)]
    known = [(float(v), float(q)) for v, q in seen if v is not None]
    longest = max((float(np.quantile(v, 0.98)) for _, v in curves if len(v)), default=bound_ms)
    end = 1.15 * max(bound_ms, *(v for v, _ in known), min(longest, 3 * bound_ms))
    traces = []
    for look, (whose, values) in enumerate(curves):
        at, shares = share_below(values)
        shown = f"{whose} (beyond the right edge)" if at and at[0] > end else whose
        traces.append(plot.line(at, [100 * s for s in shares], shown, look, markers=False))
    if known:
        traces.append(
            plot.points(
                [v for v, _ in known], [q for _, q in known], f"the trial's p50, p90, p99, {tried}", 3
            )
        )
    shape = plot.layout(f"{name}, ms", "requests at or below, %")
    shape["xaxis"] |= {"range": [0, float(f"{end:.4g}")]}
    shape["yaxis"] |= {"range": [0, 103]}
    shape = plot.with_marks(shape, plot.upright(bound_ms, f"SLO {number(bound_ms)} ms"))
    within = ", ".join(
        f"{whose} {percent(float(np.mean(np.asarray(v) <= bound_ms)))}" for whose, v in curves if len(v)
    )
    return Picture(
        traces,
        shape,
        f"Distribution of {name} at {number(rate)} requests/s",
        f"Within the bound of {number(bound_ms)} ms at {number(rate)} requests/s: {within}.",
    )


def pareto(rows: Sequence[Mapping[str, Any]]) -> Picture:
    """What is carried over the number of GPUs: the front as a line, what another point beats as open marks."""
    front = [r for r in rows if r["on_front"] and r["carried_rps"] is not None]
    beaten = [r for r in rows if not r["on_front"] and r["carried_rps"] is not None]
    traces = [
        plot.line([r["gpus"] for r in front], [r["carried_rps"] for r in front], "on the front", 0),
        plot.points(
            [r["gpus"] for r in beaten], [r["carried_rps"] for r in beaten], "beaten", 1, hollow=True
        ),
    ]
    for trace, shown in zip(traces, (front, beaten), strict=True):
        trace["text"] = [str(r["deployment"]) for r in shown]
    shape = plot.layout("GPUs", "carried, requests/s")
    shape["xaxis"] |= {"dtick": 1}
    shape["yaxis"] |= {"rangemode": "tozero"}
    told = ", ".join(f"{r['gpus']}: {number(r['carried_rps'])}/s" for r in front)
    words = f"The front of GPUs against requests/s within the SLO: {told}."
    if any(r["usd_per_hour"] is not None for r in rows):
        words += " Prices and what they come to are in the table."
    return Picture([t for t in traces if t["x"]], shape, "Pareto front", words, height=300)


def baseline_name(key: str) -> str:
    return SHORT.get(key, BASELINE_WORDS.get(key, key))

"""Figures of a run as tables: the headline numbers, the latencies, the stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from has.core.words import percent
from has.report.binding import LABELS
from has.report.document import Bars, Section, Table, number, two_columns

Figures = Mapping[str, Any]


def headline(figures: Figures) -> Table:
    """What came of the requests, and the rates."""
    rows = [
        ("requests", figures.get("requests")),
        ("completed", figures.get("completed")),
        ("failed", figures.get("failed")),
        ("of these refused", figures.get("refused")),
        ("duration, s", figures.get("duration_s")),
        ("offered, requests/s", figures.get("offered_rps")),
        ("throughput, requests/s", figures.get("throughput_rps")),
        ("goodput, requests/s", figures.get("goodput_rps")),
        ("attainment", percent(figures.get("attainment"))),
    ]
    routed = figures.get("routed")
    if routed:
        rows.append(("prefills local / remote", f"{routed.get('local')} / {routed.get('remote')}"))
    return two_columns(rows)


def latencies(figures: Figures) -> Table:
    """TTFT, TPOT and end-to-end time in milliseconds."""
    rows = []
    for key, name in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("e2e_ms", "end to end")):
        values = figures.get(key) or {}
        rows.append((name, *(values.get(column) for column in ("mean", "p50", "p90", "p99"))))
    return Table(("ms", "mean", "p50", "p90", "p99"), rows)


def stages(figures: Figures) -> Table:
    """One row a stage: utilisation, batches, waits and service."""
    rows = []
    for name, stage in (figures.get("stages") or {}).items():
        if not stage or (stage.get("utilisation") is None and not stage.get("batches")):
            continue  # nothing of this stage ran
        wait, service = stage.get("wait_ms") or {}, stage.get("service_ms") or {}
        rows.append(
            (
                LABELS.get(name, name),
                percent(stage.get("utilisation")),
                stage.get("batches"),
                stage.get("mean_batch"),
                percent(stage.get("full_share"), 0),
                wait.get("mean"),
                wait.get("p99"),
                service.get("mean"),
                service.get("p99"),
            )
        )
    columns = ("stage", "busy", "batches", "mean batch", "full", "wait ms", "p99", "service ms", "p99")
    return Table(columns, rows)


def utilisation(figures: Figures) -> Bars:
    """How busy each stage's workers were."""
    rows = [
        (name, float(stage["utilisation"]), percent(stage["utilisation"]))
        for name, stage in (figures.get("stages") or {}).items()
        if stage and stage.get("utilisation") is not None
    ]
    return Bars(rows, "Share of time busy")


def sections(figures: Figures) -> list[Section]:
    """All of it, as sections."""
    told = [Section("Outcome", [headline(figures)]), Section("Latencies", [latencies(figures)])]
    by_stage = stages(figures)
    # A server seen from outside tells nothing of its stages.
    return [*told, Section("Stages", [by_stage])] if by_stage.rows else told


def one_line(figures: Figures) -> str:
    """The figures in a sentence."""
    ttft, tpot = figures.get("ttft_ms") or {}, figures.get("tpot_ms") or {}
    return (
        f"goodput {number(figures.get('goodput_rps'))} of {number(figures.get('offered_rps'))} requests/s offered,"
        f" attainment {number(percent(figures.get('attainment')))},"
        f" TTFT p99 {number(ttft.get('p99'))} ms, TPOT p99 {number(tpot.get('p99'))} ms"
    )

"""From measured points to a profile: rows, what is unsure about them, and what follows for sharing a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from has.core.profile import Profile
from has.core.stage import Stage
from has.device.gate import P90_BOUND
from has.files.profile import profile_from_rows
from has.latency.curves import fits
from has.profiler.adapt import outlook
from has.profiler.plan import Plan, Point
from has.profiler.points import Measured, WorkFile, medians
from has.profiler.sharing import as_metadata, sharing

UNSTABLE_SPREAD = 0.10
MEASURED_ERROR = 0.05


def words(point: Point) -> str:
    beside = ""
    if point.companion:
        where = "sharing all SMs with" if point.sm_percent >= 100 else "beside"
        beside = f" {where} {point.beside}"
    return f"{point.stage}{beside}, {point.sm_percent:g} % of SMs, batch {point.batch}, {point.tokens} tokens"


def assemble(
    plan: Plan,
    work: WorkFile,
    device: Mapping[str, Any],
    notes: Mapping[str, Any],
) -> Profile:
    """The profile of a plan whose points are all measured, follow from others or are absent.

    device, notes: what the metadata says of the device, and of how it was measured. A row that follows has no samples and
    no deciles.
    """
    rows: list[dict[str, Any]] = []
    unstable: list[str] = []
    ahead = outlook(plan, medians(work))
    points = [point for point in plan.points if point.key not in ahead.absent]
    for point in sorted(points, key=lambda p: (list(Stage).index(p.stage), p.key)):
        measured = work.measured.get(point.key)
        if measured is None:
            rows.append(_row(point) | {"latency_s": ahead.follows[point.key]})
            continue
        row = _row(point) | _samples(measured)
        rows.append(row)
        if said := _unstable(point, measured, row):
            unstable.append(said)
    metadata = {
        "version": 1,
        "model": plan.model,
        "source": "measured",
        "engine": "has",
        "dtype": work.facts["dtype"],
        "tensor_parallel": 1,
        "weights_bytes": work.facts["weights_bytes"],
        "kv_bytes_per_token": work.facts["kv_bytes_per_token"],
        "kv_heads": work.facts.get("kv_heads"),  # not in a work file that an older version began
        "error": MEASURED_ERROR,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "notes": {"plan": plan.size, **notes, **_counts(plan, points, work), "unstable": unstable},
        **device,
    }
    profile = profile_from_rows(metadata, rows)
    shared, fitted = sharing(profile), fits(profile)
    derived = ({"sharing": as_metadata(shared)} if shared else {}) | ({"sm_fits": fitted} if fitted else {})
    return profile_from_rows(metadata | derived, rows)


def _row(point: Point) -> dict[str, Any]:
    return {
        "stage": str(point.stage),
        "sm_percent": point.sm_percent,
        "sm_asked": float(point.sm_asked),
        "beside": str(point.beside),
        "batch": point.batch,
        "tokens": point.tokens,
    }


def _samples(measured: Measured) -> dict[str, Any]:
    samples = sorted(measured.samples)
    deciles = statistics.quantiles(samples, n=10, method="inclusive") if len(samples) > 1 else samples * 9
    return {
        "latency_s": statistics.median(samples),
        "p10_s": deciles[0],
        "p90_s": deciles[8],
        "samples": len(samples),
    }


def _unstable(point: Point, measured: Measured, row: Mapping[str, Any]) -> str:
    """Why a point is not to be relied on, or nothing."""
    spread = row["p90_s"] - row["p10_s"] > UNSTABLE_SPREAD * row["latency_s"]
    if not (measured.disturbed(point.stage) or (spread and point.stage in P90_BOUND)):
        return ""
    return (
        f"{words(point)}: p10 {row['p10_s']:.4g} s, p90 {row['p90_s']:.4g} s, host {measured.ratio:.3f},"
        f" companion {measured.covered:.3f}"
    )


def _counts(plan: Plan, points: list[Point], work: WorkFile) -> dict[str, int]:
    """What the rows rest on: how many were measured, follow, have one sample, have a mean that is not narrow."""
    measured = [point for point in points if point.key in work.measured]
    paced = [work.measured[point.key] for point in measured if str(point.stage) in P90_BOUND]
    return {
        "measured": len(measured),
        "interpolated": len(points) - len(measured),
        "one_sample": sum(len(m.samples) == 1 for m in paced),
        "wide": sum(len(m.samples) > 1 and m.half_width > plan.sampling.width for m in paced),
        "samples_dropped": sum(m.dropped for m in paced),
    }

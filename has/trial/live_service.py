"""How long stages really took against what a profile says, under the conditions they really had.

A batch of encode and a local prefill on the same GPU change each other's pace, so a batch is held
against its profile as an integral: sum over its time of dt / T(conditions then). That is 1 for a
batch that lasts just what the profile says, and 1.1 for one that takes a tenth longer.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from has.core.stage import Beside, Stage
from has.latency.lookup import LatencyModel
from has.trial.live_records import Work


def service_ratios(works: Iterable[Work], latency: LatencyModel, *, streams: bool) -> dict[str, Any]:
    """Per stage: batches, mean measured/predicted service, and the mean seconds measured."""
    by_stage: dict[str, list[Work]] = defaultdict(list)
    for work in works:
        by_stage[work.stage].append(work)
    result: dict[str, Any] = {}
    for stage, batches in by_stage.items():
        ratios = [
            ratio
            for work in batches
            if (ratio := _ratio(work, _neighbours(work, by_stage), latency, streams)) is not None
        ]
        seconds = [work.span.duration_s for work in batches]
        result[stage] = {
            "batches": len(batches),
            "service_s": sum(seconds) / len(seconds),
            "measured_over_predicted": sum(ratios) / len(ratios) if ratios else None,
        }
    return result


def _neighbours(work: Work, by_stage: dict[str, list[Work]]) -> list[Work]:
    """Works of the other lane of the same GPU that overlap this one."""
    other = {"encode": "prefill_local", "prefill_local": "encode"}.get(work.stage, "")
    return [
        near
        for near in by_stage.get(other, ())
        if near.worker == work.worker
        and near.span.start_s < work.span.end_s
        and near.span.end_s > work.span.start_s
    ]


def _ratio(work: Work, near: list[Work], latency: LatencyModel, streams: bool) -> float | None:
    stage = Stage.PREFILL if work.stage.startswith("prefill") else work.stage
    if stage == "mixed" or not latency.covers(stage):
        return None
    span = work.span
    cuts = {span.start_s, span.end_s}
    for other in near:
        cuts |= {max(span.start_s, other.span.start_s), min(span.end_s, other.span.end_s)}
    edges = sorted(cuts)
    done = 0.0
    for begin, end in itertools.pairwise(edges):
        middle = (begin + end) / 2
        beside = next((o for o in near if o.span.start_s <= middle < o.span.end_s), None)
        share = work.share_percent
        if work.stage == "prefill_local" and beside is not None and not streams:
            share = 100.0 - beside.share_percent
        if share <= 0:
            continue
        condition = Beside.NONE
        if beside is not None:
            condition = Beside.PREFILL if work.stage == "encode" else Beside.ENCODE
            if not latency.covers(stage, condition):
                condition = Beside.NONE
        predicted_s = latency.seconds(stage, work.batch, work.tokens, share, condition)
        if predicted_s > 0:
            done += (end - begin) / predicted_s
    return done or None

"""What a profile says about encode and prefill on one GPU: the SM table of the budget rule, and whether it beats streams.

    symbol   meaning
    x        encode's share for a batch of b, by the rule (policy/partition.py), prefill on the rest
    T_E, T_P latencies of encode (b requests) and of a prefill of one request, both running all the time
    progress T_E(100, alone)/T_E + T_P(100, alone)/T_P: work done per second, in GPUs that would take turns

A progress of 1 is what taking turns would do: above it, sharing gains; below it, it loses. Streams are the same two on all
SMs without a partition, which a profile has as its rows beside each other at 100 %.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any, Literal

from has.core.profile import Profile
from has.core.stage import Beside, Stage
from has.core.words import signed
from has.latency.lookup import LatencyModel
from has.policy.partition import WHOLE, SmPartitioner

BUDGET = 0.2
LARGEST_BATCH = 8


@dataclass(frozen=True, slots=True)
class Shared:
    """One way to share a GPU at one encode batch: how much longer each takes than alone on all SMs, and progress."""

    encode_slowdown: float
    prefill_slowdown: float

    @property
    def progress(self) -> float:
        return 1 / self.encode_slowdown + 1 / self.prefill_slowdown


@dataclass(frozen=True, slots=True)
class SharingRow:
    """`partition` is None where the rule leaves nothing to prefill."""

    batch: int
    encode_sm: float
    partition: Shared | None
    streams: Shared | None


@dataclass(frozen=True, slots=True)
class Sharing:
    """encode_tokens and prefill_tokens: per request, the middle of what was profiled."""

    slowdown_budget: float
    encode_tokens: float
    prefill_tokens: float
    rows: tuple[SharingRow, ...]
    better: Literal["partition", "streams"] | None
    """By mean progress over the batches; None where one of the two was not profiled."""

    @property
    def words(self) -> str:
        if self.better is None:
            return ""
        partition, streams = self.mean("partition"), self.mean("streams")
        kept = [row.streams.encode_slowdown <= 1 + self.slowdown_budget for row in self.rows if row.streams]
        budget = (
            "streams keep it too"
            if all(kept)
            else f"streams break it at {kept.count(False)} of {len(kept)} batches"
        )
        more = (
            f"partition does more work: {partition:.2f} against {streams:.2f} with streams"
            if self.better == "partition"
            else f"streams do more work: {streams:.2f} against {partition:.2f} with a partition"
        )
        return f"{more} (1 is taking turns); the partition keeps encode within {signed(self.slowdown_budget, 0)}, {budget}"

    def mean(self, way: Literal["partition", "streams"]) -> float:
        return statistics.fmean(shared.progress for row in self.rows if (shared := getattr(row, way)))


def sharing(profile: Profile, slowdown_budget: float = BUDGET, tokens: float | None = None) -> Sharing | None:
    """None for a profile of one SM share, without encode, or with a stage that takes no time. `tokens`: media tokens of a request."""
    latency = LatencyModel.from_profile(profile)
    if not latency.covers(Stage.ENCODE) or len(latency.shares(Stage.ENCODE)) < 2:
        return None
    encode, prefill = latency.grid(Stage.ENCODE), latency.grid(Stage.PREFILL)
    media = _middle(encode.tokens) if tokens is None else tokens
    prompt = _middle(prefill.tokens)
    batches = [int(b) for b in encode.batch if b <= LARGEST_BATCH] or [int(encode.batch[0])]
    timed = (row.latency_s for row in profile.rows if row.stage in (Stage.ENCODE, Stage.PREFILL))
    if min(timed) <= 0:
        return None
    table = SmPartitioner.from_profile(profile, slowdown_budget, max(batches), tokens=media)
    colocated = latency.covers(Stage.ENCODE, Beside.PREFILL) and latency.covers(Stage.PREFILL, Beside.ENCODE)

    def shared(batch: int, share: float, rest: float) -> Shared:
        beside = (
            latency.seconds(Stage.ENCODE, batch, media, share, Beside.PREFILL),
            latency.seconds(Stage.PREFILL, 1, prompt, rest, Beside.ENCODE),
        )
        alone = latency.seconds(Stage.ENCODE, batch, media), latency.seconds(Stage.PREFILL, 1, prompt)
        return Shared(beside[0] / alone[0], beside[1] / alone[1])

    streamed = colocated and latency.shares(Stage.ENCODE, Beside.PREFILL)[-1] >= WHOLE
    rows = []
    for batch in batches:
        share = table.encode_share(batch)
        rows.append(
            SharingRow(
                batch,
                share,
                shared(batch, share, WHOLE - share) if share < WHOLE else None,
                shared(batch, WHOLE, WHOLE) if streamed else None,
            )
        )
    made = Sharing(slowdown_budget, media, prompt, tuple(rows), None)
    if not streamed or not any(row.partition for row in rows):
        return made
    better: Literal["partition", "streams"] = (
        "partition" if made.mean("partition") >= made.mean("streams") else "streams"
    )
    return Sharing(slowdown_budget, media, prompt, tuple(rows), better)


def _middle(axis: Any) -> float:
    """A point that was measured: the lower of two middles, as the partition rule takes it."""
    return float(axis[(len(axis) - 1) // 2])


def as_metadata(found: Sharing) -> dict[str, Any]:
    """As a profile keeps it: rounded to what its samples can carry."""

    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rounded(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [rounded(each) for each in value]
        return round(value, 3) if isinstance(value, float) else value

    kept: dict[str, Any] = rounded(asdict(found))
    if found.words:
        kept["words"] = found.words
    return kept

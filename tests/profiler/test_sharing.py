"""The SM table that a profile gives, and whether it beats streams."""

from __future__ import annotations

import pytest

from has.core.profile import Profile
from has.files.profile import profile_from_rows
from has.profiler.plan import make_plan
from has.profiler.sharing import as_metadata, sharing
from tests.profiler.declared import declared_s

SHARES = (20, 40, 60, 80, 100)


def profile(encode_beside=1.0, prefill_beside=1.0, streams=(2.0, 2.0), shares=SHARES) -> Profile:
    """Encode that fills 40 % of the SMs, prefill near linear; factors on what runs beside the other."""
    rows = []

    def add(stage, share, seconds, beside="none"):
        rows.append(
            {
                "stage": stage,
                "sm_percent": share,
                "beside": beside,
                "batch": 1,
                "tokens": 64,
                "latency_s": seconds,
            }
        )

    for share in shares:
        encode, prefill = 0.1 * max(1.0, 40 / share), 0.1 * 100 / share
        add("encode", share, encode)
        add("prefill", share, prefill)
        add("encode", share, encode * (streams[0] if share == 100 else encode_beside), "prefill")
        add("prefill", share, prefill * (streams[1] if share == 100 else prefill_beside), "encode")
    add("decode", 100, 0.01)
    return profile_from_rows({"version": 1, "device": "d", "model": "m", "source": "measured"}, rows)


def test_the_partition_is_compared_with_streams_by_the_work_done():
    found = sharing(profile())
    (row,) = found.rows
    assert row.encode_sm == 40
    assert (row.partition.encode_slowdown, row.partition.prefill_slowdown) == pytest.approx((1.0, 1 / 0.6))
    assert row.partition.progress == pytest.approx(1.6)
    assert row.streams.progress == pytest.approx(1.0)
    assert found.better == "partition"
    assert found.words.startswith("partition does more work: ")
    assert "1.60 against 1.00" in found.words
    assert "streams break it at 1 of 1 batches" in found.words


def test_streams_win_where_a_partition_costs_more():
    found = sharing(profile(encode_beside=1.15, prefill_beside=2.0, streams=(1.1, 1.3)))
    assert found.better == "streams"
    streams, partition = (f"{found.mean(way):.2f}" for way in ("streams", "partition"))
    assert found.words.startswith(f"streams do more work: {streams} against {partition} with a partition")
    assert found.mean("streams") > found.mean("partition")
    assert "streams keep it too" in found.words


def test_without_streams_or_a_partition_to_compare_nothing_is_said():
    kept = profile()
    no_streams = [row for row in kept.rows if not (row.sm_percent == 100 and row.beside != "none")]
    found = sharing(Profile(metadata=kept.metadata, rows=tuple(no_streams)))
    assert (found.better, found.words) == (None, "")
    assert found.rows[0].streams is None
    assert sharing(profile(shares=(100,))) is None


def test_odd_profiles_are_told_apart_from_nothing():
    """A stage that takes no time shares nothing; batches beyond the usual ones still do."""
    kept = profile()
    free = [row.model_copy(update={"latency_s": 0.0}) if row.stage == "prefill" else row for row in kept.rows]
    assert sharing(Profile(metadata=kept.metadata, rows=tuple(free))) is None
    large = [row.model_copy(update={"batch": 32}) for row in kept.rows]
    assert [row.batch for row in sharing(Profile(metadata=kept.metadata, rows=tuple(large))).rows] == [32]


def test_the_declared_device_is_better_partitioned():
    plan = make_plan("tiny-image", lambda _, share: share, lambda count: 64, tokens=[64])
    rows = [
        {
            "stage": str(point.stage),
            "sm_percent": point.sm_percent,
            "beside": str(point.beside),
            "batch": point.batch,
            "tokens": point.tokens,
            "latency_s": declared_s(point),
        }
        for point in plan.points
    ]
    found = sharing(
        profile_from_rows({"version": 1, "device": "d", "model": "m", "source": "measured"}, rows)
    )
    assert found.better == "partition"
    kept = as_metadata(found)
    assert [row["batch"] for row in kept["rows"]] == [1, 2, 3, 4, 6, 8]
    assert kept["words"] == found.words

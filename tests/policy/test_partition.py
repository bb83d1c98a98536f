"""The SM partition: the table's reading, and the rule that makes one from a profile."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has import HasError
from has.core.deployment import SmRow
from has.core.profile import Profile, ProfileMetadata, ProfilePoint
from has.policy import SmPartitioner
from has.policy.partition import encode_shares, prefill_shares

fixed = settings(deadline=None, derandomize=True, max_examples=100)
PAPER = {1: 20, 2: 30, 4: 40, 6: 60, 8: 75}


def profile(latencies: dict[tuple[str, float, int, int], float]) -> Profile:
    """Encode rows {(beside, share, batch, tokens): seconds}, and the rows that every profile has."""
    rows = [
        ProfilePoint(
            stage="encode", beside=beside, sm_percent=share, batch=batch, tokens=tokens, latency_s=latency
        )
        for (beside, share, batch, tokens), latency in latencies.items()
    ]
    rows += [
        ProfilePoint(stage=stage, sm_percent=100, batch=1, tokens=1, latency_s=1.0)
        for stage in ("prefill", "decode")
    ]
    return Profile(metadata=ProfileMetadata(version=1, device="d", model="m", source="measured"), rows=rows)


def saturating(
    beside="none",
    needs=lambda batch: 20 * batch,
    slow=1.0,
    shares=(10, 20, 40, 60, 80, 100),
    batches=(1, 2, 4),
):
    """A device on which a batch fills `needs(batch)` percent of the SMs: no slower with more, 1/x slower with less."""
    return {(beside, x, b, 100): slow * 0.1 * b * max(1.0, needs(b) / x) for x in shares for b in batches}


@pytest.mark.parametrize(
    ("batch", "split"),
    [
        (0, (0, 100)),
        (1, (20, 80)),
        (2, (30, 70)),
        (3, (30, 70)),
        (5, (40, 60)),
        (7, (60, 40)),
        (8, (75, 25)),
        (99, (75, 25)),
    ],
)
def test_between_two_rows_the_lower_one_holds(batch, split):
    assert SmPartitioner(PAPER).split(batch=batch) == split


def test_below_the_first_row_the_first_holds():
    assert SmPartitioner({4: 40}).split(1) == (40, 60)


def test_streams_split_nothing():
    streams = SmPartitioner("streams")
    assert streams.streams
    assert streams.split(3) is None
    assert streams.split(0) is None
    assert list(encode_shares("streams", 3)) == [0, 100, 100, 100]
    assert list(prefill_shares("streams", 3)) == [100, 100, 100, 100]


def test_the_kernels_arrays_are_the_table():
    rows = tuple(SmRow(batch=b, encode_sm=x) for b, x in ((4, 40.0), (1, 20.0)))
    assert list(encode_shares(rows, 5)) == [0, 20, 20, 20, 40, 40]
    assert list(prefill_shares(rows, 5)) == [100, 80, 80, 80, 60, 60]
    assert SmPartitioner(rows).sm_table == tuple(sorted(rows, key=lambda row: row.batch))


@pytest.mark.parametrize(
    "table",
    [{}, {0: 20}, {1: 0}, {1: 101}, {1: math.nan}, {1.5: 20}, {True: 20}, {1: True}, "stream", [(1, 20)],
     [{"batch": 1, "encode_sm": 20}, {"batch": 1, "encode_sm": 30}], [{"batch": 1}]],
)  # fmt: skip
def test_tables_that_are_none_are_refused(table):
    with pytest.raises(HasError):
        SmPartitioner(table)


@pytest.mark.parametrize("batch", [-1, 1.5, True, None])
def test_batches_that_are_none_are_refused(batch):
    for table in (PAPER, "streams"):
        with pytest.raises(HasError):
            SmPartitioner(table).split(batch)


def test_the_least_share_within_the_budget():
    """Needs 20, 40, 80 % for 1, 2, 4 requests; with a 20 % budget a share of 1/1.2 of that will do."""
    table = SmPartitioner.from_profile(profile(saturating()), slowdown_budget=0.2, batch_bound=4)
    assert [table.encode_share(b) for b in (1, 2, 4)] == [20, 40, 80]
    loose = SmPartitioner.from_profile(profile(saturating()), slowdown_budget=1.0, batch_bound=4)
    assert [loose.encode_share(b) for b in (1, 2, 4)] == [10, 20, 40]


def test_a_latency_at_the_very_budget_is_within_it():
    table = SmPartitioner.from_profile(
        profile({("none", 50, 1, 1): 0.336, ("none", 100, 1, 1): 0.28}), slowdown_budget=0.2, batch_bound=1
    )
    assert table.encode_share(1) == 50


def test_every_larger_share_must_do_as_well():
    """A dip at 20 % does not count when 40 % is too slow."""
    rows = {("none", x, 1, 1): t for x, t in ((20, 1.0), (40, 2.0), (60, 1.1), (100, 1.0))}
    assert SmPartitioner.from_profile(profile(rows), batch_bound=1).encode_share(1) == 60


def test_rows_beside_a_prefill_decide_where_there_are_any():
    alone, beside = saturating(), saturating("prefill", slow=1.15, shares=(20, 40, 60, 80))
    table = SmPartitioner.from_profile(profile(alone | beside), batch_bound=4)
    # beside a prefill a batch at full need is 15 % slower already: 1.15 of 1.2 is left, and no grid share in between
    assert [table.encode_share(b) for b in (1, 2, 4)] == [20, 40, 80]
    slower = saturating("prefill", slow=1.3, shares=(20, 40, 60, 80))
    assert SmPartitioner.from_profile(profile(alone | slower), batch_bound=4).encode_share(1) == 100


def test_rows_of_streams_say_nothing_of_a_partition():
    """At 100 % beside a prefill both hold all SMs: however slow encode is there, the shares below decide."""
    alone, beside = saturating(), saturating("prefill", shares=(20, 40, 60, 80))
    streams = {("prefill", 100, b, 100): 9.0 for b in (1, 2, 4)}
    table = SmPartitioner.from_profile(profile(alone | beside | streams), batch_bound=4)
    assert table.sm_table == SmPartitioner.from_profile(profile(alone | beside), batch_bound=4).sm_table
    only_streams = {key: t for key, t in (alone | streams).items() if key[1] == 100}
    assert SmPartitioner.from_profile(profile(only_streams)).streams


def test_one_share_means_streams():
    one = {("none", 100, b, 100): 0.1 * b for b in (1, 2)}
    assert SmPartitioner.from_profile(profile(one)).streams


def test_a_profile_without_encode_rows_has_no_partition_to_give():
    with pytest.raises(HasError, match="no encode rows"):
        SmPartitioner.from_profile(profile({}))


def test_tokens_choose_the_point_and_default_to_the_middle():
    rows = {("none", x, 1, t): max(1.0, t / x) for x in (10, 20, 40, 80, 100) for t in (10, 20, 80)}
    assert SmPartitioner.from_profile(profile(rows), batch_bound=1).encode_share(1) == 20
    assert SmPartitioner.from_profile(profile(rows), batch_bound=1, tokens=80).encode_share(1) == 80
    assert SmPartitioner.from_profile(profile(rows), batch_bound=1, tokens=10).encode_share(1) == 10


@fixed
@given(
    needs=st.lists(st.floats(5, 200), min_size=3, max_size=3),
    noise=st.lists(st.floats(0.8, 1.25), min_size=18, max_size=18),
    budget=st.floats(0, 2),
    bound=st.integers(1, 12),
)
def test_a_derived_table_has_every_batch_never_falls_and_keeps_its_promise(needs, noise, budget, bound):
    need = dict(zip((1, 2, 4), needs, strict=True))
    rows = {key: t * f for (key, t), f in zip(saturating(needs=need.get).items(), noise, strict=True)}
    table = SmPartitioner.from_profile(profile(rows), slowdown_budget=budget, batch_bound=bound)
    assert [row.batch for row in table.sm_table] == list(range(1, bound + 1))
    shares = [table.encode_share(b) for b in range(1, bound + 1)]
    assert shares == sorted(shares)
    assert set(shares) <= {10, 20, 40, 60, 80, 100}
    for batch in (b for b in (1, 2, 4) if b <= bound):
        encode, prefill = table.split(batch)
        assert encode + prefill == 100
        for x in (x for x in (10, 20, 40, 60, 80, 100) if x >= encode):
            assert rows["none", x, batch, 100] <= (1 + budget) * rows["none", 100, batch, 100] * (1 + 1e-9)


def test_batches_between_and_beyond_the_profiled_are_linear():
    rows = {("none", x, b, 1): b * (1.0 + (0.1 * b if x == 50 else 0.0)) for x in (50, 100) for b in (1, 3)}
    # slowdown at 50 %: 1.1 at b = 1, 1.3 at 3; latencies there 1.1 and 3.9, so 2.5 at b = 2 (slowdown 1.25), 5.3 at 4
    for budget, least in ((0.25, [50, 50, 100, 100]), (0.3, [50, 50, 50, 100]), (0.33, [50, 50, 50, 50])):
        table = SmPartitioner.from_profile(profile(rows), slowdown_budget=budget, batch_bound=4)
        assert [table.encode_share(b) for b in range(1, 5)] == least


@pytest.mark.parametrize(
    "arguments",
    [{"slowdown_budget": -0.1}, {"batch_bound": 0}, {"tokens": math.nan}, {"slowdown_budget": None}],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(HasError):
        SmPartitioner.from_profile(profile(saturating()), **arguments)


def test_the_paper_table_sums_to_the_whole():
    assert np.all(encode_shares(PAPER, 12)[1:] + prefill_shares(PAPER, 12)[1:] == 100)


@pytest.mark.parametrize("table", [None, 5, 1.5, Ellipsis, b"x"], ids=repr)
def test_what_is_no_table_is_refused(table):
    with pytest.raises(HasError):
        SmPartitioner(table)


@pytest.mark.parametrize("measured", [None, {}, {"rows": []}, 5, "profile", Ellipsis], ids=repr)
def test_what_is_no_profile_is_refused(measured):
    with pytest.raises(HasError, match="not a profile"):
        SmPartitioner.from_profile(measured)

"""Look-up: exact on the grid, multilinear between, along the end segments beyond, within reach."""

from __future__ import annotations

import itertools

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.runtime import _nrt_python

from has.core.profile import Profile
from has.errors import InputError
from has.latency.lookup import REACH, Grid, LatencyModel, interpolate

fixed = settings(deadline=None, derandomize=True, max_examples=200)
METADATA = {"version": 1, "device": "d", "model": "m", "source": "measured"}


def row(stage, sm=100.0, batch=1, tokens=1, latency_s=1.0, **more):
    return {"stage": stage, "sm_percent": sm, "batch": batch, "tokens": tokens, "latency_s": latency_s} | more


BASE = [row("prefill"), row("decode")]


def model(rows, base=BASE) -> LatencyModel:
    return LatencyModel.from_profile(Profile.model_validate({"metadata": METADATA, "rows": [*base, *rows]}))


def on_grid(sm, batch, tokens, latency, stage="encode", **more):
    return [row(stage, s, b, t, latency(s, b, t), **more) for s, b, t in itertools.product(sm, batch, tokens)]


def axis(low, high, whole=True):
    values = st.integers(low, high) if whole else st.floats(low, high)
    return st.lists(values, min_size=1, max_size=5, unique=True).map(sorted)


grids = st.tuples(axis(1, 100, whole=False), axis(1, 64), axis(0, 9000)).flatmap(
    lambda axes: st.tuples(
        st.just(axes),
        st.lists(st.floats(0, 100), min_size=(n := len(axes[0]) * len(axes[1]) * len(axes[2])), max_size=n),
    )
)


def grid_of(axes, values) -> Grid:
    sm, batch, tokens = (np.array(a, np.float64) for a in axes)
    return Grid(sm, batch, tokens, np.array(values).reshape(len(sm), len(batch), len(tokens)))


@fixed
@given(grids, st.randoms(use_true_random=False))
def test_a_grid_point_gives_its_stored_value_bit_for_bit(drawn, random):
    axes, values = drawn
    grid = grid_of(axes, values)
    rows = [
        row("encode", s, b, t, float(grid.values[i, j, k]))
        for (i, s), (j, b), (k, t) in itertools.product(*map(enumerate, axes))
    ]
    random.shuffle(rows)
    latency = model(rows)
    for r in rows:
        assert latency.seconds("encode", r["batch"], r["tokens"], r["sm_percent"]) == r["latency_s"]


@fixed
@given(grids, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_between_grid_points_the_result_lies_between_the_corners(drawn, u, v, w):
    axes, values = drawn
    grid = grid_of(axes, values)
    place = [a[0] + x * (a[-1] - a[0]) for a, x in zip(axes, (u, v, w), strict=True)]
    corners = grid.values
    for d, (a, x) in enumerate(zip(axes, place, strict=True)):
        high = min(int(np.searchsorted(a, x)), len(a) - 1)
        corners = corners.take(range(max(0, high - 1), high + 1), axis=d)
    result = grid.seconds(*place)
    assert corners.min() - 1e-9 <= result <= corners.max() + 1e-9


@fixed
@given(
    st.tuples(axis(1, 100, whole=False), axis(1, 64), axis(0, 9000)),
    st.lists(st.floats(0, 5), min_size=8, max_size=8),
    st.floats(0, 1),
    st.floats(0, REACH),
    st.floats(0, REACH),
)
def test_a_multilinear_function_is_reproduced_also_beyond_the_grid(axes, c, u, b, t):
    sm, batch, tokens = axes
    if min(map(len, axes)) == 1:
        return

    def truth(x, y, z):
        x, y, z = x / 100, y / 64, z / 9000
        return (
            c[0]
            + c[1] * x
            + c[2] * y
            + c[3] * z
            + c[4] * x * y
            + c[5] * x * z
            + c[6] * y * z
            + c[7] * x * y * z
        )

    latency = model(on_grid(sm, batch, tokens, truth))
    place = (sm[0] + u * (sm[-1] - sm[0]), b * batch[-1], t * tokens[-1])
    if (expected := truth(*place)) >= 1e-6:
        assert latency.seconds("encode", place[1], place[2], place[0]) == pytest.approx(
            expected, rel=1e-6, abs=1e-7
        )


@fixed
@given(grids, st.floats(0.5, 150), st.floats(0, 300), st.floats(0, 40000))
def test_the_model_and_a_compiled_caller_agree_bit_for_bit(drawn, sm, batch, tokens):
    axes, values = drawn
    grid = grid_of(axes, values)
    inlined = through_a_kernel(grid.sm, grid.batch, grid.tokens, grid.values, sm, batch, tokens)
    assert grid.seconds(sm, batch, tokens) == inlined
    rows = on_grid(*axes, lambda s, b, t: grid.seconds(s, b, t))
    try:
        assert model(rows).seconds("encode", batch, tokens, sm) == inlined
    except InputError:
        assert inlined < 0 or batch > REACH * axes[1][-1] or tokens > REACH * axes[2][-1]


@numba.njit
def through_a_kernel(sm_axis, batch_axis, tokens_axis, values, sm, batch, tokens):
    return interpolate(sm_axis, batch_axis, tokens_axis, values, sm, batch, tokens)


@fixed
@given(grids, st.floats(0.1, 1), st.floats(0, 300), st.floats(0, 40000))
def test_below_the_least_share_latency_grows_as_least_over_share(drawn, part, batch, tokens):
    axes, values = drawn
    grid = grid_of(axes, values)
    least = axes[0][0]
    at_least = grid.seconds(least, batch, tokens)
    expected = at_least if len(axes[0]) == 1 else at_least * (least / (least * part))
    assert grid.seconds(least * part, batch, tokens) == pytest.approx(expected, rel=1e-12)


def test_above_the_largest_share_latency_stays():
    latency = model(on_grid([20, 90], [1], [1], lambda s, b, t: 90 / s))
    assert latency.seconds("encode", 1, 1, 100) == 1.0


def test_three_constant_rows_depend_on_nothing():
    latency = model(
        [row("encode", latency_s=0.25)], [row("prefill", latency_s=0.5), row("decode", latency_s=0.01)]
    )
    for batch, tokens, share in ((1, 1, 100), (64, 10**6, 100), (3, 0, 0.5)):
        assert latency.seconds("encode", batch, tokens, share) == 0.25
        assert latency.seconds("prefill", batch, tokens, share) == 0.5
        assert latency.seconds("decode", batch, tokens, share) == 0.01
    assert latency.check_range("encode", 10**6, 10**9) == []


def test_constant_along_an_axis_is_exact():
    latency = model(on_grid([30, 70], [1, 3], [10, 17], lambda s, b, t: 0.1))
    assert {
        latency.seconds("encode", b, t, s) for b in (1, 2, 2.7, 9) for t in (10, 13, 60) for s in (30, 41, 70)
    } == {0.1}


@pytest.mark.parametrize("stage", ["preprocess", "embedding_transfer", "kv_transfer"])
def test_stages_that_may_be_missing_cost_nothing(stage):
    latency = model([])
    assert not latency.covers(stage)
    assert latency.seconds(stage, 1, 10**6) == 0.0
    assert latency.check_range(stage, 1, 10**6) == []


def test_a_missing_encode_is_an_error_when_asked_for():
    with pytest.raises(InputError, match="no row of stage encode"):
        model([]).seconds("encode", 1, 1)


def test_rows_beside_another_stage_rule_only_there():
    latency = model([row("encode", latency_s=1.0), row("encode", latency_s=1.5, beside="prefill")])
    assert latency.covers("encode", "prefill")
    assert not latency.covers("prefill", "encode")
    assert latency.seconds("encode", 1, 1) == 1.0
    assert latency.seconds("encode", 1, 1, beside="prefill") == 1.5
    assert latency.seconds("prefill", 1, 1, beside="encode") == latency.seconds("prefill", 1, 1)


def test_rows_only_beside_another_stage_are_refused():
    with pytest.raises(InputError, match="none of encode alone"):
        model([row("encode", beside="prefill")])


def test_a_hole_in_the_grid_is_named():
    rows = on_grid([50, 100], [1, 2], [64, 128], lambda s, b, t: 1.0, beside="none")
    rows = [r for r in rows if (r["sm_percent"], r["batch"], r["tokens"]) != (50, 2, 64)]
    with pytest.raises(InputError) as error:
        model(rows)
    assert "no point (sm_percent 50, batch 2, tokens 64)" in error.value.message
    assert error.value.field == "rows"


def test_each_beside_fills_its_own_grid():
    rows = [row("encode", batch=b) for b in (1, 2, 4)] + [
        row("encode", batch=b, beside="prefill") for b in (1, 2)
    ]
    assert model(rows).grid("encode", "prefill").batch.tolist() == [1, 2]


def test_reach_ends_at_four_times_the_profile():
    latency = model(on_grid([100], [1, 8], [64, 512], lambda s, b, t: b * t))
    assert latency.seconds("encode", 32, 2048) == 32 * 2048
    for batch, tokens, field in ((33, 512, "batch"), (8, 2049, "tokens")):
        for ask in (latency.seconds, latency.check_range):
            with pytest.raises(InputError, match="out of the profile's reach") as error:
                ask("encode", batch, tokens)
            assert error.value.field == field


def test_range_warnings_name_stage_axis_and_bounds():
    latency = model(on_grid([100], [2, 8], [64, 512], lambda s, b, t: b * t))
    assert latency.check_range("encode", 8, 512, min_batch=2, min_tokens=64) == []
    warnings = latency.check_range("encode", 9, 600, min_batch=1, min_tokens=9)
    assert [w.split(" extrapolates")[0] for w in warnings] == [
        "encode: batch up to 9",
        "encode: batch down to 1",
        "encode: tokens up to 600",
        "encode: tokens down to 9",
    ]


def test_a_negative_extrapolation_is_an_error_with_the_place():
    latency = model([row("encode", tokens=100, latency_s=1.0), row("encode", tokens=200, latency_s=0.4)])
    with pytest.raises(InputError, match="negative latency") as error:
        latency.seconds("encode", 1, 400)
    assert "tokens 400" in error.value.message


@pytest.mark.parametrize(
    ("batch", "tokens", "share"), [(1, 1, 0), (1, 1, -5), (-1, 1, 100), (1, -1, 100), (1, 1, float("nan"))]
)
def test_nonsense_is_refused(batch, tokens, share):
    with pytest.raises(InputError):
        model([row("encode")]).seconds("encode", batch, tokens, share)


@numba.njit
def thousand_times(sm_axis, batch_axis, tokens_axis, values):
    total = 0.0
    for i in range(1000):
        total += interpolate(sm_axis, batch_axis, tokens_axis, values, 10.0 + i % 100, i % 9, i % 700)
    return total


def test_the_kernel_allocates_nothing():
    """numba counts every allocation its compiled code makes; a caller's own arguments cost a few."""
    grid = grid_of(([50.0, 100.0], [1, 2], [1, 2]), range(8))
    arguments = (grid.sm, grid.batch, grid.tokens, grid.values)
    thousand_times(*arguments)
    _nrt_python.memsys_enable_stats()
    try:
        before = _nrt_python.memsys_get_stats_alloc()
        thousand_times(*arguments)
        assert _nrt_python.memsys_get_stats_alloc() - before < 100
        count_arrays(100)
        assert _nrt_python.memsys_get_stats_alloc() - before >= 100, "the counter counts"
    finally:
        _nrt_python.memsys_disable_stats()


@numba.njit
def count_arrays(n):
    total = 0.0
    for i in range(n):
        total += np.empty(i + 1).size
    return total


def test_shares_are_those_profiled():
    assert model(on_grid([100, 20, 50], [1], [1], lambda s, b, t: 1.0)).shares("encode") == (
        20.0,
        50.0,
        100.0,
    )

"""Plans: what is measured, in what order, and that look-ups will find their grids filled."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from has.core.stage import Beside, Stage
from has.device.device_model import VIRTUAL_GPU
from has.errors import InputError
from has.models.tokens import token_rule
from has.profiler.plan import load, make_plan, weight


def nearest(count: int) -> int:
    return token_rule("tiny-image").nearest("image", count).tokens


def plan(**options):
    return make_plan("tiny-image", VIRTUAL_GPU.offer, nearest, **options)


def grids(made):
    found: dict = {}
    for point in made.points:
        found.setdefault((point.stage, point.beside), []).append(
            (point.sm_percent, point.batch, point.tokens)
        )
    return found


def assert_filled(made):
    for rows in grids(made).values():
        assert sorted(rows) == sorted(itertools.product(*({row[i] for row in rows} for i in range(3))))


@pytest.mark.parametrize("size", ["quick", "full"])
def test_each_stage_has_the_shares_and_batches_a_search_needs(size):
    made = plan(size=size)
    assert_filled(made)
    found = grids(made)
    for stage, beside in (
        (Stage.ENCODE, Beside.NONE),
        (Stage.ENCODE, Beside.PREFILL),
        (Stage.PREFILL, Beside.NONE),
        (Stage.PREFILL, Beside.ENCODE),
        (Stage.DECODE, Beside.NONE),
    ):
        rows = found[stage, beside]
        assert len({sm for sm, _, _ in rows}) >= 5
        assert len({batch for _, batch, _ in rows}) >= 4
        assert len({tokens for _, _, tokens in rows}) >= 2
    for stage in (Stage.PREPROCESS, Stage.EMBEDDING_TRANSFER, Stage.KV_TRANSFER):
        assert {(sm, batch) for sm, batch, _ in found[stage, Beside.NONE]} == {(100.0, 1)}


def test_companions_get_the_rest_and_fill_it():
    for point in plan().points:
        if point.companion is None:
            continue
        assert point.sm_percent < 100
        assert {point.stage, point.companion.stage} == {Stage.ENCODE, Stage.PREFILL}
        if point.companion.stage is Stage.ENCODE:
            used = VIRTUAL_GPU.encode.occupancy(point.companion.batch, point.companion.tokens)
            assert used >= 1 - point.sm_percent / 100


@given(
    st.lists(st.floats(1, 100), min_size=1, max_size=6),
    st.lists(st.integers(1, 32), min_size=1, max_size=4),
    st.lists(st.integers(1, 1000), min_size=1, max_size=4),
)
def test_whatever_is_asked_fills_its_grids_once(sm, batch, tokens):
    made = plan(sm=sm, batch=batch, tokens=tokens)
    assert_filled(made)
    keys = [point.key for point in made.points]
    assert len(keys) == len(set(keys))


def test_shares_that_the_device_rounds_to_one_are_measured_once():
    made = plan(sm=[33, 34, 36], batch=[1], tokens=[64])
    assert {(p.sm_percent, p.sm_asked) for p in made.points if p.stage is Stage.ENCODE} == {(35.0, 33)}


def test_media_tokens_are_those_an_item_can_have():
    made = plan(tokens=[100])
    assert {p.tokens for p in made.points if p.stage in (Stage.ENCODE, Stage.PREPROCESS)} == {128}
    assert {p.tokens for p in made.points if p.stage is Stage.PREFILL} == {100}


def test_the_longest_come_first_and_loads_are_those_of_a_gpu_or_two():
    points = plan().points
    assert [weight(p) for p in points] == sorted((weight(p) for p in points), reverse=True)
    assert all(0 < load(p) <= (2 if p.stage is Stage.DECODE else 1) for p in points)


@pytest.mark.parametrize(
    "bad",
    [
        {"sm": [0.5]},
        {"sm": [101]},
        {"sm": []},
        {"batch": [0]},
        {"batch": [2.5]},
        {"tokens": [0]},
        {"batch": [True]},
    ],
)
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(InputError) as caught:
        plan(**bad)
    assert caught.value.field in bad


def test_the_digest_knows_how_often_a_point_was_measured():
    assert plan().digest() == plan(batch=[1]).digest()
    assert plan().digest() != plan(size="full").digest()

"""Plans: what is measured, in what order, and that look-ups will find their grids filled."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from has.core.profile import ProfilePoint
from has.core.stage import Beside, Stage
from has.device.device_model import VIRTUAL_GPU
from has.errors import InputError
from has.latency.lookup import Grid
from has.models.tokens import token_rule
from has.profiler.adapt import Lookout, bends, outlook, refine
from has.profiler.plan import Companion, load, make_plan, weight
from tests.profiler.declared import declared_s


def nearest(count: int) -> int:
    return token_rule("tiny-image").nearest("image", count).tokens


def offered(_: str, share: float) -> float:
    return VIRTUAL_GPU.offer(share)


def plan(**options):
    return make_plan("tiny-image", offered, nearest, **options)


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
    streams = 0
    for point in plan().points:
        if point.companion is None:
            continue
        streams += point.sm_percent == 100
        assert {point.stage, point.companion.stage} == {Stage.ENCODE, Stage.PREFILL}
        if point.companion.stage is Stage.ENCODE:
            used = VIRTUAL_GPU.encode.occupancy(point.companion.batch, point.companion.tokens)
            assert used >= 1 - point.sm_percent / 100
    assert streams == 6 * (2 + 2)


def test_streams_have_a_partner_of_the_usual_size():
    """All SMs are both's, so it slows a prefill by what it can fill: the largest batch says what the largest costs."""
    beside = {
        point.companion
        for point in plan().points
        if point.stage is Stage.PREFILL and point.companion and point.sm_percent >= 100
    }
    assert beside == {Companion(Stage.ENCODE, 3, 64)}
    partitioned = {
        p.companion for p in plan().points if p.stage is Stage.PREFILL and p.companion and p.sm_percent < 100
    }
    assert partitioned == {Companion(Stage.ENCODE, 8, 64)}, "an encode that fills its share"


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


def measured_by(latency, made):
    """(seconds of what was measured, of what follows) when every wanted point takes `latency(point)`."""
    seconds = {}
    while wanted := outlook(made, seconds).wanted:
        assert not {point.key for point in wanted} & seconds.keys()
        seconds |= {point.key: latency(point) for point in wanted}
    ahead = outlook(made, seconds)
    follows = ahead.follows
    assert not follows.keys() & seconds.keys()
    assert not ahead.absent & (follows.keys() | seconds.keys())
    assert follows.keys() | seconds.keys() | ahead.absent == {point.key for point in made.points}
    return seconds, follows


@pytest.mark.parametrize(("size", "most"), [("quick", 0.8), ("full", 0.6)])
def test_few_points_where_the_curve_is_straight_more_at_the_knee(size, most):
    """On the declared device: a good part need not be measured, and what follows is as good as measured."""
    made = plan(size=size)
    by_key = {point.key: point for point in made.points}
    seconds, follows = measured_by(declared_s, made)
    assert len(seconds) < most * len(seconds.keys() | follows.keys())
    off = [abs(value / declared_s(by_key[key]) - 1) for key, value in follows.items()]
    assert max(off) < 0.03
    assert sorted(off)[len(off) // 2] < 0.01
    alone = [by_key[key] for key in seconds if key[:2] == ("encode", "none")]
    assert {p.batch for p in alone if p.sm_percent == 100} == {p.batch for p in alone}
    straight = {p.batch for p in alone if p.sm_percent == min(p.sm_percent for p in alone)}
    assert len(straight) < len({p.batch for p in alone})


def grid_of(made, values):
    """The look-up of a stage, as a profile of these values would have it: (stage, beside) -> Grid."""
    rows: dict = {}
    for point in made.points:
        if point.key in values:
            rows.setdefault((point.stage, point.beside), []).append((point, values[point.key]))
    return {
        key: Grid.from_rows(
            ProfilePoint(
                stage=p.stage,
                sm_percent=p.sm_percent,
                beside=p.beside,
                batch=p.batch,
                tokens=p.tokens,
                latency_s=value,
            )
            for p, value in of
        )
        for key, of in rows.items()
    }


def worst_look_up(made, values) -> float:
    """The largest relative error of a look-up at a share that the declared device offers, over the batches measured."""
    grids, off = grid_of(made, values), 0.0
    for point in made.points:
        if point.stage not in (Stage.ENCODE, Stage.PREFILL, Stage.DECODE) or point.sm_percent < 20:
            continue
        if point.companion is not None and point.sm_percent > 80:
            continue  # between the last partition and streams, where no table stands
        looked_up = grids[point.stage, point.beside].seconds(point.sm_percent, point.batch, point.tokens)
        off = max(off, abs(looked_up / declared_s(point) - 1))
    return off


@pytest.mark.parametrize("size", ["quick", "full"])
def test_look_ups_are_right_between_the_shares_measured_also_at_a_knee(size):
    """Linear in the share itself: within 3 % at every share the device offers; a tenth off without spare shares."""
    made = plan(size=size)
    seconds, follows = measured_by(declared_s, made)
    assert worst_look_up(made, seconds | follows) <= 0.031
    spare = {point.key for point in made.points if point.spare}
    assert seconds.keys() & spare
    without = {key: value for key, value in (seconds | follows).items() if key not in spare}
    assert worst_look_up(made, without) > (0.05 if size == "quick" else 0.02)


def test_shares_in_proportion_to_which_work_goes_are_looked_up_within_three_percent():
    for size in ("quick", "full"):
        shares = sorted(
            {p.sm_percent for p in plan(size=size).points if p.stage is Stage.ENCODE and not p.spare}
        )
        for low, high in itertools.pairwise(shares):
            for share in range(int(low), int(high) + 1, 5):
                looked_up = 1 / low + (share - low) / (high - low) * (1 / high - 1 / low)
                assert looked_up * share <= 1.03


def test_a_bend_is_measured_where_its_two_sides_cross():
    axis = [1 / share for share in (20, 25, 30, 35, 40, 45, 50, 55, 60, 70, 80, 100)]
    curve = [max(1 / 0.41, 100 * x) for x in axis]
    known = {i: curve[i] for i in (0, 1, 3, 5, 8, 10, 11)}
    assert bends(axis, known, 0.04) == [4]  # 40 %, between 35 and 45
    assert bends(axis, known | {4: curve[4]}, 0.04) == []
    assert bends(axis, {0: curve[0], 11: curve[11]}, 0.04)  # two alone say nothing of what is between
    straight = {i: 0.01 + x for i, x in enumerate(axis) if i in known}
    assert bends(axis, straight, 0.04) == []


def test_a_straight_curve_takes_its_ends_and_its_thirds():
    seconds, _ = measured_by(lambda point: 0.1 * point.batch / point.sm_percent, plan(tokens=[64]))
    for stage in ("encode", "prefill"):
        taken = {(key[2], key[3]) for key in seconds if key[:2] == (stage, "none")}
        assert taken == {(share, batch) for share in (20, 35, 60, 100) for batch in (1, 3, 4, 8)}


def test_shares_or_batches_that_were_asked_for_are_all_measured():
    for asked in ({"batch": [1, 2, 3, 4]}, {"sm": [25, 50, 75, 100]}):
        made = plan(**asked)
        assert len(outlook(made, {}).wanted) == len(made.points)


def test_looking_again_and_again_finds_what_one_look_finds():
    made = plan()
    lookout, seconds = Lookout(made), {}
    while wanted := lookout.look(seconds).wanted:
        afresh = outlook(made, seconds)
        assert wanted == afresh.wanted
        assert lookout.look(seconds).absent == afresh.absent
        seconds |= {point.key: declared_s(point) for point in wanted[:40]}
    assert lookout.look(seconds).follows == pytest.approx(outlook(made, seconds).follows)


def test_an_interrupted_profile_comes_to_the_same_points():
    made = plan()
    seconds, _ = measured_by(declared_s, made)
    some = dict(list(seconds.items())[:40])
    lookout = Lookout(made)
    while wanted := lookout.look(some).wanted:
        some[wanted[-1].key] = declared_s(wanted[-1])
    assert some == seconds


@given(
    st.lists(st.floats(0.01, 10), min_size=1, max_size=9),
    st.floats(0, 0.5),
    st.lists(st.floats(1, 9), min_size=9),
)
def test_refining_ends_and_keeps_what_was_measured(values, tolerance, steps):
    axis = list(itertools.accumulate(steps))[: len(values)]
    known = {}
    while missing := refine(axis, known, tolerance)[0]:
        assert not set(missing) & known.keys()
        known |= {i: values[i] for i in missing}
    follows = refine(axis, known, tolerance)[1]
    assert sorted([*known, *follows]) == list(range(len(values)))
    assert all(
        min(values) <= value * (1 + 1e-9) and value <= max(values) * (1 + 1e-9) for value in follows.values()
    )

"""The gap batcher: its closed forms, and what holds for every sequence of calls."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has import HasError
from has.policy import MicroBatcher, gap_coefficient
from has.policy.microbatch import AGE, FULL, GAP, NONE, due_ns, gap_ns, reason_at

fixed = settings(deadline=None, derandomize=True, max_examples=200)


@pytest.mark.parametrize(
    ("bound", "coefficient"), [(1, 0.0), (2, 0.9163), (4, 1.8543), (8, 2.6539), (16, 3.3968)]
)
def test_gap_coefficient_at_the_default_probability(bound, coefficient):
    assert gap_coefficient(batch_bound=bound, fill_probability=0.6) == pytest.approx(coefficient, abs=5e-5)


@fixed
@given(st.integers(2, 4096), st.floats(1e-300, 1, exclude_max=True))
def test_gap_coefficient_inverts_the_fill_probability(bound, p):
    kappa = gap_coefficient(bound, p)
    # P(full) = (1 - e^-κ)^(B-1), in logarithms since p may be tiny
    log_q = math.log(-math.expm1(-kappa)) if kappa < 1 else math.log1p(-math.exp(-kappa))
    assert log_q * (bound - 1) == pytest.approx(math.log(p), rel=1e-6, abs=1e-12)


def test_gap_coefficient_at_its_ends():
    assert gap_coefficient(8, 0.0) == 0
    assert gap_coefficient(8, 1.0) == math.inf
    assert gap_coefficient(2, 5e-324) == pytest.approx(5e-324)  # no cancellation near 0


@pytest.mark.parametrize(
    ("bound", "p"),
    [
        (0, 0.5),
        (-1, 0.5),
        (2.0, 0.5),
        (True, 0.5),
        ("4", 0.5),
        (4, -0.1),
        (4, 1.1),
        (4, math.nan),
        (4, True),
        (4, "x"),
    ],
)
def test_gap_coefficient_refuses(bound, p):
    with pytest.raises(HasError):
        gap_coefficient(bound, p)


def closed_forms(bound: int, p: float) -> dict[str, float]:
    q = p ** (1 / (bound - 1))
    size = (1 - q**bound) / (1 - q)
    return {
        "full": p,
        "size": size,
        "first_wait": size - 1,
        "wait": sum(j * q**j for j in range(1, bound)) / size,
    }


@pytest.mark.parametrize(("bound", "p"), [(2, 0.6), (4, 0.6), (8, 0.6), (4, 0.2), (16, 0.9)])
def test_poisson_arrivals_meet_the_closed_forms(bound, p):
    """A batcher driven by seeded Poisson arrivals, its encoder always idle, 6000 batches, 3 standard errors."""
    rate = 2.5
    draws = iter(np.random.Generator(np.random.PCG64(7)).exponential(1 / rate, 200_000))
    batcher = MicroBatcher(batch_bound=bound, rate=rate, fill_probability=p)
    batches, now_s = [], 0.0
    while len(batches) < 6000:
        now_s += next(draws)
        due_s = batcher.next_due_s()
        if due_s is not None and due_s < now_s:
            batches.append((due_s, batcher.take(now_s=due_s)))
        batcher.add(object(), now_s=now_s)
        if (full := batcher.take(now_s=now_s)) is not None:
            batches.append((now_s, full))
    assert {batch.reason for _, batch in batches} == {"full", "gap"}

    sizes = np.array([len(batch.items) for _, batch in batches])
    waits = np.array([rate * sum(start - add for add in batch.add_times_s) for start, batch in batches])
    firsts = np.array([rate * (start - batch.add_times_s[0]) for start, batch in batches])
    fulls = np.array([batch.reason == "full" for _, batch in batches])
    expected = closed_forms(bound, p)

    def within_three_standard_errors(samples, mean):
        assert abs(samples.mean() - mean) <= 3 * samples.std(ddof=1) / math.sqrt(len(samples))

    # Batches are independent: each ends by a silence (memoryless) or by its own B-th arrival.
    within_three_standard_errors(fulls.astype(float), expected["full"])
    within_three_standard_errors(sizes, expected["size"])
    within_three_standard_errors(firsts, expected["first_wait"])
    within_three_standard_errors(
        waits - expected["wait"] * sizes, 0.0
    )  # the ratio ΣW/ΣN, by the delta method


def test_the_way_of_one_batch():
    batcher = MicroBatcher(batch_bound=4, rate=2.0, fill_probability=0.6, max_wait_s=None)
    assert batcher.next_due_s() is None
    assert batcher.take(now_s=0.0) is None
    batcher.add("a", now_s=1.0)
    batcher.add("b", now_s=1.5)
    gap = gap_coefficient(4, 0.6) / 2.0
    assert batcher.gap_s == pytest.approx(gap)
    assert batcher.next_due_s() == pytest.approx(1.5 + gap)
    assert batcher.take(now_s=1.5 + gap - 1e-6) is None
    batch = batcher.take(now_s=1.5 + gap + 1e-6)
    assert batch.items == ("a", "b")
    assert batch.reason == "gap"
    assert len(batcher) == 0


def test_a_batch_of_one_is_always_full():
    batcher = MicroBatcher(batch_bound=1)
    batcher.add("a", now_s=3.0)
    assert batcher.next_due_s() == 3.0
    assert batcher.take(now_s=3.0).reason == "full"


def test_greedy_needs_no_rate_and_patience_has_no_gap():
    greedy = MicroBatcher(batch_bound=8, rate=None, fill_probability=0.0)
    greedy.add("a", now_s=1.0)
    assert greedy.take(now_s=1.0).reason == "gap"
    patient = MicroBatcher(batch_bound=2, rate=100.0, fill_probability=1.0)
    patient.add("a", now_s=1.0)
    assert patient.next_due_s() is None
    assert patient.take(now_s=1e6) is None
    unknown = MicroBatcher(batch_bound=2, rate=None)
    unknown.add("a", now_s=1.0)
    assert unknown.next_due_s() is None


def test_more_than_fits_stays_with_its_add_times():
    batcher = MicroBatcher(batch_bound=2, rate=None, max_wait_s=10.0)
    for i in range(5):
        batcher.add(i, now_s=float(i))
    assert batcher.take(now_s=5.0).items == (0, 1)
    assert batcher.take(now_s=5.0).items == (2, 3)
    assert batcher.take(now_s=5.0) is None
    assert batcher.next_due_s() == 14.0  # the add at 4 s, plus the cap
    last = batcher.take(now_s=14.0)
    assert (last.items, last.reason, last.add_times_s) == ((4,), "age", (4.0,))


def test_the_last_add_outlives_its_launch():
    """What is left behind by a full batch waits g from the last add of all."""
    batcher = MicroBatcher(batch_bound=2, rate=1.0, fill_probability=0.6)
    for i in range(3):
        batcher.add(i, now_s=float(i))
    assert batcher.take(now_s=2.0).items == (0, 1)
    assert batcher.next_due_s() == pytest.approx(2.0 + gap_coefficient(2, 0.6))


def test_full_before_age_before_gap():
    now, gap, age = 100, 10, 20
    assert reason_at(now, 3, 3, 0, 0, gap, age) == FULL
    assert reason_at(now, 2, 3, 0, 0, gap, age) == AGE
    assert reason_at(now, 2, 3, 0, 0, gap, -1) == GAP
    assert reason_at(now, 2, 3, 0, 95, gap, -1) == NONE
    assert reason_at(now, 0, 3, 0, 0, 0, 0) == NONE


def test_a_new_rate_moves_the_gap_at_once():
    batcher = MicroBatcher(batch_bound=4, rate=1.0, fill_probability=0.6)
    batcher.add("a", now_s=0.0)
    kappa = gap_coefficient(4, 0.6)
    assert batcher.next_due_s() == pytest.approx(kappa)
    batcher.set_rate(4.0, now_s=0.2)
    assert batcher.next_due_s() == pytest.approx(kappa / 4)
    batcher.set_rate(None, now_s=0.3)
    assert batcher.next_due_s() is None


def test_draining_launches_all_that_waits_and_all_that_comes():
    batcher = MicroBatcher(batch_bound=2, rate=None)
    for i in range(3):
        batcher.add(i, now_s=float(i))
    batcher.drain(now_s=5.0)
    assert batcher.draining
    assert batcher.take(now_s=5.0).reason == "full"
    assert batcher.next_due_s() == 5.0
    rest = batcher.take(now_s=5.0)
    assert (rest.items, rest.reason) == ((2,), "drain")
    batcher.add(3, now_s=6.0)
    assert batcher.next_due_s() == 6.0
    assert batcher.take(now_s=6.0).reason == "drain"


def test_a_request_can_be_taken_back():
    batcher = MicroBatcher(batch_bound=2, rate=1.0)
    first, second = object(), object()
    batcher.add(first, now_s=0.0)
    batcher.add(second, now_s=1.0)
    assert batcher.remove(first)
    assert not batcher.remove(first)
    assert batcher.clear() == (second,)
    assert batcher.next_due_s() is None


def test_time_that_runs_backwards_counts_as_the_latest():
    batcher = MicroBatcher(batch_bound=4, rate=None, max_wait_s=1.0)
    batcher.add("a", now_s=5.0)
    batcher.add("b", now_s=4.0)
    assert batcher.next_due_s() == 6.0
    assert batcher.take(now_s=6.0).add_times_s == (5.0, 5.0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_bound": 0},
        {"batch_bound": 2.5},
        {"batch_bound": 2, "rate": 0.0},
        {"batch_bound": 2, "rate": -1.0},
        {"batch_bound": 2, "rate": math.inf},
        {"batch_bound": 2, "rate": "3"},
        {"batch_bound": 2, "fill_probability": 2.0},
        {"batch_bound": 2, "max_wait_s": -1.0},
        {"batch_bound": 2, "max_wait_s": math.nan},
    ],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(HasError):
        MicroBatcher(**arguments)


@pytest.mark.parametrize("now_s", [math.nan, math.inf, "1", None, 1e300])
def test_bad_times_are_refused(now_s):
    batcher = MicroBatcher(batch_bound=2, rate=1.0)
    for call in (
        lambda: batcher.add("a", now_s=now_s),
        lambda: batcher.take(now_s=now_s),
        lambda: batcher.drain(now_s=now_s),
    ):
        with pytest.raises(HasError):
            call()
    with pytest.raises(HasError):
        batcher.set_rate(0.0, now_s=1.0)


events = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.floats(0, 2)),
        st.tuples(st.just("take"), st.floats(0, 2)),
        st.tuples(st.just("rate"), st.one_of(st.none(), st.floats(0.01, 100))),
    ),
    max_size=60,
)


@fixed
@given(
    bound=st.integers(1, 6),
    p=st.floats(0, 1),
    rate=st.one_of(st.none(), st.floats(0.01, 100)),
    max_wait_s=st.one_of(st.none(), st.floats(0, 5)),
    start_s=st.sampled_from([0.0, 1e5, 1.7e9]),
    calls=events,
)
def test_invariants_of_any_sequence_of_calls(bound, p, rate, max_wait_s, start_s, calls):
    """First in first out, never more than B, nobody lost; due means launched; nobody older than the cap is kept."""
    batcher = MicroBatcher(bound, rate, p, max_wait_s)
    now_s, added, launched = start_s, 0, []
    for what, value in calls:
        if what == "rate":
            batcher.set_rate(value, now_s=now_s)
            continue
        now_s += value
        if what == "add":
            batcher.add(added, now_s=now_s)
            added += 1
            continue
        due_s = batcher.next_due_s()
        batch = batcher.take(now_s=now_s)
        assert (batch is not None) == (due_s is not None and due_s <= now_s)
        if batch is not None:
            assert 1 <= len(batch.items) <= bound
            assert list(batch.add_times_s) == sorted(batch.add_times_s)
            assert (batch.reason == "full") == (len(batch.items) == bound)
            launched += batch.items
        elif max_wait_s is not None and len(batcher):
            assert due_s <= now_s + max_wait_s + 1e-6
    while (due_s := batcher.next_due_s()) is not None:
        launched += batcher.take(now_s=due_s).items
    assert launched == list(range(len(launched)))
    assert len(launched) + len(batcher) == added


@fixed
@given(
    waiting=st.integers(0, 10),
    bound=st.integers(1, 8),
    oldest=st.integers(0, 10**18),
    since=st.integers(0, 10**12),
    gap=st.integers(-1, 2**62 - 1),
    cap=st.integers(-1, 2**62 - 1),
)
def test_due_is_the_first_instant_with_a_reason(waiting, bound, oldest, since, gap, cap):
    last = oldest + since
    due = due_ns(waiting, bound, oldest, last, gap, cap)
    if due < 0:
        assert reason_at(2**63 - 1, waiting, bound, oldest, last, gap, cap) == NONE
        return
    assert reason_at(due, waiting, bound, oldest, last, gap, cap) != NONE
    if waiting < bound:
        assert reason_at(due - 1, waiting, bound, oldest, last, gap, cap) == NONE


def test_gap_is_rounded_once_and_switched_off_when_it_means_for_ever():
    assert gap_ns(1.0, 3.0) == 333_333_333
    assert gap_ns(1.0, None) == -1
    assert gap_ns(math.inf, 3.0) == -1
    assert gap_ns(1.0, 1e-300) == -1
    assert gap_ns(0.0, None) == 0

"""The online rate estimate: quick after a change, calm under a burst, modest in silence."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has import HasError
from has.policy import MicroBatcher, RateEstimator
from has.policy.rate import WINDOW, estimate_at, new_state, step

fixed = settings(deadline=None, derandomize=True, max_examples=150)
SEEDS = range(400)


def arrivals(seed: int, *phases: tuple[float, int]) -> np.ndarray:
    """Arrival times in ns: for each (rate, count) that many Poisson arrivals."""
    rng = np.random.Generator(np.random.PCG64(seed))
    gaps = np.concatenate([rng.exponential(1 / rate, count) for rate, count in phases])
    return np.rint(np.cumsum(gaps) * 1e9).astype(np.int64)


def after(times: np.ndarray, initial_rate: float | None = None) -> tuple[np.ndarray, float]:
    state = new_state(initial_rate)
    estimate = 0.0
    for now_ns in times:
        estimate = step(state, now_ns)
    return state, estimate


@pytest.mark.parametrize("before", [1.0, 37.0])
@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_64_arrivals_after_a_tenfold_change_it_is_within_a_quarter(before, factor):
    rate = before * factor
    close = sum(abs(after(arrivals(seed, (before, 200), (rate, 64)))[1] / rate - 1) <= 0.25 for seed in SEEDS)
    assert close >= 0.9 * len(SEEDS)


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_wrong_first_belief_is_forgotten_as_soon(factor):
    close = sum(abs(after(arrivals(seed, (2.0, 64)), 2.0 * factor)[1] / 2.0 - 1) <= 0.25 for seed in SEEDS)
    assert close >= 0.9 * len(SEEDS)


@pytest.mark.parametrize("seed", range(20))
def test_a_burst_of_ten_moves_it_by_less_than_a_factor_of_two(seed):
    times = arrivals(seed, (3.0, 150))
    state, before = after(times)
    for _ in range(10):
        burst = step(state, times[-1] + 1)
        assert 0.5 < burst / before < 2.0
    quiet = arrivals(seed + 1000, (3.0, 80)) + times[-1]
    for now_ns in quiet:
        assert 0.5 < step(state, now_ns) / before < 2.0


def test_a_burst_at_the_very_start_does_not_shake_the_first_belief():
    state = new_state(3.0)
    estimates = [step(state, 5_000_000_000) for _ in range(10)]
    assert estimates[0] == pytest.approx(3.0)
    assert all(1.5 < estimate < 6.0 for estimate in estimates)


@fixed
@given(
    gaps=st.lists(st.integers(0, 10**12), min_size=1, max_size=150),
    silence_ns=st.integers(1, 10**15),
    initial_rate=st.one_of(st.none(), st.floats(1e-3, 1e3)),
)
def test_silence_lowers_it_to_one_over_elapsed(gaps, silence_ns, initial_rate):
    state, estimate = after(np.cumsum(gaps), initial_rate)
    silent = estimate_at(state, sum(gaps) + silence_ns)
    assert silent <= 1e9 / silence_ns
    assert silent == pytest.approx(min(estimate, 1e9 / silence_ns))
    assert estimate_at(state, sum(gaps)) == estimate


@fixed
@given(gaps=st.lists(st.integers(0, 10**10), min_size=1, max_size=150))
def test_it_is_the_window_and_nothing_else(gaps):
    times = np.cumsum(gaps)
    _, estimate = after(times)
    known = min(len(gaps) - 1, WINDOW)
    if known == 0:
        assert estimate == 0.0
    else:
        span = max(int(times[-1] - times[-1 - known]), 1)
        assert estimate == pytest.approx((known - 1 / 3) * 1e9 / span)
        assert math.isfinite(estimate)


def test_it_is_as_often_too_high_as_too_low():
    for count in (3, 10, 70):
        high = sum(after(arrivals(seed, (5.0, count)))[1] > 5.0 for seed in range(1000))
        assert abs(high - 500) <= 3 * math.sqrt(250)


def test_the_class_is_the_function():
    estimator, state = RateEstimator(4.0), new_state(4.0)
    assert estimator.rate(now_s=0.0) == pytest.approx(4.0)
    for now_ns in arrivals(3, (4.0, 100)):
        assert estimator.arrive(now_s=now_ns / 1e9) == step(state, now_ns)
    assert estimator.rate(now_s=1e6) == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.parametrize(("bound", "p"), [(2, 0.6), (4, 0.6), (8, 0.6)])
def test_a_batcher_that_learns_its_rate_fills_nearly_as_often_as_one_that_knows_it(bound, p):
    """The noise of the estimate costs about a point of P(full); 12,000 arrivals, three standard errors beside it."""
    batcher, estimator = MicroBatcher(bound, 2.5, p), RateEstimator(2.5)
    reasons = []
    for now_s in arrivals(1, (2.5, 12_000)) / 1e9:
        due_s = batcher.next_due_s()
        if due_s is not None and due_s < now_s:
            reasons.append(batcher.take(now_s=due_s).reason)
        batcher.set_rate(estimator.arrive(now_s=now_s), now_s=now_s)
        batcher.add(object(), now_s=now_s)
        if (full := batcher.take(now_s=now_s)) is not None:
            reasons.append(full.reason)
    error = math.sqrt(p * (1 - p) / len(reasons))
    assert abs(reasons.count("full") / len(reasons) - p) <= 0.015 + 3 * error


def test_nothing_is_known_before_the_second_arrival():
    estimator = RateEstimator()
    assert estimator.rate(now_s=1.0) is None
    assert estimator.arrive(now_s=1.0) is None
    assert estimator.arrive(now_s=2.0) == pytest.approx(2 / 3)


def test_time_that_runs_backwards_counts_as_the_latest():
    estimator = RateEstimator()
    estimator.arrive(now_s=1.0)
    estimator.arrive(now_s=3.0)
    estimator.arrive(now_s=2.0)
    assert estimator.arrive(now_s=4.0) == pytest.approx((3 - 1 / 3) / 3)


@pytest.mark.parametrize("initial_rate", [0, -1, math.nan, "x", True])
def test_bad_rates_are_refused(initial_rate):
    with pytest.raises(HasError):
        RateEstimator(initial_rate)


def test_bad_times_are_refused():
    with pytest.raises(HasError):
        RateEstimator().arrive(now_s=math.nan)

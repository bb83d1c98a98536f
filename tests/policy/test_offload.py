"""The deficit router: exact for any share it accepts, over any length."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has import HasError
from has.policy import DeficitRouter
from has.policy.offload import exact_share, step

fixed = settings(deadline=None, derandomize=True, max_examples=150)
six_decimals = st.integers(0, 10**6).map(lambda n: Fraction(n, 10**6))
fractions = st.one_of(six_decimals, st.fractions(0, 1, max_denominator=10**6))


@fixed
@given(fractions, st.integers(1, 300))
def test_of_the_first_k_requests_floor_k_s_are_remote(s, count):
    router = DeficitRouter(s)
    for k in range(1, count + 1):
        router.route()
        assert router.remote == math.floor(k * s)
        assert router.total == k


def test_a_tenth_ten_times_is_one():
    for s in (0.1, "0.1", "0.10", Fraction(1, 10), Decimal("0.1"), np.float64(0.1), np.float32(0.1)):
        router = DeficitRouter(s)
        assert [router.route() for _ in range(10)] == ["local"] * 9 + ["remote"]


@fixed
@given(fractions, st.lists(st.integers(0, 200_000), min_size=1, max_size=80))
def test_tokens_sent_remote_stay_within_half_the_largest_request(s, weights):
    router = DeficitRouter(s, unit="token")
    for k, weight in enumerate(weights, 1):
        router.route(cost=weight)
        assert abs(router.remote - s * router.total) <= Fraction(max(weights[:k]), 2)
        assert router.deviation == router.remote - s * router.total
    assert router.total == sum(weights)


def test_large_and_small_requests_go_alike():
    """A threshold of w would send 37 % of the large and 92 % of the small requests at s = .5."""
    weights = np.random.Generator(np.random.PCG64(1)).choice([100, 2000], 4000)
    router = DeficitRouter(0.5, unit="token")
    remote = np.array([router.route(cost=int(w)) == "remote" for w in weights])
    for weight in (100, 2000):
        assert remote[weights == weight].mean() == pytest.approx(0.5, abs=0.05)


def test_the_hand_worked_token_trace():
    counter, seen = 0, []
    for weight in (100, 300, 100, 200, 400, 100):
        counter, _ = step(counter, 1, 2, weight, True)
        seen.append(counter / 2)
    assert seen == [-50, 100, 50, -50, 150, 100]


@numba.njit
def many_steps(count, numerator, denominator, weight, token_unit):
    counter, remote, largest = 0, 0, 0
    for _ in range(count):
        counter, gone = step(counter, numerator, denominator, weight, token_unit)
        remote += gone
        largest = max(largest, abs(counter))
    return counter, remote, largest


@pytest.mark.parametrize("numerator", [1, 333_333, 999_999])
def test_a_long_run_neither_drifts_nor_overflows(numerator):
    """3 million requests of the largest weight allowed: the counter stays within its proven bound."""
    denominator, weight, count = 10**6, 10**12, 3_000_000
    counter, remote, _ = many_steps(count, numerator, denominator, 1, False)
    assert remote == count * numerator // denominator
    assert counter == count * numerator % denominator
    counter, remote, largest = many_steps(count, numerator, denominator, weight, True)
    assert largest <= weight * denominator // 2
    assert counter == (count * numerator - remote * denominator) * weight


def test_the_ends():
    assert {DeficitRouter(0).route() for _ in range(5)} == {"local"}
    assert {DeficitRouter(1.0).route() for _ in range(5)} == {"remote"}
    assert {DeficitRouter(0, unit="token").route(cost=5) for _ in range(5)} == {"local"}
    assert {DeficitRouter(1, unit="token").route(cost=5) for _ in range(5)} == {"remote"}


def test_the_request_unit_counts_requests_whatever_they_weigh():
    router = DeficitRouter("0.5")
    assert [router.route(cost=1000), router.route(cost=3)] == ["local", "remote"]
    assert (router.remote, router.total) == (1, 2)


@pytest.mark.parametrize(
    "s",
    [
        math.nan,
        math.inf,
        -0.1,
        1.1,
        "x",
        "",
        "nan",
        None,
        True,
        [],
        "1/3",
        0.1234567,
        "0.1234567",
        "1e-7",
        "1e-999999999",
        Fraction(1, 10**6 + 1),
        Fraction(-1, 2),
        1e-7,
        2,
    ],
)
def test_shares_that_are_none_are_refused(s):
    with pytest.raises(HasError):
        DeficitRouter(s)


def test_shares_that_are_exact():
    assert exact_share("0.3000000") == Fraction(3, 10)
    assert exact_share(0.123456) == Fraction(123456, 10**6)
    assert exact_share(Fraction(1, 3)) == Fraction(1, 3)
    assert exact_share(1e-6) == Fraction(1, 10**6)


@pytest.mark.parametrize("cost", [-1, 1.5, True, "3", None, math.nan, 10**12 + 1])
def test_costs_that_are_none_are_refused(cost):
    for unit in ("request", "token"):
        with pytest.raises(HasError):
            DeficitRouter("0.5", unit=unit).route(cost=cost)


def test_an_unknown_unit_is_refused():
    with pytest.raises(HasError):
        DeficitRouter("0.5", unit="tokens")

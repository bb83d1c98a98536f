"""What callers hand in is a number in its bounds, or an InputError; nothing foreign gets out."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from has.errors import InputError
from has.policy import DeficitRouter
from has.policy.arguments import real, time_ns, whole

NO_FLOATS = [10**400, -(10**400), Fraction(10**400), float("nan"), float("inf"), "1", None, True, 1j, [1.0]]


@pytest.mark.parametrize("value", NO_FLOATS, ids=lambda value: type(value).__name__)
def test_what_no_float_holds_is_refused(value):
    with pytest.raises(InputError, match="not a usable number"):
        real(value, "x", 0.0)
    with pytest.raises(InputError, match="not a time"):
        time_ns(value)


@pytest.mark.parametrize("value", [1.0, "1", None, True, 10**30, -1])
def test_what_is_no_count_is_refused(value):
    with pytest.raises(InputError, match="not a count"):
        whole(value, "x", 0, 2**63 - 1)


def test_numbers_of_every_kind_are_taken():
    assert (real(Fraction(1, 2), "x", 0), real(np.float32(2), "x", 0), real(3, "x", 0)) == (0.5, 2.0, 3.0)
    assert (whole(np.int64(7), "x", 0), time_ns(1.5)) == (7, 1_500_000_000)


@pytest.mark.parametrize("unit", [np.array(["request", "token"]), None, [], 5, "tokens"], ids=repr)
def test_a_unit_is_one_of_two_words(unit):
    with pytest.raises(InputError, match="unknown unit"):
        DeficitRouter(0.5, unit)

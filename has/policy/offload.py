"""Deficit-controlled offload: which prefill goes to the remote pool.

A counter gains s·w per request (w = 1, or the request's tokens) and loses w when one is sent away.
In unit `request` a request goes when the counter reaches 1, so of the first k exactly floor(k·s)
have gone. In unit `token` it goes when the counter reaches w/2, so that large and small requests go
alike: tokens sent remote differ from s·tokens by at most w_max/2 (proof below).

s is a fraction n/d with d <= 10^6 and the counter is kept times d, in integers: nothing drifts.

Bound, by induction over requests, for unit `token`, c in tokens: if the request stays, c < w/2 and c
did not fall; if it goes, c after = c before + s·w - w >= -w/2 and c did not rise. So |c| <= w_max/2,
and the largest number the kernel forms is 2·(c + s·w)·d <= 3·w_max·d: an int64 for w up to 3·10^12
tokens. For unit `request`, 0 <= c < 1 between requests.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Any, Literal

from has.core.compiled import compiled
from has.errors import InputError
from has.policy.arguments import whole

Route = Literal["local", "remote"]
Unit = Literal["request", "token"]
UNITS: tuple[Unit, ...] = ("request", "token")
MAX_DENOMINATOR = 10**6
MAX_WEIGHT = 10**12


@compiled
def step(counter: int, numerator: int, denominator: int, weight: int, token_unit: bool) -> tuple[int, bool]:
    """One request past the counter: (counter after, goes remote).

    `counter` is the deficit times `denominator`, 0 at first; s = numerator/denominator <= 1;
    `weight` is the request's tokens (used for `token_unit` only).
    """
    if token_unit:
        counter += numerator * weight
        if 2 * counter >= weight * denominator:
            return counter - weight * denominator, True
        return counter, False
    counter += numerator
    if counter >= denominator:
        return counter - denominator, True
    return counter, False


def exact_share(s: Any, field: str = "s") -> Fraction:
    """s as the fraction it is meant to be: a float is its shortest decimal, not its binary neighbour.

    Raises InputError for what is no number in 0..1, has more than six decimals (str, float), or a
    denominator above 10^6 (Fraction).
    """
    share = _fraction(s, field)
    if not 0 <= share <= 1:
        raise InputError("outside 0..1", where="argument", field=field, value=s, allowed="0..1")
    if isinstance(s, Rational):
        if share.denominator > MAX_DENOMINATOR:
            raise InputError(
                "denominator too large",
                where="argument",
                field=field,
                value=s,
                allowed="denominators up to 10^6",
            )
    elif MAX_DENOMINATOR % share.denominator:
        raise InputError(
            "more than six decimals",
            where="argument",
            field=field,
            value=s,
            allowed="at most six decimals",
            mend="round it, or hand in a fractions.Fraction",
        )
    return share


def _fraction(s: Any, field: str) -> Fraction:
    if isinstance(s, Fraction):
        return s
    if isinstance(s, Integral) and not isinstance(s, bool):
        return Fraction(int(s))
    if isinstance(s, str | Decimal | Real) and not isinstance(s, bool):
        try:
            decimal = Decimal(str(s))  # str of a float, numpy's too, is its shortest decimal
        except InvalidOperation:
            decimal = Decimal("nan")
        # An exponent such as 1e-999999 would make Fraction build a number of a million digits.
        if decimal.is_finite() and (not decimal or -400 < decimal.adjusted() < 400):
            return Fraction(decimal)
    raise InputError(
        "not a share",
        where="argument",
        field=field,
        value=s,
        allowed='a number in 0..1, as 0.3, "0.3" or Fraction(3, 10)',
    )


class DeficitRouter:
    """Sends the share s of prefills to the remote pool, as evenly as integers allow, exactly, for ever.

    `remote` and `total` count requests or tokens, by `unit`.
    """

    def __init__(self, s: str | float | Fraction | Decimal, unit: Unit = "request") -> None:
        if not isinstance(unit, str) or unit not in UNITS:
            raise InputError(
                "unknown unit", where="argument", field="unit", value=unit, allowed="request or token"
            )
        self.s = exact_share(s)
        self.unit = unit
        self.remote = 0
        self.total = 0
        self._counter = 0

    def route(self, cost: int = 1) -> Route:
        """Where the next request goes. `cost` is its tokens; in unit `request` every request counts 1."""
        weight = whole(cost, "cost", 0, MAX_WEIGHT)
        if self.unit == "request":
            weight = 1
        counter, remote = step(
            self._counter, self.s.numerator, self.s.denominator, weight, self.unit == "token"
        )
        self._counter = int(counter)
        self.total += weight
        self.remote += weight if remote else 0
        return "remote" if remote else "local"

    @property
    def deviation(self) -> Fraction:
        """remote - s·total, in the unit: within (-1, 0] for requests, within ±w_max/2 for tokens."""
        return self.remote - self.s * self.total

"""Fits find the parameters that made the curves, and say how sure they are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has.core.stage import Beside, Stage
from has.files.profile import load_profile
from has.files.shipped import shipped
from has.latency.curves import (
    ShareFit,
    along_shares,
    fit_line,
    fit_shares,
    fits,
    measured_rows,
    typical_error,
)

SHARES = (20, 35, 50, 65, 80, 100)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.floats(0, 0.5), st.floats(0.01, 5), st.floats(36, 79))
def test_the_knee_is_found(start_s, work_s, saturates):
    made = ShareFit(start_s, work_s, saturates, 0, 0, 0, 0, 0)
    fit = fit_shares({share: made.seconds(share) for share in SHARES})
    assert fit.worst_error < 0.01
    assert fit.low - 0.3 <= saturates <= fit.high + 0.3
    assert all(fit.seconds(share) == pytest.approx(made.seconds(share), rel=0.01) for share in SHARES)


def test_noise_widens_the_interval():
    def fit(noise):
        signs = (1, -1, 1, 1, -1, -1)
        return fit_shares(
            {f: 0.1 * max(1 / 0.6, 100 / f) * (1 + noise * s) for f, s in zip(SHARES, signs, strict=True)}
        )

    exact, noisy = fit(0.0), fit(0.05)
    assert exact.saturates == pytest.approx(60, abs=1)
    assert noisy.high - noisy.low > exact.high - exact.low
    assert noisy.low < 60 < noisy.high
    assert noisy.worst_error > 0.02


def test_a_curve_that_never_flattens_is_amdahls():
    fit = fit_shares({share: 0.1 + 2 / share for share in SHARES})
    assert fit.high == 100
    assert fit.worst_error < 0.01


def test_three_shares_are_too_few_and_nought_is_no_latency():
    assert fit_shares({20: 1.0, 50: 0.5, 100: 0.4}) is None
    assert fit_shares(dict.fromkeys(SHARES, 0.0)) is None
    assert fit_line({1: 1.0}) is None


def test_lines_and_their_slope_s_interval():
    fit = fit_line({b: 0.2 + 0.05 * b for b in (1, 2, 4, 8)})
    assert (fit.start_s, fit.each_s) == pytest.approx((0.2, 0.05))
    assert fit.each_half_width < 1e-6
    bent = fit_line({1: 0.25, 2: 0.36, 4: 0.40, 8: 0.65})
    assert 0.05 < bent.each_half_width < 1
    assert bent.worst_error > 0.05
    assert fit_line({1: 1.0, 2: 1.5}).each_half_width is None
    falling = fit_line({1: 2.0, 2: 1.0})
    assert falling.each_s == 0.0


def test_a_shipped_profile_is_fitted_within_a_few_percent():
    """Of the declared device: one knee a curve."""
    profile = load_profile(shipped("profiles") / "cpu-tiny-image.parquet")
    found = fits(profile)
    assert {(fit["stage"], fit["beside"]) for fit in found} >= {
        ("encode", "none"),
        ("prefill", "none"),
        ("decode", "none"),
    }
    assert typical_error(found) < 0.05
    small, large = (
        next(f for f in found if (f["stage"], f["beside"], f["batch"]) == ("encode", "none", batch))
        for batch in (1, 8)
    )
    assert small["saturates"] < large["saturates"]
    assert all(fit["low"] <= fit["saturates"] <= fit["high"] for fit in found)
    beside = along_shares(measured_rows(profile), Stage.ENCODE, 1, 64, Beside.PREFILL)
    assert 100 not in beside

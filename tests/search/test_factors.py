"""Stage factors that differ from batch size to batch size."""

from __future__ import annotations

import numpy as np
import pytest

from has.core.stage import Beside, Stage
from has.latency.lookup import Grid, LatencyModel
from has.search.factors import FACTORS, Factors, sizes
from has.search.predict import scaled
from tests.search.small import make_profile

CURVED = Factors({"encode": (1.0, 4.0, 16.0), "decode": (1.0, 64.0)})


def test_one_number_a_stage_is_the_simplest_case() -> None:
    factors = Factors()
    assert factors.size == len(FACTORS)
    assert np.array_equal(factors.rows({"encode": 8.0, "decode": 3.0}), np.eye(len(FACTORS)))
    sd = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    assert factors.prior(sd) == pytest.approx(np.diag(sd**2))


@pytest.mark.parametrize(
    ("batch", "weights"),
    [
        (1, [1, 0, 0]),
        (2, [0.5, 0.5, 0]),
        (4, [0, 1, 0]),
        (8, [0, 0.5, 0.5]),
        (16, [0, 0, 1]),
        (64, [0, 0, 1]),
    ],
)
def test_between_knots_the_log_factor_is_linear_in_log_batch(batch: float, weights: list[float]) -> None:
    row = CURVED.row("encode", batch)
    assert row[1:4] == pytest.approx(weights)
    assert row.sum() == pytest.approx(1.0)
    assert len(row) == CURVED.size == 1 + 3 + 1 + 2 + 1


def test_at_any_batch_a_factor_is_as_uncertain_and_neighbours_are_wrong_alike() -> None:
    covariance = CURVED.prior(np.full(len(FACTORS), 0.2))
    assert np.diag(covariance) == pytest.approx(0.04)
    correlation = covariance[1, 1:4] / 0.04
    assert np.all(np.diff(correlation) < 0)
    assert correlation.min() > 0.5, "what is common to all batches dominates"
    assert covariance[1, 4:] == pytest.approx(0.0)
    assert np.linalg.eigvalsh(covariance).min() >= 0


def test_a_curve_bends_the_latencies_at_the_batches_of_the_profile() -> None:
    latency = LatencyModel.from_profile(make_profile())
    theta = np.zeros(CURVED.size)
    theta[1:4] = np.log([1.2, 1.0, 0.9])
    constant, curves = CURVED.parts(theta)
    bent = scaled(latency, constant, curves)
    for batch in latency.grid(Stage.ENCODE).batch:
        wanted = np.exp(CURVED.row("encode", batch) @ theta)
        ratio = bent.seconds(Stage.ENCODE, batch, 500) / latency.seconds(Stage.ENCODE, batch, 500)
        assert ratio == pytest.approx(wanted)
    assert bent.seconds(Stage.PREFILL, 2, 500) == latency.seconds(Stage.PREFILL, 2, 500)


def test_no_bend_makes_a_larger_batch_quicker() -> None:
    """A flat profile, bent down at its end, would reach nothing a little beyond it."""
    grid = Grid(np.array([100.0]), np.array([1.0, 4.0, 16.0]), np.array([1.0]), np.full((1, 3, 1), 0.1))
    flat = LatencyModel({(Stage.ENCODE, Beside.NONE): grid}, make_profile().metadata)
    theta = np.zeros(CURVED.size)
    theta[1:4] = np.log([1.1, 1.0, 0.7])
    values = scaled(flat, *CURVED.parts(theta)).grid(Stage.ENCODE).values[0, :, 0]
    assert np.all(np.diff(values) >= 0)
    assert values[0] == pytest.approx(0.11)


def test_knots_lie_over_the_batches_in_use() -> None:
    assert sizes(16, 2) == (1, 2, 4, 8, 16)
    assert sizes(12, 2) == (1, 2, 4, 8, 12)
    assert sizes(1, 2) == (1,)
    assert sizes(0, 2) == (1,)
    assert sizes(256, 4) == (1, 4, 16, 64, 256)

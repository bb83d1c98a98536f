"""Several rates at once: the share of requests within the SLO, whatever rate the drawn list really had."""

from __future__ import annotations

import pytest

from has.core.slo import Slo
from has.search.objective import Objective, Point, largest_rate


@pytest.mark.parametrize("name", ["goodput", "cost"])
def test_a_list_that_offers_more_than_its_rate_hides_no_misses(name: str) -> None:
    def run(rate: float) -> Point:
        offered, attainment = (1.17 * rate, 0.86) if rate == 4 else (rate, 0.93)
        return Point(rate, attainment, attainment * offered, 900.0)

    score = Objective(name, (4.0, 8.0), Slo(ttft_ms=1000, tpot_ms=100)).score(run, 10.0)  # type: ignore[arg-type]  # parametrised
    assert (score.value, score.point.rate) == (0.86, 4.0)


def test_a_bound_that_was_too_low_is_doubted_as_far_as_is_said() -> None:
    def point(rate: float) -> Point:
        return Point(rate, 1.0 if rate <= 20 else 0.5, rate, 0.0)

    assert largest_rate(point, 10.0, 0.9).value == pytest.approx(11.0)
    assert largest_rate(point, 10.0, 0.9, most=50.0).value == pytest.approx(20.0, rel=0.01)
    assert largest_rate(point, 10.0, 0.9, most=15.0).value <= 15.0
    assert largest_rate(point, 30.0, 0.9, most=50.0).value == largest_rate(point, 30.0, 0.9).value

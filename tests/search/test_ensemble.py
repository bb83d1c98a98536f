"""How a largest rate follows the stages, and where they run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from has.core.slo import Slo
from has.search.ensemble import SimulatedEnsemble, together
from has.search.factors import FACTORS, Factors
from has.search.objective import Objective
from has.search.problem import Problem
from has.search.space import Candidate
from has.sim.draw import draw_requests
from tests.search.small import make_profile, make_workload

CANDIDATES = [
    Candidate("disaggregated", (n, 5 - n, 1), (1, 1, 1), batch, 1_000_000 if n < 5 else 0)
    for n in (1, 2, 3, 4)
    for batch in (1, 8)
]


@pytest.fixture(scope="module")
def ensemble() -> SimulatedEnsemble:
    workload = make_workload()
    assert workload.slo is not None
    requests = draw_requests(workload, rate=8.0, requests=200, seed=0)
    problem = Problem(
        gpus=6,
        profile=make_profile(),
        workload=workload,
        objective=Objective("max-rate", (), Slo(ttft_ms=2000, tpot_ms=40)),
        requests=requests,
        base_rate=8.0,
        settings={"model": "synthetic", "preprocess_workers": 64},
        batches=(1, 8),
    )
    found = SimulatedEnsemble(
        problem,
        lambda predictor, candidate, listed, guess: predictor.value(candidate, listed, guess),
        None,
        long=requests,
        trial=requests,
        short=requests,
        guesses={},
        best=20.0,
        best_shown=20.0,
        seed=0,
        factors=Factors.of(problem.latency, 8, 256),
    )
    found.recentre(np.zeros(found.factors.size), np.full(found.factors.size, 0.15))
    return found


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda c: c.label)
def test_no_stage_that_slows_down_lets_more_through(
    ensemble: SimulatedEnsemble, candidate: Candidate
) -> None:
    column = ensemble.column(candidate)
    assert np.all(column.y_slope <= 0)
    assert -1.5 * column.y <= column.y_slope.sum() <= -0.3 * column.y, (
        "all slower by 1 % costs 1 %, or more near the SLO"
    )
    assert 0 <= column.misfit < 0.5


def test_the_narrow_stage_counts_most_and_at_its_own_batch(ensemble: SimulatedEnsemble) -> None:
    narrow = ensemble.column(Candidate("disaggregated", (1, 4, 1), (1, 1, 1), 8, 1_000_000))
    weights = dict(zip(FACTORS, (ensemble.factors.rows({}) != 0) @ narrow.y_slope, strict=True))
    places = [i for i in range(ensemble.factors.size) if ensemble.factors.row("encode", 8)[i]]
    assert narrow.y_slope[places].sum() < -0.5 * narrow.y, "one encoder binds, at batches of 8"
    assert weights["encode"] == 0, "and not at batches of 1"
    assert weights["preprocess"] == pytest.approx(0.0, abs=0.05 * narrow.y)


def test_stages_in_a_row_carry_less_than_the_least_of_them() -> None:
    assert together([10.0, math.inf, 1e6]) == pytest.approx(10.0)
    assert together([10.0, 10.0]) == pytest.approx(10.0 / 2**0.125)
    assert together([10.0, 11.0]) < together([10.0, 20.0]) < 10.0
    assert together([0.0, 5.0]) == pytest.approx(0.0, abs=1e-6)

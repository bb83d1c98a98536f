from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from has.core.deployment import Deployment
from has.core.figures import figures
from has.core.stage import Beside, Stage
from has.latency.lookup import LatencyModel
from has.search.calibrate import telemetry
from has.search.factors import FACTORS
from has.search.objective import Objective, Point, nearby_rate, tied
from has.search.predict import Predictor, physics_features, scaled
from has.search.problem import Problem, warmup_s
from has.search.space import Candidate
from has.sim.draw import draw_requests
from tests.search.small import make_profile, make_workload

CANDIDATES = [
    Candidate("disaggregated", (3, 3, 2), (1, 1, 1), 4, 500_000),
    Candidate("disaggregated", (4, 0, 4), (1, 1, 1), 2, 0),
    Candidate("e_pd", (2, 6), (1, 1), 4, 0),
    Candidate("monolithic", (8,), (1,), 0, 0),
]


@pytest.fixture(scope="module")
def problem() -> Problem:
    workload = make_workload()
    return Problem(
        gpus=8,
        profile=make_profile(),
        workload=workload,
        objective=Objective("goodput", (20.0,), workload.slo),
        requests=draw_requests(workload, rate=8.0, requests=400, seed=3),
        base_rate=8.0,
        settings={"model": "synthetic"},
        batches=(1, 2, 4),
    )


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda c: c.label)
def test_the_quick_figures_are_the_figures(problem: Problem, candidate: Candidate) -> None:
    predictor = Predictor(problem)
    records = predictor.records(problem.deployment(candidate), 20.0, problem.requests)
    quick = predictor.point(problem.deployment(candidate), 20.0, problem.requests)
    full = figures(records, problem.slo, warmup_s(records.requests))
    assert (quick.attainment, quick.goodput_rps) == (full["attainment"], full["goodput_rps"])
    assert quick.ttft_p99_ms == pytest.approx(full["ttft_ms"]["p99"], rel=1e-12)


def test_stretching_is_drawing_at_another_rate(problem: Problem) -> None:
    drawn = draw_requests(make_workload(), rate=20.0, requests=400, seed=3)
    stretched = problem.at_rate(20.0)
    gaps = [np.diff(r.arrival_ns) for r in (drawn, stretched)]
    assert np.max(np.abs(gaps[0] - gaps[1])) <= 2
    assert np.array_equal(drawn.total_tokens, stretched.total_tokens)


def test_scaled_latencies() -> None:
    latency = LatencyModel.from_profile(make_profile())
    factors = np.log([1.0, 1.2, 0.9, 1.1, 1.3])
    changed = scaled(latency, factors)
    for stage, factor in ((Stage.ENCODE, 1.2), (Stage.PREFILL, 0.9), (Stage.DECODE, 1.1)):
        assert changed.seconds(stage, 2, 500) == pytest.approx(factor * latency.seconds(stage, 2, 500))
    beside = changed.seconds(Stage.PREFILL, 1, 500, 50.0, Beside.ENCODE)
    assert beside == pytest.approx(0.9 * 1.3 * latency.seconds(Stage.PREFILL, 1, 500, 50.0))
    same = scaled(latency, np.zeros(5))
    assert not same.covers(Stage.PREFILL, Beside.ENCODE)
    assert same.seconds(Stage.ENCODE, 3, 700, 30.0) == latency.seconds(Stage.ENCODE, 3, 700, 30.0)


@pytest.mark.parametrize("offload", [500_000, 1_000_000])
def test_telemetry_finds_the_factors_that_were_put_in(problem: Problem, offload: int) -> None:
    """As well as it says; within 5 % where encoders do nothing but encode."""
    truth = np.log([1.0, 1.25, 0.8, 1.1, 1.0])
    measuring = Predictor(problem, scaled(problem.latency, truth))
    planning = Predictor(problem)
    deployment = problem.deployment(replace(CANDIDATES[0], offload=offload))
    measured, simulated = (p.figures(deployment, 15.0, problem.requests) for p in (measuring, planning))
    rows = telemetry(
        deployment, measured, simulated, planning.latency, problem.demand, np.zeros(len(FACTORS))
    )
    # Weighted least squares with the prior of a profile that is 25 % wrong, as the surrogate does it.
    design = np.array([r.row / r.sd for r in rows] + list(np.eye(len(FACTORS)) / 0.15))
    values = np.array([r.value / r.sd for r in rows] + [0.0] * len(FACTORS))
    found = np.linalg.lstsq(design, values, rcond=None)[0]
    sd = np.sqrt(np.diag(np.linalg.inv(design.T @ design)))
    for stage in ("encode", "prefill", "decode"):
        at = FACTORS.index(stage)
        assert found[at] == pytest.approx(truth[at], abs=min(2 * sd[at], 0.1)), stage
        if offload == 1_000_000:
            assert found[at] == pytest.approx(truth[at], abs=0.05), stage


def test_features_are_standardised_and_tell_topologies_apart(problem: Problem) -> None:
    table = np.array(list(physics_features(problem, CANDIDATES).values()))
    assert np.all(np.isfinite(table))
    assert len({tuple(row) for row in table.round(6)}) == len(CANDIDATES)


def test_nearby_rate_finds_the_edge_from_either_side() -> None:
    def run(rate: float) -> Point:
        return Point(rate, min(1.0, max(0.0, 1.9 - rate / 10)), rate, 1.0)  # .9 at a rate of 10

    for guess in (6.0, 9.9, 10.1, 14.0):
        assert nearby_rate(run, guess, 0.9) == pytest.approx(10.0, rel=0.003)
    assert nearby_rate(lambda r: Point(r, 0.0, r, 1.0), 10.0, 0.9) == 0.0


@pytest.mark.parametrize("guess", [6.0, 7.9, 9.0])
def test_nearby_rate_claims_no_more_than_a_scan_from_above_would(guess: float) -> None:
    """A short run carries for a while what no stage can: 18 % of such a lead once led a search astray."""
    asked: list[float] = []

    def run(rate: float) -> Point:
        asked.append(rate)
        return Point(rate, min(1.0, max(0.0, 1.9 - rate / 10)), rate, 1.0)  # .9 at a rate of 10

    assert nearby_rate(run, guess, 0.9, most=8.0) == 8.0
    assert max(asked) == 8.0
    assert nearby_rate(run, guess, 0.9, most=20.0) == pytest.approx(10.0, rel=0.003)


def test_ties_are_within_half_a_percent() -> None:
    assert tied([10.0, 9.96, 9.9, 10.0]) == [0, 1, 3]


def test_nearby_rate_of_what_carries_nothing_is_nothing() -> None:
    """Trials may show that no rate can be carried, after the first guess said that some could."""
    assert nearby_rate(lambda rate: pytest.fail(f"run at {rate}"), 5.0, 0.9, most=0.0) == 0.0


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda c: c.label)
def test_a_deployment_of_the_search_is_bounded_as_its_candidate(
    problem: Problem, candidate: Candidate
) -> None:
    predictor = Predictor(problem)
    limit = predictor.limit_of(problem.deployment(candidate))
    if candidate.topology == "disaggregated":
        assert limit == pytest.approx(predictor.limit(candidate), rel=1e-9)
    else:  # their iterations take fewer tokens than the search's one figure for all topologies says
        assert 0.9 * predictor.limit(candidate) < limit <= predictor.limit(candidate)


def test_a_users_deployment_is_bounded_by_its_own_settings(problem: Problem) -> None:
    """Not by those of the search: a bound that is too low would understate it, and overstate the gain over it."""
    predictor = Predictor(problem)
    narrow = Deployment.model_validate(
        {
            "version": 1,
            "model": "synthetic",
            "topology": "disaggregated",
            "gpus": 8,
            "alloc": {"encode": 4, "prefill": 3, "decode": 1},
            "encode_batch": 4,
            "prefill_offload": 0.5,
            "max_num_seqs": 2,
            "slo": {"ttft_ms": 2000.0, "tpot_ms": 40.0},
        }
    )
    wide = narrow.model_copy(update={"max_num_seqs": 16})
    assert predictor.limit_of(wide) > 2 * predictor.limit_of(narrow)
    more_cpus = [
        Predictor(replace(problem, profile=make_profile(preprocess_s=2.0))).limit_of(
            wide.model_copy(update={"preprocess_workers": n})
        )
        for n in (4, 8)
    ]
    assert more_cpus[1] == pytest.approx(2 * more_cpus[0])

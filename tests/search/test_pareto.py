"""Prices and what they weigh; the front of requests against GPUs and dollars."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.slo import Slo
from has.core.space import SearchSpace
from has.core.trial import Outcome, TrialPlan, TrialState
from has.core.workload import Workload
from has.errors import InputError
from has.files import facts
from has.latency.lookup import LatencyModel
from has.report.answer import cost_words
from has.search.objective import Objective
from has.search.pools import latency_of
from has.search.price import cost_of, pool_prices, price_of
from has.search.run import search
from has.search.simulated import ModelExecutor
from has.search.space import Candidate
from tests.search.small import make_profile

SPACE = SearchSpace.model_validate({"version": 1, "encode_batch": [1, 4], "prefill_offload": {"step": 0.5}})


def of_device(profile: Profile, device: str) -> Profile:
    return profile.model_copy(update={"metadata": profile.metadata.model_copy(update={"device": device})})


def two_types(profile: Profile) -> LatencyModel:
    return latency_of(of_device(profile, "H100 SXM"), {"encode": of_device(profile, "L4")})


def test_a_given_price_goes_before_a_fact_and_each_says_its_source() -> None:
    low, high = facts.gpu("H100 SXM")["price_usd_per_gpu_hour"]["range"]
    shipped = price_of("H100 SXM", None)
    assert shipped is not None
    assert shipped.usd_per_gpu_hour == pytest.approx((low + high) / 2)
    assert "shipped facts" in shipped.source
    assert f"{low:g} to {high:g} $/h" in shipped.source
    for given in (2.0, {"h100": 2.0}, {"H100 SXM": 2.0}):
        found = price_of("H100 SXM", given)
        assert found is not None
        assert (found.usd_per_gpu_hour, found.source) == (2.0, "given")


@pytest.mark.parametrize("device", ["L4", "synthetic", "cpu (emulated)"])
def test_an_unverified_or_unknown_price_is_none(device: str) -> None:
    assert price_of(device, None) is None


def test_gpus_alike_are_counted_until_a_price_is_given(profile: Profile) -> None:
    alike = LatencyModel.from_profile(of_device(profile, "H100 SXM"))
    assert pool_prices(alike, None) == {}
    assert set(pool_prices(alike, 2.0).values()) == {2.0}
    with pytest.raises(InputError, match="no pool has this GPU"):
        pool_prices(alike, {"B200": 6.0})


def test_gpus_of_two_types_are_weighed_by_their_prices(profile: Profile) -> None:
    both = two_types(profile)
    assert pool_prices(both, None) == {}  # no price of an L4 is shipped: GPUs are counted
    prices = pool_prices(both, {"L4": 0.5, "H100": 3.0})
    objective = Objective("cost", (1.0,), Slo(ttft_ms=1000, tpot_ms=50), prices=prices)
    assert objective.unit == "$/h"
    point = Candidate("disaggregated", (4, 1, 1), (1, 1, 1), 1, 500_000)
    assert objective.cost(point) == 4 * 0.5 + 2 * 3.0
    assert objective.shown(0.9, point) == objective.cost(point)


def test_dollars_per_million_output_tokens(profile: Profile) -> None:
    deployment = Deployment.model_validate(
        {
            "version": 1,
            "model": "synthetic",
            "topology": "disaggregated",
            "gpus": 4,
            "alloc": {"encode": 2, "prefill": 1, "decode": 1},
            "encode_batch": 1,
            "prefill_offload": 1.0,
            "slo": {"ttft_ms": 1000.0, "tpot_ms": 50.0},
        }
    )
    cost = cost_of(deployment, two_types(profile), {"L4": 0.5, "H100": 3.0}, 2.0, 100.0)
    assert cost["usd_per_hour"] == 2 * 0.5 + 2 * 3.0
    assert cost["usd_per_million_output_tokens"] == pytest.approx(7.0 / (2 * 100 * 3600) * 1e6)
    assert cost["prices"]["L4"] == {"usd_per_gpu_hour": 0.5, "source": "given"}
    unknown = cost_of(deployment, two_types(profile), None, 2.0, 100.0)
    assert unknown["usd_per_hour"] is None
    assert unknown["usd_per_million_output_tokens"] is None
    assert cost_of(deployment, two_types(profile), 1.0, 0.0, 100.0)["usd_per_million_output_tokens"] is None


def test_the_front_is_written_and_nothing_on_it_is_beaten(
    profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    outcome = search(
        4, profile, workload, space=SPACE, requests=100, trials=4, seed=1, price=2.0, run_dir=tmp_path / "run"
    )
    with (tmp_path / "run" / "pareto.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["deployment"] for row in rows] == [row["deployment"] for row in outcome.pareto]
    assert {row["gpus"] for row in outcome.pareto} == {1, 2, 3, 4}
    front = [row for row in outcome.pareto if row["on_front"]]
    assert len(front) >= 3
    for row in front:
        assert row["usd_per_hour"] == 2.0 * row["gpus"]
        for other in outcome.pareto:
            assert not (other["gpus"] < row["gpus"] and other["carried_rps"] >= row["carried_rps"])
    assert outcome.as_json()["cost"]["usd_per_hour"] == 2.0 * outcome.best.gpus
    best = max(outcome.pareto, key=lambda row: row["carried_rps"])
    assert best["carried_rps"] == pytest.approx(outcome.objective, rel=0.05)


def test_the_cheapest_is_not_the_fewest_where_types_differ(workload: Workload) -> None:
    """Encode GPUs at a sixth of the price, a third slower: two of them stand in for one of the others."""
    usual = make_profile()
    slower = of_device(make_profile(factors={"encode": 1.3, "prefill": 1.6}), "L4")
    asked = {"space": SPACE, "rate": 5.0, "objective": "cost", "requests": 100, "trials": 6, "seed": 1}
    cheap = search(
        4, usual, workload, pool_profiles={"encode": slower}, price={"L4": 0.5, "synthetic": 3.0}, **asked
    )
    assert cheap.unit == "$/h"
    assert cheap.best.hardware == {"encode": "L4", "prefill": "synthetic", "decode": "synthetic"}
    assert cheap.objective == pytest.approx(
        0.5 * cheap.best.alloc["encode"] + 3.0 * (cheap.best.gpus - cheap.best.alloc["encode"])
    )
    assert cheap.confidence["probability"] > 0.5
    for row in cheap.pareto:
        if row["attainment"] >= 0.9 and row["source"] == "measured":
            assert row["usd_per_hour"] >= cheap.objective - 1e-9


def test_the_answer_says_what_it_costs_and_whose_prices_those_are() -> None:
    cost = {
        "usd_per_hour": 7.0,
        "usd_per_million_output_tokens": 9.72,
        "prices": {"L4": {"usd_per_gpu_hour": 0.5, "source": "given"}, "X": None},
    }
    assert cost_words(cost) == "costs 7 $/h, 9.72 $ per million output tokens within the SLO (L4 at 0.5 $/h)"
    assert cost_words({"usd_per_hour": None, "prices": {}}) == ""
    assert cost_words({}) == ""


class CutShort:
    """A live executor that ends every monolithic trial early."""

    parallel, live = 1, True

    def __init__(self, profile: Profile) -> None:
        self._inner = ModelExecutor(profile)

    def run(self, plan: TrialPlan) -> Outcome:
        outcome = self._inner.run(plan)
        short = plan.deployment.topology == "monolithic"
        return replace(outcome, state=TrialState.STOPPED, reason="its queue grew") if short else outcome

    def close(self) -> None: ...


@pytest.mark.parametrize("rate", [None, 5.0])
def test_what_a_cut_short_trial_did_not_measure_is_predicted(
    profile: Profile, workload: Workload, rate: float | None
) -> None:
    executor = CutShort(profile)
    outcome = search(
        4, profile, workload, space=SPACE, rate=rate, requests=100, trials=6, seed=1, executor=executor
    )
    baseline = outcome.baselines["monolithic"]
    assert baseline.objective_source == "predicted"
    (row,) = [row for row in outcome.pareto if row["deployment"] == "4M"]
    assert (row["source"], row["carried_rps"]) == ("predicted", baseline.objective)

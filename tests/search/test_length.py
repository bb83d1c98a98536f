"""What is asked at a given rate is judged on traffic that lasts, also where a trial of a thousand would be over at once."""

from __future__ import annotations

from typing import Any

import pytest

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.space import SearchSpace
from has.core.workload import Workload
from has.errors import InfeasibleError, InputError
from has.search.length import FEWEST, MOST, TRIAL_SPAN, requests_lasting
from has.search.objective import Objective, Point, Score
from has.search.outcome import Outcome
from has.search.run import search
from has.search.screen import DOUBT, held
from has.search.space import Candidate, enumerate_budgets
from has.sim.run import simulate
from tests.search.small import make_profile, make_workload

QUICK = {"encode": 0.02, "prefill": 0.02, "decode": 0.05}
"""A device so fast that what carries a third too little is still within its TTFT bound after 1,000 requests."""
SPACE = SearchSpace.model_validate({"version": 1, "encode_batch": [1, 4], "prefill_offload": {"step": 0.5}})


def attained(outcome: Outcome, profile: Profile, workload: Workload, rate: float) -> float:
    return float(simulate(outcome.best, profile, workload, rate=rate, requests=30_000, seed=9)["attainment"])


def at(rate: float, **asked: Any) -> Outcome:
    fixed: dict[str, Any] = {
        "space": SPACE,
        "settings": {"max_num_seqs": 64},
    }  # as far as the profile reaches
    return search(profile=make_profile(factors=QUICK), workload=make_workload(), rate=rate, **fixed, **asked)


@pytest.mark.parametrize("prune", [True, False])
@pytest.mark.parametrize("gpus", [5, 8])
def test_the_cheapest_carries_its_rate_for_as_long_as_one_likes(gpus: int, prune: bool) -> None:
    profile, workload = make_profile(factors=QUICK), make_workload()
    outcome = at(700.0, gpus=gpus, objective="cost", prune=prune, trials=6)
    assert attained(outcome, profile, workload, 700.0) >= 0.9 - 0.02
    fewer = int(outcome.best.gpus) - 1
    with pytest.raises(InfeasibleError, match="nothing meets the SLO"):
        at(700.0, gpus=fewer, objective="goodput", trials=6)


def test_more_than_can_be_carried_is_no_answer() -> None:
    carried = search(4, make_profile(factors=QUICK), make_workload(), space=SPACE, trials=4).objective
    with pytest.raises(InfeasibleError, match="nothing meets the SLO") as caught:
        at(1.1 * carried, gpus=4, trials=4)
    assert caught.value.least_bad is not None
    assert at(0.9 * carried, gpus=4, trials=4).feasible


def test_a_trial_that_was_asked_to_be_short_does_not_hide_that_nothing_lasts() -> None:
    with pytest.raises(InfeasibleError, match="once traffic lasts"):
        at(700.0, gpus=3, trials=4, requests=300)


def test_a_baseline_that_misses_the_slo_is_not_cheap() -> None:
    workload = make_workload()
    cheap = {"version": 1, "model": "synthetic", "topology": "monolithic", "gpus": 1, "alloc": {"all": 1}}
    own = Deployment.model_validate(cheap | {"slo": workload.slo})
    outcome = at(700.0, gpus=6, objective="cost", trials=6, baselines={"mine": own})
    mine = outcome.baselines["mine"]
    assert mine.objective is None
    assert mine.reason is not None
    assert "of requests meet the SLO, 90 % should" in mine.reason
    for baseline in outcome.baselines.values():
        assert baseline.objective is None or (baseline.figures or {})["attainment"] >= 0.9


def test_output_tokens_cost_the_same_in_whatever_order_workloads_come() -> None:
    few = make_workload()
    entry = few.requests[0].model_dump(exclude_none=True) | {"output_tokens": 200}
    many = make_workload(requests=[entry], name="many")
    costs = []
    for workloads in ((few, many), (many, few)):
        outcome = search(
            4, make_profile(), workloads, space=SPACE, rate=4.0, trials=3, price=2.0, requests=2000
        )
        costs.append(outcome.as_json()["cost"]["usd_per_million_output_tokens"])
    assert costs[0] == pytest.approx(costs[1], rel=0.05)


@pytest.mark.parametrize("rates", [(6.0,), (2.0, 6.0)])
def test_what_is_carried_and_costs_is_told_at_the_highest_rate(rates: tuple[float, ...]) -> None:
    outcome = search(4, make_profile(), make_workload(), space=SPACE, rate=rates, trials=4, price=2.0)
    within = float(outcome.figures["attainment"] or 0.0) * 6.0
    tokens = 3600 * within * 2000 / 2000
    cost = outcome.as_json()["cost"]
    mean = cost["usd_per_hour"] / cost["usd_per_million_output_tokens"] * 1e6 / tokens
    assert 40 < mean < 60  # the mean output of the workload, whichever rate decided
    answer = next(row for row in outcome.pareto if row["deployment"] == outcome.best.label)
    assert answer["carried_rps"] == pytest.approx(within)
    for row in outcome.pareto:
        assert row["carried_rps"] <= 6.0 + 1e-9


def test_a_price_for_some_gpus_is_no_price_of_all(workload: Workload) -> None:
    unknown = make_profile()
    other = unknown.model_copy(
        update={"metadata": unknown.metadata.model_copy(update={"device": "something new"})}
    )
    asked: dict[str, Any] = {"rate": 4.0, "objective": "cost", "trials": 2, "requests": 100, "space": SPACE}
    with pytest.raises(InputError, match="something new") as caught:
        search(4, unknown, workload, pool_profiles={"encode": other}, price={"synthetic": 3.0}, **asked)
    assert caught.value.field == "price"
    assert "something new=" in str(caught.value.mend)


def test_lists_last_between_the_fewest_and_the_most() -> None:
    assert requests_lasting(TRIAL_SPAN, 2.0, 100.0) == TRIAL_SPAN * 2 * 100
    assert requests_lasting(TRIAL_SPAN, 2.0, 1.0) == FEWEST
    assert requests_lasting(TRIAL_SPAN, 2.0, 1e6) == MOST


class Stated:
    """A predictor that knows what each candidate attains in the long run."""

    def __init__(self, objective: Objective, lasting: dict[Candidate, float]) -> None:
        self.problem = type("Problem", (), {"objective": objective})
        self.lasting = lasting
        self.asked: list[Candidate] = []

    def score(self, candidate: Candidate, requests: object) -> Score:
        self.asked.append(candidate)
        return scored(self.lasting[candidate])


def scored(attainment: float) -> Score:
    return Score(attainment, Point(1.0, attainment, attainment, 0.0), attainment >= 0.9)


def test_whoever_comes_first_was_judged_on_lasting_traffic() -> None:
    slo = make_workload().slo
    assert slo is not None
    objective = Objective("cost", (1.0,), slo)
    listed = sorted(enumerate_budgets(SPACE, range(2, 5)), key=objective.cost)
    looked = {c: scored(0.95) for c in listed}
    unlucky = listed[2]
    looked[unlucky] = scored(0.9 - DOUBT / 2)
    lasting = dict.fromkeys(listed, 0.5) | {unlucky: 0.92, listed[-1]: 1.0}
    predictor = Stated(objective, lasting)
    found = held(predictor, looked, None, 1)  # type: ignore[arg-type]  # what it needs of a predictor
    assert found[unlucky].feasible  # cheap, and its first look was out of luck
    assert found[listed[0]].value == 0.5
    assert len(predictor.asked) < len(listed)
    none = held(Stated(objective, dict.fromkeys(listed, 0.5)), looked, None, 1)  # type: ignore[arg-type]
    assert not any(score.feasible for score in none.values())

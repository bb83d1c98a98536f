"""The rate that is written lasts, however short the trials were."""

from __future__ import annotations

from typing import Any

import pytest

from has.core.space import SearchSpace
from has.latency.lookup import LatencyModel
from has.search.length import COARSE_SPAN
from has.search.problem import WARM_UP
from has.search.run import search
from has.search.simulated import ModelExecutor
from has.sim.run import simulate
from tests.search.small import make_profile, make_workload

QUICK = {"encode": 0.02, "prefill": 0.02, "decode": 0.01}
"""A device so fast that a trial of 1,000 requests is over in less than the TTFT bound."""


def test_a_high_rate_is_held_to_traffic_that_lasts() -> None:
    profile, workload = make_profile(factors=QUICK), make_workload()
    space = SearchSpace.model_validate({"version": 1, "encode_batch": [1], "prefill_offload": {"step": 0.5}})
    outcome = search(gpus=4, profile=profile, workload=workload, space=space, trials=4, seed=0)
    assert outcome.best.rate is not None
    assert outcome.best.rate > 300  # or this test shows nothing
    lasting = simulate(outcome.best, profile, workload, rate=outcome.best.rate, requests=20_000, seed=9)
    assert lasting["attainment"] > outcome.best.slo.attainment - 0.03
    for baseline in outcome.baselines.values():
        assert baseline.objective is not None
        assert baseline.objective <= outcome.objective * 1.02


def test_confirmations_of_a_high_rate_last() -> None:
    """3,000 requests at 6,800 a second are over in .4 s, and meet a TTFT of 2 s whatever is offered."""
    profile, workload = make_profile(factors=QUICK), make_workload()
    space = SearchSpace.model_validate({"version": 1, "encode_batch": [1], "prefill_offload": {"step": 0.5}})
    outcome = search(gpus=8, profile=profile, workload=workload, space=space, trials=4, seed=0)
    evidence = outcome.best.evidence or {}
    assert len(evidence["confirmations"]) >= 3
    for told in evidence["confirmations"]:
        lasts_s = told["requests"] / (1 - WARM_UP) / told["rate"]
        assert lasts_s > 0.95 * COARSE_SPAN * outcome.best.slo.ttft_s


def test_trials_that_are_faster_than_the_profile_are_not_held_to_its_bounds() -> None:
    """Of stages that take half as long a profile's capacities say half of what is carried."""
    planned, true = make_profile(), make_profile(factors=dict.fromkeys(("encode", "prefill", "decode"), 0.5))
    space = SearchSpace.model_validate({"version": 1, "encode_batch": [1], "prefill_offload": {"step": 0.5}})
    asked: dict[str, Any] = {"gpus": 3, "workload": make_workload(), "space": space, "seed": 0}
    shown = {t.deployment.label: t.objective for t in search(profile=true, **asked, trials=6).trials}
    executor = ModelExecutor(LatencyModel.from_profile(true))
    found = search(profile=planned, **asked, executor=executor, trials=6)
    same = {t.deployment.label: t.objective for t in found.trials if t.deployment.label in shown}
    assert len(same) > 3
    assert same == pytest.approx({label: shown[label] for label in same}, rel=0.02)

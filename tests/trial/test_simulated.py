"""Simulated trials: a truth of one's own, noise that repeats by seed."""

from __future__ import annotations

import numpy as np
import pytest

from has.core.deployment import Deployment
from has.core.figures import figures
from has.core.profile import Profile
from has.core.requests import Requests
from has.core.slo import Slo
from has.core.trial import TrialPlan, TrialState
from has.errors import InputError
from has.sim.simulator import Simulator
from has.trial.simulated import SimulatedExecutor

SLO = Slo(ttft_ms=900, tpot_ms=20)
PLAN = Deployment.model_validate(
    {
        "version": 1,
        "model": "m",
        "topology": "e_pd",
        "gpus": 3,
        "alloc": {"encode": 1, "prefill_decode": 2},
        "encode_batch": 2,
        "slo": {"ttft_ms": 900, "tpot_ms": 20},
    }
)


def profile(encode_s: float) -> Profile:
    stages = {"encode": encode_s, "prefill": 0.1, "decode": 0.01}
    return Profile.model_validate(
        {
            "metadata": {"version": 1, "device": "hand", "model": "m", "source": "measured"},
            "rows": [
                {"stage": s, "sm_percent": 100, "batch": 1, "tokens": 1, "latency_s": v}
                for s, v in stages.items()
            ],
        }
    )


def trial_plan(rate: float = 4.0) -> TrialPlan:
    rng = np.random.default_rng(2)
    requests = Requests.from_rows(
        {
            "arrival_s": float(a),
            "modality": "image",
            "media_tokens": 64,
            "prompt_tokens": 10,
            "output_tokens": 8,
        }
        for a in np.cumsum(rng.exponential(1 / rate, 80))
    )
    return TrialPlan(PLAN, requests, rate, SLO, warmup_s=1.0)


def test_without_noise_it_is_the_simulator() -> None:
    plan = trial_plan()
    outcome = SimulatedExecutor(profile(0.2)).run(plan)
    simulator = Simulator(profile(0.2))
    records = simulator.run(PLAN, simulator.prepare(plan.requests, plan.seed), rate=plan.rate)
    assert outcome.state == TrialState.COMPLETE
    assert outcome.figures == figures(records, SLO, 1.0)


def test_a_plan_whose_warm_up_leaves_no_request_is_refused() -> None:
    plan = trial_plan()
    with pytest.raises(InputError, match="leaves no request to count"):
        TrialPlan(PLAN, plan.requests, plan.rate, SLO, warmup_s=plan.requests.span_s + 1)


def test_the_truth_is_the_profile_it_was_given() -> None:
    slow = SimulatedExecutor(profile(0.6)).run(trial_plan()).figures
    fast = SimulatedExecutor(profile(0.2)).run(trial_plan()).figures
    assert slow["attainment"] < fast["attainment"]


def test_noise_repeats_by_seed_and_differs_by_trial() -> None:
    def three(seed: int) -> list[float]:
        executor = SimulatedExecutor(profile(0.2), noise=0.04, seed=seed)
        return [executor.run(trial_plan()).figures["goodput_rps"] for _ in range(3)]

    assert three(1) == three(1)
    assert three(1) != three(2)
    assert len(set(three(1))) == 3


def test_noise_has_the_spread_it_was_asked_for() -> None:
    executor = SimulatedExecutor(profile(0.2), noise=0.05, seed=3)
    factors = [executor.run(trial_plan()).telemetry["noise"] for _ in range(300)]
    assert np.std(np.log(factors)) == pytest.approx(0.05, rel=0.15)
    shown = executor.run(trial_plan()).figures
    assert 0 <= shown["attainment"] <= 1


@pytest.mark.parametrize("noise", [-0.1, 1.5, float("nan")])
def test_what_is_no_standard_deviation(noise: float) -> None:
    with pytest.raises(InputError, match="noise"):
        SimulatedExecutor(profile(0.2), noise=noise)

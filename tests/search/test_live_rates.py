"""Largest rates from short trials at one offered rate: the model says them, so it must not run away."""

from __future__ import annotations

from functools import partial

import pytest

from has.search.run import search
from has.search.simulated import ModelExecutor
from has.sim.run import simulate
from tests.search.small import make_profile, make_workload

measured = partial(make_profile, preprocess_s=0.0005)
WORKLOAD = make_workload()


class Live(ModelExecutor):
    """Preprocessing takes more than twice what the profile says, which is next to nothing; the rest fits."""

    live = True

    def __init__(self, preprocess: float) -> None:
        super().__init__(measured(factors={"preprocess": preprocess}))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_stage_of_no_weight_moves_no_rate(seed: int) -> None:
    """Its factor is far from 1, and slopes against it are noise: once 5 req/s became 7, and 10 became 25."""
    outcome = search(
        6,
        measured(),
        WORKLOAD,
        executor=Live(2.2),
        requests=80,
        trials=8,
        seed=seed,
        objective="max-rate",
        settings={"max_prefill_requests": 16, "max_num_seqs": 48},
    )
    told = [t for t in outcome.trials if t.objective]
    assert len(told) >= 4
    for trial in told:
        attainment = {
            share: simulate(
                trial.deployment, measured(), WORKLOAD, rate=share * trial.objective, requests=1500, seed=7
            )["attainment"]
            for share in (0.8, 1.25)
        }
        assert attainment[0.8] > 0.85, (trial.deployment.label, trial.objective, attainment)
        assert attainment[1.25] < 0.95, (trial.deployment.label, trial.objective, attainment)

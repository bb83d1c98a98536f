"""A run simulated with another's draws of dispatch is that run, but for what sets them apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fidelity_dispatch import as_dispatched
from has.core.deployment import Deployment
from has.core.workload import Workload
from has.files.profile import load_profile
from has.files.yaml import load_yaml
from has.sim.draw import draw_requests
from has.sim.simulator import Simulator

ROOT = Path(__file__).parents[2]
SET = load_yaml(ROOT / "benchmarks" / "fidelity.yaml")
DRAWN = ["half", "both_ways", "e_pd", "monolithic"]


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    return Simulator(load_profile(ROOT / "profiles" / "cpu-tiny-image.parquet"))


def deployment(name: str) -> Deployment:
    fields = SET["deployments"][name]
    common = {"version": 1, "model": SET["model"], "slo": SET["slo"], "gpus": sum(fields["alloc"].values())}
    return Deployment.model_validate({**common, **fields})


@pytest.mark.parametrize("name", DRAWN)
def test_the_draws_of_another_seed_give_its_run(simulator: Simulator, name: str) -> None:
    requests = draw_requests(Workload.model_validate(SET["workload"]), rate=8.0, requests=150, seed=1)
    other = simulator.run(deployment(name), simulator.prepare(requests, seed=2), rate=8.0)
    own = simulator.run(deployment(name), simulator.prepare(requests, seed=3), rate=8.0)
    found = as_dispatched(simulator, deployment(name), simulator.prepare(requests, seed=3), other, 8.0)
    assert found is not None
    assert np.array_equal(found.finish_ns, other.finish_ns)
    assert not np.array_equal(own.finish_ns, other.finish_ns)


@pytest.mark.parametrize("name", DRAWN)
def test_requests_that_came_a_millisecond_apart_keep_their_workers(simulator: Simulator, name: str) -> None:
    """Life is early or late by a millisecond: with its draws in its order, the rest agrees."""
    requests = draw_requests(Workload.model_validate(SET["workload"]), rate=8.0, requests=150, seed=4)
    late = np.random.default_rng(5).integers(0, 2_000_000, len(requests))
    life = replace(requests, arrival_ns=np.sort(requests.arrival_ns + late))
    live = simulator.run(deployment(name), simulator.prepare(life, seed=6), rate=8.0)
    found = as_dispatched(simulator, deployment(name), simulator.prepare(requests, seed=6), live, 8.0)
    assert found is not None
    ttft, lived = (r.first_token_ns - r.requests.arrival_ns for r in (found, live))
    assert ttft.mean() == pytest.approx(lived.mean(), rel=0.02)

"""The compiled kernel against its slow twin, on random small cases of every topology and option."""

from __future__ import annotations

import pytest

from tests.sim.agreement import differences
from tests.sim.random_cases import LONG, TOPOLOGIES, case

CASES = 420


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_kernel_and_twin_agree(topology):
    for seed in range(CASES):
        deployment, profile, rows, draws = case(3 * seed, topology)
        found = differences(deployment, profile, rows, draws)
        assert not found, (topology, seed, found[:5])


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_runs_of_steps_in_closed_form_are_the_steps(topology):
    """Outputs of hundreds of tokens, over all segments of the profile and far beyond them."""
    for seed in range(14):
        deployment, profile, rows, draws = case(3 * seed + 1, topology, LONG)
        found = differences(deployment, profile, rows, draws)
        assert not found, (topology, seed, found[:5])


@pytest.mark.parametrize("topology", ["disaggregated", "e_pd"])
def test_pools_of_different_gpus(topology):
    """Every pool its own profile: local prefill runs at the encode GPUs' latencies, KV is the decoding pool's."""
    for seed in range(40):
        deployment, profile, rows, draws = case(3 * seed, topology)
        pools = {
            name: case(3 * (100 * i + seed), topology)[1] for i, name in enumerate(deployment["alloc"], 1)
        }
        found = differences(deployment, profile, rows, draws, pools)
        assert not found, (topology, seed, found[:5])


@pytest.mark.long
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_kernel_and_twin_agree_on_many_more(topology):
    for seed in range(CASES, 20_000):
        deployment, profile, rows, draws = case(3 * seed, topology)
        found = differences(deployment, profile, rows, draws)
        assert not found, (topology, seed, found[:5])

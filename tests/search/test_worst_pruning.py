"""Pruning with several workloads, and with pools of different GPUs, keeps what is best in truth."""

from __future__ import annotations

import numpy as np
import pytest

from has.search.prune import prune
from tests.search.instances import STAGES, Instance, random_instance
from tests.search.small import make_profile, make_workload


def random_pair(seed: int) -> Instance:
    """A random instance, a second workload beside it, and in every other one encode GPUs of their own."""
    instance = random_instance(seed, requests=200)
    draw = np.random.default_rng(1000 + seed)
    slo = instance.truth.slo.model_dump()
    entry = {
        "modality": "image",
        "media_tokens": int(draw.integers(50, 1800)),
        "prompt_tokens": int(draw.integers(10, 300)),
        "output_tokens": int(draw.integers(2, 200)),
    }
    other = make_workload(name="other", slo=slo, requests=[entry])
    wrong = {stage: 1 + draw.uniform(-0.25, 0.25) for stage in STAGES}
    for problem, factors in ((instance.planned, wrong), (instance.truth, None)):
        problem.further = (other,)
        if seed % 2:
            own = make_profile(encode_s=0.1, prefill_s=0.2, decode_s=0.02, factors=factors, error=0.25)
            problem.pool_profiles = {"encode": own}
    return instance


TIGHT = pytest.mark.xfail(
    reason="where one workload's TTFT leaves hardly room to queue, bounds on throughput rank wrongly: seed 29 keeps 42 %"
)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 80), marks=[pytest.mark.long, TIGHT])])
def test_a_point_within_one_percent_of_the_worst_case_optimum_survives(seeds: range) -> None:
    lost = {}
    for seed in seeds:
        instance = random_pair(seed)
        truth = {c: score.value for c, score in instance.exhaustive().items()}
        kept = prune(instance.planned, instance.candidates, instance.offered).kept
        best, left = max(truth.values()), max(truth[c] for c in kept)
        if left < 0.99 * best:
            lost[seed] = left / best
    assert not lost

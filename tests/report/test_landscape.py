"""Which splits the landscape of a finished run looks at, and how long it may take."""

from __future__ import annotations

import numpy as np
import pytest

from has.core.slo import Slo
from has.core.space import SearchSpace
from has.files.profile import load_profile
from has.files.shipped import shipped
from has.files.workload import load_workload
from has.report import landscape as module
from has.report import pictures
from has.report.landscape import landscape
from has.search.lattice import lattice, of_allocation
from has.search.objective import Objective
from has.search.predict import Predictor
from has.search.problem import Problem
from has.search.space import Candidate, enumerate_space
from has.sim.draw import draw_requests

SPACE = SearchSpace(version=1)


class Counting(Predictor):
    """Knows how many candidates were bounded, and how many requests were simulated."""

    bounded = simulated = 0

    def limit(self, candidate: Candidate) -> float:
        self.bounded += 1
        return super().limit(candidate)

    def point(self, deployment, rate, requests):
        self.simulated += len(requests)
        return super().point(deployment, rate, requests)

    def absorb(self, twin):
        self.simulated += twin.simulated
        super().absorb(twin)


def counting(gpus: int, rate: float) -> Counting:
    workload = load_workload(shipped("workloads") / "image.yaml")
    profile = load_profile("h100-qwen2.5-vl-7b")
    requests = draw_requests(workload, rate=rate, requests=4000, seed=0, model=profile.metadata.model)
    slo = workload.slo
    assert isinstance(slo, Slo)
    return Counting(
        Problem(
            gpus=gpus,
            profile=profile,
            workload=workload,
            objective=Objective("max-rate", (), slo),
            requests=requests,
            base_rate=rate,
            settings={"model": profile.metadata.model},
            batches=SPACE.encode_batch,
        )
    )


def test_a_small_space_is_looked_at_whole() -> None:
    splits = {c for c in enumerate_space(SPACE, 5) if c.topology == "disaggregated"}
    assert set(module._points(SPACE, 5, [])) == splits
    predictor = counting(5, 100.0)
    answer = next(c for c in splits if c.gpus == (1, 1, 3))
    found = landscape(predictor, SPACE, 100.0, predictor.problem.requests, answer=answer, tried=[])
    assert found is not None
    assert found.answer == "1E1P3D"
    best = max(splits, key=predictor.limit)
    assert max(float(np.nanmax(t)) for t in found.values.values()) >= 0.9 * min(100.0, predictor.limit(best))


def test_batches_beyond_the_profile_have_no_values_and_are_named() -> None:
    """A warning of numpy's on stderr says nothing to who asked for a page; here it would be an error."""
    space = SPACE.model_copy(update={"encode_batch": (1, 4096)})
    predictor = counting(5, 100.0)
    assert predictor.problem.beyond_reach(4096)
    answer = Candidate("disaggregated", (1, 1, 3), (1, 1, 1), 1, 1_000_000)
    found = landscape(
        predictor, space, 100.0, predictor.problem.requests[:800], answer=answer, tried=[answer]
    )
    assert found is not None
    assert set(found.values) == {1}
    assert found.beyond == (4096,)
    best = np.nanmax(found.values[1], axis=1)
    assert (np.diff(best) <= 0).all()
    drawn = pictures.landscape(found, predictor.problem.deployment(answer))
    assert [picture.caption.partition(":")[0] for picture in drawn.pictures] == ["B = 1"]
    assert "Beyond the profile's reach: B = 4096." in drawn.words


@pytest.mark.parametrize("gpus", [5, 96])
def test_splits_that_the_space_does_not_allow_are_not_drawn(gpus: int) -> None:
    """A baseline of the search is one that was tried, and no point of the space."""
    space = SPACE.model_copy(update={"topologies": ("e_pd", "monolithic")})
    predictor = counting(gpus, 100.0)
    answer = Candidate("e_pd", (2, gpus - 2), (1, 1), 2, 0)
    tried = Candidate("disaggregated", (1, 1, gpus - 2), (1, 1, 1), 1, 1_000_000)
    requests = predictor.problem.requests
    assert landscape(predictor, space, 100.0, requests, answer=answer, tried=[tried]) is None


@pytest.mark.parametrize("gpus", [96, 1024])
def test_a_large_space_costs_no_more_than_its_coarse_lattice(gpus: int) -> None:
    """On 1,024 GPUs there are 40 million candidates, of which the page was to bound each: minutes, and 8 GiB."""
    predictor = counting(gpus, 20.0 * gpus)
    answer = Candidate(
        "disaggregated", (gpus // 3 + 1, gpus // 3 + 2, gpus - 2 * (gpus // 3) - 3), (1, 1, 1), 2, 500_000
    )
    tried = Candidate("disaggregated", (gpus // 2 + 1, 0, gpus - gpus // 2 - 1), (1, 1, 1), 1, 0)
    own = SPACE.model_copy(update={"topologies": ("disaggregated",)})
    coarse = len(list(lattice(own, gpus, gpus // 12)))
    splits = [list(of_allocation(own, c.allocation)) for c in (answer, tried)]
    requests = predictor.problem.requests
    found = landscape(predictor, SPACE, 20.0 * gpus, requests, answer=answer, tried=[tried])
    assert found is not None
    assert predictor.bounded <= coarse + sum(map(len, splits)) < 20_000
    most = max(map(len, splits)) * len(requests)
    assert predictor.simulated <= max(module.WORK, module.ROWS[0] * most)
    assert module.ROWS[0] <= len(found.allocations) <= module.ROWS[1]
    assert found.answer in found.allocations
    row = found.allocations.index(found.answer)
    assert not np.isnan(found.values[2][row, found.shares.index(0.5)])

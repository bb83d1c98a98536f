"""Random small planning problems whose truth is known by exhaustive simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from has.core.space import SearchSpace
from has.search.objective import Objective
from has.search.predict import Predictor
from has.search.problem import Problem
from has.search.screen import Scores
from has.search.space import Candidate, enumerate_space
from has.sim.draw import draw_requests
from tests.search.small import make_profile, make_workload

SPACE = SearchSpace(version=1, encode_batch=[1, 2, 4, 8], prefill_offload={"step": 0.25})
STAGES = ("encode", "prefill", "decode")


@dataclass
class Instance:
    """`planned` is what the planner believes, its latencies wrong by up to `error`; `truth` what is."""

    planned: Problem
    truth: Problem
    candidates: list[Candidate]
    offered: float | None

    def exhaustive(self) -> Scores:
        predictor = Predictor(self.truth)
        return {c: predictor.score(c, self.truth.requests, grid=0.05, refined=0.01) for c in self.candidates}


def random_instance(seed: int, *, error: float = 0.25, requests: int = 300) -> Instance:
    rng = np.random.default_rng(seed)
    shape: dict[str, Any] = {
        "encode_s": float(np.exp(rng.uniform(np.log(0.02), np.log(0.4)))),
        "prefill_s": float(np.exp(rng.uniform(np.log(0.03), np.log(0.3)))),
        "decode_s": float(np.exp(rng.uniform(np.log(0.005), np.log(0.03)))),
        "interference": float(rng.choice([0.0, 0.15])),
    }
    wrong = {stage: 1 + rng.uniform(-error, error) for stage in STAGES}
    gpus = int(rng.integers(3, 6))
    slo = {
        "ttft_ms": 1e3 * (shape["encode_s"] + shape["prefill_s"]) * float(rng.uniform(3, 15)),
        "tpot_ms": 1e3 * shape["decode_s"] * float(rng.uniform(1.6, 4)),
    }
    workload = make_workload(slo=slo)
    drawn = draw_requests(workload, rate=8.0, requests=requests, seed=seed)
    kinds = ("max-rate", "goodput")
    kind = kinds[int(rng.integers(2))]

    def problem(factors: dict[str, float], rates: tuple[float, ...]) -> Problem:
        assert workload.slo is not None
        return Problem(
            gpus=gpus,
            profile=make_profile(**shape, factors=factors, error=error),
            workload=workload,
            objective=Objective(kind, rates, workload.slo),  # type: ignore[arg-type]  # one of two literals
            requests=drawn,
            base_rate=8.0,
            seed=seed,
            settings={"model": "synthetic", "sm_table": TABLE},
            batches=SPACE.encode_batch,
        )

    candidates = enumerate_space(SPACE, gpus)
    rates: tuple[float, ...] = ()
    if kind == "goodput":
        # From a third of what the best can carry to well over it.
        limits = Predictor(problem({}, (1.0,)))
        rates = (float(rng.uniform(0.3, 1.2)) * max(limits.limit(c) for c in candidates),)
    truth, planned = problem({}, rates), problem(wrong, rates)
    return Instance(planned, truth, candidates, rates[0] if rates else None)


TABLE = tuple({"batch": b, "encode_sm": share} for b, share in ((1, 50.0), (2, 75.0), (4, 75.0), (8, 75.0)))
"""The same deployments in plan and truth, whatever a table derived from either would say."""

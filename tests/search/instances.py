"""Random small planning problems whose truth is known by exhaustive simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from has.core.space import SearchSpace
from has.core.workload import Workload
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


KINDS = ("plain", "tight", "rates", "mixed", "pair", "mixed pair")
"""plain: TTFT leaves room to queue. tight: hardly any. rates: goodput at two or three rates. mixed: the encode
pool has GPUs of its own, whose profile is wrong in its own way. pair: a second workload, of which
the worse one counts, and whose requests may be much larger under the same SLO."""


def random_instance(
    seed: int, kind: str = "plain", *, error: float = 0.25, requests: int = 300, gpus: int | None = None
) -> Instance:
    """`gpus`: 3 to 5 unless said."""
    rng = np.random.default_rng(seed)
    shape: dict[str, Any] = {
        "encode_s": float(np.exp(rng.uniform(np.log(0.02), np.log(0.4)))),
        "prefill_s": float(np.exp(rng.uniform(np.log(0.03), np.log(0.3)))),
        "decode_s": float(np.exp(rng.uniform(np.log(0.005), np.log(0.03)))),
        "interference": float(rng.choice([0.0, 0.15])),
    }
    wrong = {stage: 1 + rng.uniform(-error, error) for stage in STAGES}
    drawn_gpus = int(rng.integers(3, 6))
    gpus = drawn_gpus if gpus is None else gpus
    room = (1.1, 2.5) if kind == "tight" else (3, 15)
    slo = {
        "ttft_ms": 1e3 * (shape["encode_s"] + shape["prefill_s"]) * float(rng.uniform(*room)),
        "tpot_ms": 1e3 * shape["decode_s"] * float(rng.uniform(1.6, 4)),
    }
    workload = make_workload(slo=slo)
    drawn = draw_requests(workload, rate=8.0, requests=requests, seed=seed)
    objective = ("max-rate", "goodput")[int(rng.integers(2))]
    if kind == "rates":
        objective = "goodput"
    more = np.random.default_rng(1000 + seed)
    further: tuple[Workload, ...] = ()
    if "pair" in kind:
        entry = {
            "modality": "image",
            "media_tokens": int(more.integers(50, 1800)),
            "prompt_tokens": int(more.integers(10, 300)),
            "output_tokens": int(more.integers(2, 200)),
        }
        further = (make_workload(name="other", slo=slo, requests=[entry]),)
    wrong_too = {stage: 1 + more.uniform(-error, error) for stage in STAGES}

    def problem(planned: bool, rates: tuple[float, ...]) -> Problem:
        assert workload.slo is not None
        pools = {}
        if "mixed" in kind:
            own = {"encode_s": 0.1, "prefill_s": 0.2, "decode_s": 0.02}
            pools["encode"] = make_profile(**own, factors=wrong_too if planned else None, error=error)
        return Problem(
            gpus=gpus,
            profile=make_profile(**shape, factors=wrong if planned else {}, error=error),
            workload=workload,
            objective=Objective(objective, rates, workload.slo),  # type: ignore[arg-type]  # one of two literals
            requests=drawn,
            base_rate=8.0,
            seed=seed,
            settings={"model": "synthetic", "sm_table": TABLE},
            batches=SPACE.encode_batch,
            pool_profiles=pools,
            further=further,
        )

    candidates = enumerate_space(SPACE, gpus)
    rates: tuple[float, ...] = ()
    if objective == "goodput":
        # From a third of what the best can carry to well over it.
        limits = Predictor(problem(False, (1.0,)))
        most = max(limits.limit(c) for c in candidates)
        count = int(more.integers(2, 4)) if kind == "rates" else 1
        rates = tuple(sorted(float(rng.uniform(0.3, 1.2)) * most for _ in range(count)))
    return Instance(problem(True, rates), problem(False, rates), candidates, max(rates, default=None))


TABLE = tuple({"batch": b, "encode_sm": share} for b, share in ((1, 50.0), (2, 75.0), (4, 75.0), (8, 75.0)))
"""The same deployments in plan and truth, whatever a table derived from either would say."""

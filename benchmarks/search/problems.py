"""Planning problems whose truth is known: a planner's profile, and a world that differs from it.

A cell is (modality, GPUs, bias). Its planner holds a shipped profile without co-location rows. In its
world

    stage latencies   are multiplied by a factor each from 0.7 to 1.3,
    co-location       slows encode and local prefill by up to 30 %, which the planner does not know,
    every latency     is off by a smooth function of (SM share, batch, tokens) with a standard deviation
                      of 10 %, which no factor per stage can make up for.

The largest rate of every point of the space is then simulated once in that world; a trial looks its
value up and adds noise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from has.core.profile import Profile
from has.core.requests import Floats
from has.core.space import SearchSpace
from has.core.stage import Beside, Stage
from has.files.profile import load_profile, save_profile
from has.files.shipped import shipped
from has.files.workload import load_workload
from has.latency.lookup import Grid, LatencyModel
from has.search.objective import Objective
from has.search.predict import Predictor
from has.search.problem import Problem
from has.search.prune import only_possible
from has.search.space import Candidate, enumerate_space
from has.sim.draw import draw_requests

PROFILES = {
    "image": (("l40s-qwen2.5-vl-7b", "image"), ("cpu-tiny-image", "tiny-image")),
    "video": (("h200-qwen2.5-vl-32b", "video"), ("cpu-tiny-video", "tiny-video")),
    "audio": (("a100-80-ultravox-v0.6-gemma-3-27b", "audio"), ("cpu-tiny-audio", "tiny-audio")),
}
"""Of each modality an estimated profile (biases 0, 2, …) and a measured one (1, 3, …), with their workloads."""
SPACES = {
    4: SearchSpace(version=1, encode_batch=[1, 4], prefill_offload={"step": 0.5}),
    8: SearchSpace(version=1),
    16: SearchSpace(version=1, encode_batch=[1, 2, 4, 8, 16], prefill_offload={"step": 0.25}),
}
REQUESTS = 500
STATED_ERROR = 0.25
"""What the planner is told of its profile; the factors go beyond it."""
SETTINGS = {"preprocess_workers": 256}
"""Preprocessing never binds: it would make whole spaces equal."""
LEAST = 0.4
"""A largest rate below this share of the best is not looked for: such points count as having none."""


@dataclass(frozen=True)
class Cell:
    modality: str
    gpus: int
    bias: int

    @property
    def name(self) -> str:
        return f"{self.modality}-{self.gpus}-{self.bias:02d}"

    @property
    def seed(self) -> tuple[int, ...]:
        return (sorted(PROFILES).index(self.modality), self.gpus, self.bias)


class World:
    """One cell with its planner and its truth; `folder` keeps profiles and truth tables."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell = cell
        self._folder = folder

    @cached_property
    def problem(self) -> Problem:
        """What the planner knows."""
        name, workload_name = PROFILES[self.cell.modality][self.cell.bias % 2]
        profile = self._profile(name)
        workload = load_workload(shipped("workloads") / f"{workload_name}.yaml")
        rate = workload.arrivals.rate or 1.0
        assert workload.slo is not None
        space = SPACES[self.cell.gpus]
        return Problem(
            gpus=self.cell.gpus,
            profile=profile,
            workload=workload,
            objective=Objective("max-rate", (), workload.slo),
            requests=draw_requests(
                workload, rate=rate, requests=REQUESTS, seed=self.cell.bias, model=profile.metadata.model
            ),
            base_rate=rate,
            seed=self.cell.bias,
            settings={"model": profile.metadata.model, **SETTINGS},
            batches=space.encode_batch,
        )

    def _profile(self, name: str) -> Profile:
        """The shipped profile as it was when the benchmark began: later changes would not fit the tables."""
        kept = self._folder / "profiles" / f"{name}.parquet"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            save_profile(load_profile(shipped("profiles") / f"{name}.parquet"), kept)
        profile = load_profile(kept)
        rows = tuple(row for row in profile.rows if row.beside == Beside.NONE)
        metadata = profile.metadata.model_copy(update={"error": STATED_ERROR})
        return profile.model_copy(update={"rows": rows, "metadata": metadata})

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The whole space, but for what no GPU can hold."""
        return list(only_possible(self.problem, enumerate_space(SPACES[self.cell.gpus], self.cell.gpus)).kept)

    @cached_property
    def truth(self) -> Predictor:
        return Predictor(self.problem, distorted(self.problem.latency, np.random.default_rng(self.cell.seed)))

    @cached_property
    def values(self) -> Mapping[Candidate, float]:
        """The true largest rate of every candidate; 0 below `LEAST` of the best. Kept as a table."""
        path = self._folder / "truth" / f"{self.cell.name}.parquet"
        if path.exists():
            table = pd.read_parquet(path)
            if list(table["candidate"]) == [c.label for c in self.candidates]:
                return dict(zip(self.candidates, table["value"].tolist(), strict=True))
        values = self._simulate()
        path.parent.mkdir(parents=True, exist_ok=True)
        labels = [c.label for c in self.candidates]
        pd.DataFrame({"candidate": labels, "value": [values[c] for c in self.candidates]}).to_parquet(path)
        return values

    def _simulate(self) -> dict[Candidate, float]:
        values: dict[Candidate, float] = {}
        best = 0.0
        for candidate in sorted(self.candidates, key=self.truth.limit, reverse=True):
            values[candidate] = self._largest_rate(candidate, LEAST * best)
            best = max(best, values[candidate])
        return values

    def _largest_rate(self, candidate: Candidate, least: float) -> float:
        """Down from above the capacity to the first rate that meets the target, then halved to .5 %.

        As the search's own scan, but in long steps where hardly a request meets the SLO.
        """
        deployment, target = self.problem.deployment(candidate), self.problem.slo.attainment
        rate, missed = 1.1 * self.truth.limit(candidate), 0.0
        while rate >= max(least, 1e-6):
            met = self.truth.point(deployment, rate, self.problem.requests).attainment
            if met >= target:
                while missed and missed - rate > 0.005 * rate:
                    middle = (missed + rate) / 2
                    if self.truth.point(deployment, middle, self.problem.requests).attainment >= target:
                        rate = middle
                    else:
                        missed = middle
                return rate
            missed = rate
            rate *= 0.92 if met > 0.6 * target else 0.8
        return 0.0

    @property
    def best(self) -> float:
        return max(self.values.values())

    def regret(self, candidate: Candidate) -> float:
        """Share of the best that this point loses; at most 1 - `LEAST`."""
        return 1 - max(self.values[candidate] / self.best, LEAST)

    def describe(self) -> str:
        """What the landscape is like, as one line of JSON."""
        values = np.array(list(self.values.values()))
        close = {f"within_{p}": int(np.sum(values >= self.best * (1 - p / 100))) for p in (1, 3, 5)}
        return json.dumps({"cell": self.cell.name, "points": len(values), "best": self.best, **close})


def distorted(latency: LatencyModel, rng: np.random.Generator) -> LatencyModel:
    """The world's latencies (see the module)."""
    grids: dict[tuple[Stage, Beside], Grid] = {}
    for stage in Stage:
        if latency.covers(stage):
            grid = latency.grid(stage)
            bend = np.exp(0.10 * _smooth(grid, rng))
            grids[stage, Beside.NONE] = _times(grid, rng.uniform(0.7, 1.3) * bend)
    for stage, beside in ((Stage.ENCODE, Beside.PREFILL), (Stage.PREFILL, Beside.ENCODE)):
        grids[stage, beside] = _times(grids[stage, Beside.NONE], 1 + rng.uniform(0, 0.3))
    return LatencyModel(grids, latency.metadata, latency.where)


def _smooth(grid: Grid, rng: np.random.Generator, waves: int = 24, length: float = 2.0) -> Floats:
    """A random function of the grid's logarithms with variance 1 and this length (e-foldings)."""
    axes = np.meshgrid(
        *(np.log(np.maximum(a, 1.0)) for a in (grid.sm, grid.batch, grid.tokens)), indexing="ij"
    )
    points = np.stack(axes, axis=-1)
    result = np.zeros(grid.values.shape)
    for _ in range(waves):
        result += np.cos(points @ (rng.standard_normal(3) / length) + rng.uniform(0, 2 * np.pi))
    return result * np.sqrt(2 / waves)


def _times(grid: Grid, factor: Floats | float) -> Grid:
    return Grid(grid.sm, grid.batch, grid.tokens, grid.values * factor)

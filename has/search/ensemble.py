"""Simulators whose stage latencies are wrong in various ways: the surrogate's prior.

Each member multiplies the profile's latencies by its own factors (`FACTORS`), the same at every batch
size. How a candidate's value moves from member to member is the factors' doing, and a least-squares fit
over the members gives its slope against each factor. A factor that is a curve counts for the candidate
at the batch size where the candidate runs.

A largest rate takes several runs, so there only the centre is simulated; how much more or less would be
carried were one stage slower or faster, its capacities say. A goodput is one run at a given rate, which is
cheap, and every member makes it, on the same requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from has.core.requests import Floats, Requests
from has.search.capacity import CapacityModel
from has.search.factors import FACTORS, Factors
from has.search.predict import Predictor, scaled
from has.search.problem import Problem
from has.search.space import Candidate
from has.search.surrogate import Column

MEMBERS = 12
RIDGE = 1e-3
SPEEDS = np.array([-0.15, -0.1, -0.05, 0.05, 0.1, 0.15])
"""How much faster all stages are made to see what a relative error does to what a trial shows."""
LEAST_WEIGHT = 0.1
"""Of the best objective: what an error moves even where the simulator says 0."""

LEAST_STEP = 0.05
"""By how much a stage is made slower and faster, at least: capacities move in steps, as whole batches do."""
SHARP = 8
"""How sharply the least of a candidate's stage capacities rules: one that is a tenth larger counts half as much."""
CONSTANT = Factors()

STAGES = np.array([float(name != "beside") for name in FACTORS])
"""1 for what is a stage's latency, 0 for what co-location adds to it."""

DECODE_POOL = {"disaggregated": "decode", "e_pd": "prefill_decode", "monolithic": "all"}

Measure = Callable[[Predictor, Candidate, Requests, float | None], float]
"""(predictor, candidate, requests, guess or None) → a number that a trial or the objective would show."""


class SimulatedEnsemble:
    """`objective` gives y; `shown` gives z, None where a trial shows the objective itself.

    The centre runs the list that the objective (`long`) or a trial (`trial`) is judged on; how the
    members differ from it shows on a `short` one as well. `guesses` are objectives to look near;
    `best` is the largest one, which the least weights are measured by.
    """

    def __init__(
        self,
        problem: Problem,
        objective: Measure,
        shown: Measure | None,
        *,
        long: Requests,
        trial: Requests,
        short: Requests,
        guesses: Mapping[Candidate, float],
        best: float,
        best_shown: float,
        seed: int,
        factors: Factors = CONSTANT,
        members: int = MEMBERS,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._problem = problem
        self._objective = objective
        self._shown = shown
        self._long, self._trial, self._short = long, trial, short
        self._guesses = guesses
        self._best = (best or 1.0, best_shown or 1.0)
        self._seed = seed
        self.factors = factors
        self._members = members
        self._generation = 0
        self._columns: dict[Candidate, Column] = {}
        self._predictors: list[Predictor] = []
        self._either_way: list[tuple[float, CapacityModel, CapacityModel]] = []
        self._speeds: list[Predictor] = []
        self._steps = np.zeros((0, len(FACTORS)))
        self._past_simulations = 0
        self._progress = progress

    @property
    def simulations(self) -> int:
        return self._past_simulations + sum(p.simulations for p in (*self._predictors, *self._speeds))

    @property
    def known(self) -> Collection[Column]:
        return self._columns.values()

    @property
    def central(self) -> Predictor:
        """The simulator at the centre."""
        return self._predictors[0]

    def recentre(self, centre: Floats, spread: Floats) -> None:
        self._past_simulations = self.simulations
        self._generation += 1
        rng = np.random.default_rng((self._seed, self._generation))
        half = rng.standard_normal((self._members // 2, len(FACTORS)))
        # Antithetic pairs: the members' mean is the centre.
        self._steps = np.vstack([np.zeros(len(FACTORS)), half, -half]) * self.factors.widest(spread)
        constant, curves = self.factors.parts(centre)
        self._predictors = [
            Predictor(self._problem, scaled(self._problem.latency, constant + step, curves))
            for step in self._steps
        ]
        widest = np.maximum(self.factors.widest(spread), LEAST_STEP)
        self._either_way = []
        for step in np.diag(widest):
            slower, faster = (
                Predictor(
                    self._problem, scaled(self._problem.latency, constant + way * step, curves)
                ).capacity
                for way in (1, -1)
            )
            self._either_way.append((float(step.max()), slower, faster))
        self._speeds = [
            Predictor(
                self._problem, scaled(self._problem.latency, constant - np.log1p(faster) * STAGES, curves)
            )
            for faster in SPEEDS
        ]
        self._columns = {}

    def column(self, candidate: Candidate) -> Column:
        found = self._columns.get(candidate)
        if found is None:
            found = self._columns[candidate] = self._simulate(candidate)
            if self._progress is not None:
                self._progress(len(self._columns))
        return found

    def _simulate(self, candidate: Candidate) -> Column:
        guess = self._guesses.get(candidate)
        if self._problem.objective.name == "max-rate":
            y = self._objective(self.central, candidate, self._long, guess)
            y_slope, y_misfit = self._by_capacity(candidate, y)
        else:
            y, y_slope, y_misfit = self._around(self._objective, candidate, self._long, self._short, guess)
        y_weight = max(abs(y), LEAST_WEIGHT * self._best[0])
        z, z_slope, z_weight, z_unit = y, y_slope, y_weight, y_weight
        if self._shown is not None and self._problem.objective.name == "max-rate":
            z, z_weight = self._by_speed(self._shown, candidate)
            z_slope, z_unit = z_weight * y_slope / y_weight, self._best[1]
        elif self._shown is not None:
            z, z_slope, _ = self._around(self._shown, candidate, self._trial, self._trial, guess)
            z_weight = z_unit = max(abs(z), LEAST_WEIGHT * self._best[1])
        rows = self.factors.rows(self.batches(candidate))
        return Column(
            y=y,
            z=z,
            y_slope=y_slope @ rows,
            z_slope=z_slope @ rows,
            y_weight=y_weight,
            z_weight=z_weight,
            z_unit=z_unit,
            misfit=min(y_misfit / y_weight, 0.5),
        )

    def batches(self, candidate: Candidate) -> dict[str, float]:
        """The batch sizes at which encode and decode run when the candidate carries what it can."""
        capacity = self.central.capacity
        kv_tokens = self._problem.kv_tokens(candidate)
        stages = capacity.of(candidate, kv_tokens)
        pool = DECODE_POOL[candidate.topology]
        most = capacity.decode_batch(kv_tokens, pool)
        full = (
            min(1.0, stages.utilisations(stages.limit).get(pool, 1.0)) if math.isfinite(stages.limit) else 1.0
        )
        return {"encode": float(max(candidate.encode_batch, 1)), "decode": max(1.0, full * most)}

    def _by_speed(self, shown: Measure, candidate: Candidate) -> tuple[float, float]:
        """A trial's figure, and how far it moves per relative error of everything's speed.

        Such an error moves a largest rate by as much. A trial at one rate shows little of it below the
        knee, and at the knee many times itself. Slopes against single factors are not fitted to these
        runs: which of some dozen requests meet the SLO near the knee hangs on who goes where, which any
        change of any stage redraws; what a factor does to the largest rate, it does to the trial.
        """
        z = shown(self.central, candidate, self._trial, None)
        moved = np.array([shown(p, candidate, self._trial, None) for p in self._speeds]) - z
        return z, max(0.0, float(SPEEDS @ moved / (SPEEDS @ SPEEDS)))

    def _by_capacity(self, candidate: Candidate, value: float) -> tuple[Floats, float]:
        """Slope and misfit of a largest rate, were it proportional to what the stages carry together."""
        kv_tokens = self._problem.kv_tokens(candidate)

        def carried(model: CapacityModel) -> float:
            return math.log(together(model.of(candidate, kv_tokens).stages.values()))

        centre = carried(self.central.capacity)
        slopes, misfits = [], []
        for step, slower, faster in self._either_way:
            down, up = carried(slower) - centre, carried(faster) - centre
            slopes.append(max(-1.0, min(0.0, (down - up) / (2 * step))))
            misfits.append(min(1.0, abs(down + up) / 2))
        return value * np.array(slopes), value * float(np.sqrt(np.sum(np.square(misfits))))

    def _around(
        self, measure: Measure, candidate: Candidate, full: Requests, short: Requests, guess: float | None
    ) -> tuple[float, Floats, float]:
        """The centre's value on `full`, and the members' slope and misfit on `short`."""
        centre = measure(self.central, candidate, full, guess)
        reference = centre if short is full else measure(self.central, candidate, short, centre)
        members = [measure(p, candidate, short, reference or guess) for p in self._predictors[1:]]
        slope, misfit = _fit(self._steps[1:], np.array(members) - reference)
        return centre, slope, misfit


def together(capacities: Iterable[float]) -> float:
    """What stages of these capacities carry in a row: less than the least, for queues form before one is full."""
    rates = np.maximum(np.array([c for c in capacities if math.isfinite(c)] or [1.0]), 1e-9)
    least = float(rates.min())
    return float(least * np.sum((least / rates) ** SHARP) ** (-1 / SHARP))


def _fit(steps: Floats, delta: Floats) -> tuple[Floats, float]:
    """Slope of `delta` [K] against `steps` [K, F] through the origin, and the rms misfit."""
    scale = float(np.mean(steps**2)) or 1.0
    slope = np.linalg.solve(
        steps.T @ steps + RIDGE * scale * len(steps) * np.eye(steps.shape[1]), steps.T @ delta
    )
    return np.asarray(slope, np.float64), float(np.sqrt(np.mean((delta - steps @ slope) ** 2)))

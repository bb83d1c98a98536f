"""What the search believes about every candidate: simulators as the prior, corrected by trials.

    symbol   meaning                                                              shape
    θ        log factors on the profile's stage latencies (`FACTORS`)             [F]
    c        θ at which the simulators were last run (the centre)                 [F]
    y        objective of each candidate                                          [C]
    a, J     simulated y at c, and its slope there, from an ensemble around c     [C], [C, F]
    z        what a trial of a candidate shows (often y itself)
    o, Jo    simulated z at c, and its slope
    ρ        relative error that no θ explains: one offset for all, plus a Gaussian
             process over physics features (log stage capacities, log B, s), plus
             what the linear fit of the ensemble left over
    t        stage factors seen in trials' own telemetry: t = Hθ + noise

    y = a + J(θ - c) + w∘ρ        z = o + Jo(θ - c) + v∘ρ + noise        θ ~ N(0, S)

w and v are how far a relative error moves y and z. Where a trial shows the objective itself both are
about |y|. Where it shows the goodput at one rate while the objective is the largest rate, they differ
much: far below that rate a trial shows nothing of it (v = 0), and at the knee a few per cent of speed
are half of the goodput.

All is linear in (θ, ρ) and Gaussian, so one solve gives every mean and covariance. When θ has moved
far from c the simulators are run again around it: the straight line is only good near c.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from has.core.requests import Floats
from has.search.space import Candidate

FACTORS = ("preprocess", "encode", "prefill", "decode", "beside")
"""What θ scales: the four stages' latencies, and what co-location adds to encode and local prefill."""

OFFSET = 0.10
"""Standard deviation of the relative error that all candidates share."""
LENGTH = 1.5
"""Length scale of the Gaussian process, in standard deviations of a feature."""
RESIDUALS = (0.02, 0.05, 0.1)
OWNS = (0.01, 0.03, 0.06)
"""Scales of ρ to choose from, by marginal likelihood once there are trials to judge by: of what neighbours
share, and of what is a candidate's own. A trial's noise looks the same as the latter until a trial is
repeated, so it is not chosen but given."""
FIRST = (0.05, 0.03)
"""The scales until then."""
NOISE = {True: 0.03, False: 0.01}
"""Standard deviation of a trial's relative noise, by whether it can differ from run to run."""
MOVED = 0.05
"""The simulators are run again when the estimated factors have moved some candidate's objective by this share."""


@dataclass(frozen=True, slots=True)
class Column:
    """Simulated prior of one candidate: y and z at the centre, slopes [F], relative misfit of the fit.

    A relative error ρ moves y by y_weight·ρ: |y|, but never quite nothing, for a simulator that says
    0 may be wrong; and z by z_weight·ρ. `z_unit` is what a trial's relative noise is a share of.
    """

    y: float
    z: float
    y_slope: Floats
    z_slope: Floats
    y_weight: float
    z_weight: float
    z_unit: float
    misfit: float


class Ensemble(Protocol):
    """Simulators around a centre."""

    def recentre(self, centre: Floats, spread: Floats) -> None:
        """Draw members around `centre` with standard deviations `spread`, both [F]; forget all columns."""

    def column(self, candidate: Candidate) -> Column:
        """The candidate's prior, simulated when first asked for."""

    @property
    def known(self) -> Collection[Column]:
        """The columns asked for since the last recentring."""


@dataclass(frozen=True, slots=True)
class Observation:
    candidate: Candidate
    value: float
    noise: float = 1.0
    """Multiplies the noise scale: above 1 for a bound or a short run."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """One stage's log factor as a trial showed it: value = row·θ, give or take sd."""

    row: Floats
    value: float
    sd: float


@dataclass(frozen=True, slots=True)
class Posterior:
    """Joint belief over `candidates`: mean [C] and covariance [C, C] of y, in the objective's unit.

    `noise` [C] is the standard deviation of another trial of each; None where a repeat tells nothing new.
    """

    candidates: Sequence[Candidate]
    mean: Floats
    covariance: Floats
    noise: Floats | None = None

    @property
    def sd(self) -> Floats:
        return np.sqrt(np.maximum(np.diag(self.covariance), 0.0))

    def index(self, candidate: Candidate) -> int:
        return list(self.candidates).index(candidate)

    def believing(self, pending: Sequence[Candidate]) -> Posterior:
        """As if trials of these had shown their means (the kriging believer): what is being found out already."""
        covariance = self.covariance
        for candidate in pending:
            i = self.index(candidate)
            noise = 0.0 if self.noise is None else float(self.noise[i])
            seen = covariance[i, i] + noise**2
            if seen > 0:
                covariance = covariance - np.outer(covariance[:, i], covariance[i]) / seen
        return Posterior(self.candidates, self.mean, covariance, self.noise)

    def draws(self, count: int, seed: int) -> Floats:
        """Samples of y, [count, C]."""
        rng = np.random.default_rng(seed)
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        samples: Floats = self.mean + rng.standard_normal((count, len(self.mean))) @ root.T
        return samples

    def probability_within(self, candidate: Candidate, percent: float, seed: int, count: int = 4000) -> float:
        """That this candidate is within `percent` of the best of all."""
        draws = self.draws(count, seed)
        best = draws.max(axis=1)
        return float(np.mean(draws[:, self.index(candidate)] >= best - abs(best) * percent / 100))


class Surrogate:
    """Learns from trials; answers for any candidate. `features` maps a candidate to its physics."""

    def __init__(
        self,
        ensemble: Ensemble,
        features: Mapping[Candidate, Floats],
        prior_sd: Floats,
        noise: float = NOISE[True],
    ) -> None:
        self._ensemble = ensemble
        self.features = features
        self._prior = np.diag(np.asarray(prior_sd, np.float64) ** 2)
        self.centre = np.zeros(len(prior_sd))
        self._spread = np.asarray(prior_sd, np.float64)
        self._observations: list[Observation] = []
        self._telemetry: list[Telemetry] = []
        self._scales = FIRST
        self._noise = noise
        self._misfit = 1.0
        ensemble.recentre(self.centre, self._spread)

    @property
    def observations(self) -> int:
        return len(self._observations)

    def learn(self, observation: Observation | None, telemetry: Sequence[Telemetry] = ()) -> bool:
        """Take in a trial; True if the simulators were run anew around better stage factors."""
        if observation is not None:
            self._observations.append(observation)
        self._telemetry.extend(telemetry)
        self._choose_scales()
        mean, sd = self.factors()
        if self._shift(mean) <= MOVED:
            # What a straight line misses grows with the square of how far θ may still be from the centre.
            self._misfit = min(1.0, float(np.mean((sd / self._spread) ** 2)))
            return False
        self.centre, self._spread, self._misfit = mean, np.maximum(sd, 0.01), 1.0
        self._ensemble.recentre(self.centre, self._spread)
        return True

    def _shift(self, factors: Floats) -> float:
        """What moving from the centre to `factors` does to a candidate at most, as a share of its weight.

        A factor that no candidate feels may move as it likes.
        """
        step = factors - self.centre
        return max((abs(float(c.y_slope @ step)) / c.y_weight for c in self._ensemble.known), default=0.0)

    def factors(self) -> tuple[Floats, Floats]:
        """Estimate of θ and its standard deviation, both [F]."""
        rows, targets, covariance = self._evidence()
        if len(targets) == 0:
            return np.zeros(len(self._prior)), np.sqrt(np.diag(self._prior))
        cross = self._prior @ rows.T
        gain = np.linalg.solve(covariance, cross.T).T
        left = self._prior - gain @ cross.T
        return gain @ targets, np.sqrt(np.maximum(np.diag(left), 1e-12))

    def posterior(self, candidates: Sequence[Candidate]) -> Posterior:
        columns = [self._ensemble.column(c) for c in candidates]
        a = np.array([column.y for column in columns])
        slopes = np.array([column.y_slope for column in columns])
        weights = np.array([column.y_weight for column in columns])
        mean = a - slopes @ self.centre
        covariance = slopes @ self._prior @ slopes.T + np.outer(weights, weights) * self._kernel(
            candidates, candidates
        )
        rows, targets, evidence = self._evidence()
        if len(targets):
            seen = [obs.candidate for obs in self._observations]
            cross = slopes @ self._prior @ rows.T
            if seen:
                shown = np.array([self._ensemble.column(c).z_weight for c in seen])
                cross[:, : len(seen)] += np.outer(weights, shown) * self._kernel(candidates, seen)
            gain = np.linalg.solve(evidence, cross.T).T
            mean = mean + gain @ targets
            covariance = covariance - gain @ cross.T
        noise = self._noise * weights if self._noise > NOISE[False] else None
        return Posterior(tuple(candidates), mean, (covariance + covariance.T) / 2, noise)

    def _evidence(self, scales: tuple[float, float] | None = None) -> tuple[Floats, Floats, Floats]:
        """Rows of θ in each observation, deviations from the prior mean, and their covariance."""
        scales = scales or self._scales
        seen = [obs.candidate for obs in self._observations]
        columns = [self._ensemble.column(c) for c in seen]
        rows = [column.z_slope for column in columns] + [entry.row for entry in self._telemetry]
        if not rows:
            return np.zeros((0, len(self._prior))), np.zeros(0), np.zeros((0, 0))
        design = np.array(rows)
        targets = np.array(
            [
                obs.value - (column.z - column.z_slope @ self.centre)
                for obs, column in zip(self._observations, columns, strict=True)
            ]
            + [entry.value for entry in self._telemetry]
        )
        covariance = design @ self._prior @ design.T
        n = len(seen)
        if n:
            weights = np.array([column.z_weight for column in columns])
            covariance[:n, :n] += np.outer(weights, weights) * self._kernel(seen, seen, scales)
            units = np.array([column.z_unit for column in columns])
            noise = self._noise * np.array([obs.noise for obs in self._observations])
            covariance[range(n), range(n)] += (units * noise) ** 2
        at = range(n, len(rows))
        covariance[at, at] += np.array([entry.sd**2 for entry in self._telemetry])
        return design, targets, covariance

    def _kernel(
        self,
        left: Sequence[Candidate],
        right: Sequence[Candidate],
        scales: tuple[float, float] | None = None,
    ) -> Floats:
        """Covariance of ρ between two lists."""
        scale, own = scales or self._scales
        x = np.array([self.features[c] for c in left])
        y = np.array([self.features[c] for c in right])
        squared = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)[None, :] - 2 * x @ y.T
        result: Floats = OFFSET**2 + scale**2 * np.exp(-np.maximum(squared, 0.0) / (2 * LENGTH**2))
        places: dict[Candidate, list[int]] = {}
        for j, d in enumerate(right):
            places.setdefault(d, []).append(j)
        for i, c in enumerate(left):
            if c in places:
                result[i, places[c]] += (self._misfit * self._ensemble.column(c).misfit) ** 2 + own**2
        return result

    def _choose_scales(self) -> None:
        if len(self._observations) < 3:
            return
        best = -np.inf
        for scales in itertools.product(RESIDUALS, OWNS):
            _, targets, covariance = self._evidence(scales)
            likelihood = _log_likelihood(targets, covariance)
            if likelihood > best + 1e-9:
                best, self._scales = likelihood, scales


def _log_likelihood(targets: Floats, covariance: Floats) -> float:
    sign, logdet = np.linalg.slogdet(covariance)
    if sign <= 0:
        return -np.inf
    return float(-0.5 * targets @ np.linalg.solve(covariance, targets) - 0.5 * logdet)

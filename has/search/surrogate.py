"""What the search believes about every candidate: simulators as the prior, corrected by trials.

    symbol   meaning                                                              shape
    θ        log factors on the profile's stage latencies (`factors`)             [F]
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

How large ρ and the noise are nobody says. A few trials cannot tell a candidate's own error from a
trial's noise, and whichever single answer is likeliest makes the belief too sure of itself. So every
combination of `RESIDUALS`, `OWNS` and noises counts by its marginal likelihood, and the belief is their
mixture, as a Gaussian of the same mean and covariance.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from has.core.requests import Floats
from has.search.space import Candidate

OFFSET = 0.10
"""Standard deviation of the relative error that all candidates share."""
LENGTH = 1.5
"""Length scale of the Gaussian process, in standard deviations of a feature."""
RESIDUALS = (0.02, 0.05, 0.1)
OWNS = (0.01, 0.03, 0.06)
"""Scales of ρ: of what neighbours share, and of what is a candidate's own."""
NOISE = {True: (0.015, 0.03, 0.06), False: (0.01,)}
"""Standard deviations of a trial's relative noise, by whether it can differ from run to run."""
REPEATABLE = 0.01
"""At this much noise or less another trial of the same candidate tells nothing new."""
NEGLIGIBLE = 1e-3
"""Weight below which a combination of scales is left out."""
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


class Scales(NamedTuple):
    """How large what no θ explains is: shared with neighbours, a candidate's own, a trial's noise."""

    shared: float
    own: float
    noise: float


def scales_of(*, noisy: bool) -> list[Scales]:
    return [Scales(*each) for each in itertools.product(RESIDUALS, OWNS, NOISE[noisy])]


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike two lists of candidates are, [L, R]: `near` by features, `same` where they are one,
    `misfit` the variance that the straight line leaves there."""

    near: Floats
    same: Floats
    misfit: Floats

    def covariance(self, scales: Scales) -> Floats:
        """Of ρ between the two."""
        found: Floats = OFFSET**2 + scales.shared**2 * self.near + scales.own**2 * self.same + self.misfit
        return found


@dataclass(frozen=True, slots=True)
class Seen:
    """Observations, n of them, as the surrogate uses them under the present centre and telemetry.

    `design` [n, F], `targets` [n] less what was expected, `weights` [n] of ρ, `units` [n] of the noise,
    `base` [n, n] covariance from θ alone, `likeness` among them.
    """

    design: Floats
    targets: Floats
    weights: Floats
    units: Floats
    base: Floats
    likeness: Likeness

    def covariance(self, scales: Scales) -> Floats:
        """Of the observations."""
        found = self.base + np.outer(self.weights, self.weights) * self.likeness.covariance(scales)
        return found + np.diag((scales.noise * self.units) ** 2)

    def log_likelihood(self, scales: Scales) -> float:
        covariance = self.covariance(scales)
        sign, logdet = np.linalg.slogdet(covariance)
        if sign <= 0:
            return -np.inf
        return float(-0.5 * self.targets @ np.linalg.solve(covariance, self.targets) - 0.5 * logdet)


class Surrogate:
    """Learns from trials; answers for any candidate. `features` maps a candidate to its physics.

    `prior` [F, F] is θ's covariance before anything was seen; of `scales` each counts as likely at first.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        features: Mapping[Candidate, Floats],
        prior: Floats,
        scales: Sequence[Scales] | None = None,
    ) -> None:
        self._ensemble = ensemble
        self.features = features
        self.prior = np.asarray(prior, np.float64)
        self._mean, self._covariance = np.zeros(len(prior)), self.prior
        """θ by telemetry alone; what trials show comes on top, at each look."""
        self.centre = np.zeros(len(prior))
        self._spread = np.sqrt(np.diag(self._covariance))
        self._observations: list[Observation] = []
        self._scales = list(scales or scales_of(noisy=True))
        self._shares = np.full(len(self._scales), 1 / len(self._scales))
        self._misfit = 1.0
        ensemble.recentre(self.centre, self._spread)

    @property
    def observations(self) -> int:
        return len(self._observations)

    def learn(self, observation: Observation | None, telemetry: Sequence[Telemetry] = ()) -> bool:
        """Take in a trial; True if the simulators were run anew around better stage factors."""
        if observation is not None:
            self._observations.append(observation)
        for entry in telemetry:
            self._hear(entry)
        self._weigh_scales()
        mean, sd = self.factors()
        if self._shift(mean) <= MOVED:
            # What a straight line misses grows with the square of how far θ may still be from the centre.
            self._misfit = min(1.0, float(np.mean((sd / self._spread) ** 2)))
            return False
        self.centre, self._spread, self._misfit = mean, np.maximum(sd, 0.01), 1.0
        self._ensemble.recentre(self.centre, self._spread)
        self._weigh_scales()
        return True

    def _hear(self, entry: Telemetry) -> None:
        """One stage's factor is one equation in θ alone."""
        along = self._covariance @ entry.row
        gain = along / (entry.row @ along + entry.sd**2)
        self._mean = self._mean + gain * (entry.value - entry.row @ self._mean)
        self._covariance = self._covariance - np.outer(gain, along)

    def _shift(self, factors: Floats) -> float:
        """What moving from the centre to `factors` does to a candidate at most, as a share of its weight.

        A factor that no candidate feels may move as it likes.
        """
        step = factors - self.centre
        return max((abs(float(c.y_slope @ step)) / c.y_weight for c in self._ensemble.known), default=0.0)

    def factors(self, rows: Floats | None = None) -> tuple[Floats, Floats]:
        """Estimate of `rows` @ θ (of θ itself without them) and its standard deviation, [K] each."""
        rows = np.eye(len(self._mean)) if rows is None else rows
        prior, covariance = rows @ self._mean, rows @ self._covariance @ rows.T
        seen = self._seen()
        if seen is None:
            return prior, np.sqrt(np.maximum(np.diag(covariance), 1e-12))
        cross = rows @ self._covariance @ seen.design.T
        parts = []
        for scales, share in self._weighed():
            gain = np.linalg.solve(seen.covariance(scales), cross.T).T
            parts.append((share, prior + gain @ seen.targets, covariance - gain @ cross.T))
        mean, mixed = _mixture(parts)
        return mean, np.sqrt(np.maximum(np.diag(mixed), 1e-12))

    def posterior(self, candidates: Sequence[Candidate]) -> Posterior:
        columns = [self._ensemble.column(c) for c in candidates]
        slopes = np.array([column.y_slope for column in columns])
        weights = np.array([column.y_weight for column in columns])
        prior = np.array([column.y for column in columns]) + slopes @ (self._mean - self.centre)
        base = slopes @ self._covariance @ slopes.T
        among, scale = self._likeness(candidates, candidates), np.outer(weights, weights)
        seen = self._seen()
        if seen is not None:
            cross_base = slopes @ self._covariance @ seen.design.T
            beside = self._likeness(candidates, [obs.candidate for obs in self._observations])
            cross_scale = np.outer(weights, seen.weights)
        parts = []
        for scales, share in self._weighed():
            mean, covariance = prior, base + scale * among.covariance(scales)
            if seen is not None:
                cross = cross_base + cross_scale * beside.covariance(scales)
                gain = np.linalg.solve(seen.covariance(scales), cross.T).T
                mean, covariance = mean + gain @ seen.targets, covariance - gain @ cross.T
            parts.append((share, mean, covariance))
        mean, covariance = _mixture(parts)
        return Posterior(tuple(candidates), mean, (covariance + covariance.T) / 2, self._noise(weights))

    def _noise(self, weights: Floats) -> Floats | None:
        variance = sum(share * scales.noise**2 for scales, share in self._weighed())
        noise: Floats = np.sqrt(variance) * weights
        return noise if variance > REPEATABLE**2 * (1 + 1e-9) else None

    def _seen(self) -> Seen | None:
        if not self._observations:
            return None
        candidates = [obs.candidate for obs in self._observations]
        columns = [self._ensemble.column(c) for c in candidates]
        design = np.array([column.z_slope for column in columns])
        expected = np.array([column.z for column in columns]) + design @ (self._mean - self.centre)
        return Seen(
            design=design,
            targets=np.array([obs.value for obs in self._observations]) - expected,
            weights=np.array([column.z_weight for column in columns]),
            units=np.array([c.z_unit * o.noise for c, o in zip(columns, self._observations, strict=True)]),
            base=design @ self._covariance @ design.T,
            likeness=self._likeness(candidates, candidates),
        )

    def _likeness(self, left: Sequence[Candidate], right: Sequence[Candidate]) -> Likeness:
        x = np.array([self.features[c] for c in left])
        y = np.array([self.features[c] for c in right])
        squared = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)[None, :] - 2 * x @ y.T
        same = np.zeros(squared.shape)
        misfit = np.zeros(squared.shape)
        places: dict[Candidate, list[int]] = {}
        for j, d in enumerate(right):
            places.setdefault(d, []).append(j)
        for i, c in enumerate(left):
            if c in places:
                same[i, places[c]] = 1.0
                misfit[i, places[c]] = (self._misfit * self._ensemble.column(c).misfit) ** 2
        return Likeness(np.exp(-np.maximum(squared, 0.0) / (2 * LENGTH**2)), same, misfit)

    def _weighed(self) -> Iterator[tuple[Scales, float]]:
        """The combinations of scales that count, and how much, of 1 in all."""
        counts = self._shares >= NEGLIGIBLE
        total = float(self._shares[counts].sum())
        for scales, share in zip(self._scales, self._shares, strict=True):
            if share >= NEGLIGIBLE:
                yield scales, float(share) / total

    def _weigh_scales(self) -> None:
        seen = self._seen()
        if seen is None:
            return
        logs = np.array([seen.log_likelihood(scales) for scales in self._scales])
        shares = np.exp(logs - logs.max())
        self._shares = shares / shares.sum()


def _mixture(parts: Sequence[tuple[float, Floats, Floats]]) -> tuple[Floats, Floats]:
    """Mean [N] and covariance [N, N] of Gaussians (share, mean, covariance)."""
    mean: Floats = np.sum([share * own for share, own, _ in parts], axis=0)
    covariance: Floats = np.sum(
        [share * (spread + np.outer(own - mean, own - mean)) for share, own, spread in parts], axis=0
    )
    return mean, covariance

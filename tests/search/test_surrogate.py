from __future__ import annotations

import numpy as np
import pytest

from has.core.requests import Floats
from has.search.factors import FACTORS
from has.search.space import Candidate
from has.search.surrogate import Column, Observation, Scales, Surrogate, Telemetry

CANDIDATES = [Candidate("disaggregated", (n, 6 - n, 2), (1, 1, 1), 1, 500_000) for n in range(1, 6)]
FEATURES = {c: np.array([float(c.gpus[0])]) for c in CANDIDATES}
PRIOR = 0.1**2 * np.eye(len(FACTORS))
ENCODE = FACTORS.index("encode")


class Linear:
    """y = n·(10 - 20·θ_encode): exactly what the surrogate assumes; counts how often it was recentred."""

    def __init__(self) -> None:
        self.centres: list[Floats] = []

    def recentre(self, centre: Floats, spread: Floats) -> None:
        self.centres.append(centre)

    @property
    def known(self) -> list[Column]:
        return [self.column(c) for c in CANDIDATES]

    def column(self, candidate: Candidate) -> Column:
        n = candidate.gpus[0]
        slope = np.zeros(len(FACTORS))
        slope[ENCODE] = -20.0 * n
        y = n * (10.0 - 20.0 * self.centres[-1][ENCODE])
        return Column(y, y, slope, slope, y_weight=abs(y), z_weight=abs(y), z_unit=abs(y), misfit=0.0)


def row(stage: str) -> Floats:
    unit = np.zeros(len(FACTORS))
    unit[FACTORS.index(stage)] = 1.0
    return unit


def test_prior_is_the_simulator() -> None:
    belief = Surrogate(Linear(), FEATURES, PRIOR).posterior(CANDIDATES)
    assert belief.mean == pytest.approx([10, 20, 30, 40, 50])
    assert np.all(belief.sd > 0.1 * np.array([10, 20, 30, 40, 50]))


def test_telemetry_calibrates_a_stage_and_all_candidates_with_it() -> None:
    ensemble = Linear()
    surrogate = Surrogate(ensemble, FEATURES, PRIOR)
    assert surrogate.learn(None, [Telemetry(row("encode"), 0.2, 0.005)])  # far enough to simulate anew
    mean, sd = surrogate.factors()
    assert mean[ENCODE] == pytest.approx(0.2, abs=0.002)
    assert sd[ENCODE] < 0.006
    assert len(ensemble.centres) == 2
    belief = surrogate.posterior(CANDIDATES)
    assert belief.mean == pytest.approx(6 * np.arange(1, 6), rel=0.01)


def test_a_factor_that_no_candidate_feels_moves_nothing() -> None:
    ensemble = Linear()
    surrogate = Surrogate(ensemble, FEATURES, PRIOR)
    assert not surrogate.learn(None, [Telemetry(row("preprocess"), 0.4, 0.005)])
    assert len(ensemble.centres) == 1


def test_recentring_does_not_count_evidence_twice() -> None:
    surrogate = Surrogate(Linear(), FEATURES, PRIOR)
    surrogate.learn(None, [Telemetry(row("encode"), 0.2, 0.05)])
    mean, sd = surrogate.factors()
    # One observation against the prior: the weighted mean, wherever the centre stands.
    weight = 0.1**2 / (0.1**2 + 0.05**2)
    assert mean[ENCODE] == pytest.approx(0.2 * weight)
    assert sd[ENCODE] == pytest.approx(np.sqrt(0.1**2 * (1 - weight)))


def test_a_trial_moves_its_neighbours_more_than_others() -> None:
    surrogate = Surrogate(Linear(), FEATURES, 1e-8 * PRIOR)
    before = surrogate.posterior(CANDIDATES).mean
    surrogate.learn(Observation(CANDIDATES[0], 9.0))
    change = surrogate.posterior(CANDIDATES).mean / before - 1
    assert np.all(change < 0)
    assert np.all(np.diff(change) > 0)


def test_repeats_narrow_and_the_posterior_mean_is_not_the_luckiest_trial() -> None:
    surrogate = Surrogate(Linear(), FEATURES, PRIOR)
    values = [49.6, 50.4, 50.2, 49.8, 51.4]
    sds = []
    for value in values:
        surrogate.learn(Observation(CANDIDATES[4], value))
        sds.append(surrogate.posterior(CANDIDATES[4:]).sd[0])
    assert sds[-1] < sds[0]
    assert 49.8 < surrogate.posterior(CANDIDATES[4:]).mean[0] < 50.8


def test_probability_of_being_within_some_percent() -> None:
    surrogate = Surrogate(Linear(), FEATURES, PRIOR)
    belief = surrogate.posterior(CANDIDATES)
    assert belief.probability_within(CANDIDATES[4], 3.0, seed=0) > 0.95
    assert belief.probability_within(CANDIDATES[0], 3.0, seed=0) < 0.01
    covariance = belief.covariance
    assert np.allclose(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > -1e-9


def test_repeats_tell_a_trials_noise_from_a_candidates_own_error() -> None:
    """Two points 6 % apart: of one trial each anything may be at fault; repeats that agree make it their own."""
    once, often = Surrogate(Linear(), FEATURES, PRIOR), Surrogate(Linear(), FEATURES, PRIOR)
    for surrogate, repeats in ((once, 1), (often, 4)):
        for _ in range(repeats):
            surrogate.learn(Observation(CANDIDATES[4], 50.0 * 1.06))
            surrogate.learn(Observation(CANDIDATES[3], 40.0))
    noise = [s.posterior(CANDIDATES).noise[4] / 50.0 for s in (once, often)]  # type: ignore[index]
    assert noise[1] < 0.02 < noise[0]
    assert often.posterior(CANDIDATES).mean[4] > once.posterior(CANDIDATES).mean[4]


def test_not_knowing_the_scales_is_more_than_the_likeliest_of_them_says() -> None:
    sure = Surrogate(Linear(), FEATURES, PRIOR, [Scales(0.02, 0.01, 0.03)])
    unsure = Surrogate(Linear(), FEATURES, PRIOR, [Scales(0.02, 0.01, 0.03), Scales(0.1, 0.06, 0.03)])
    told = [Telemetry(row(name), 0.0, 0.01) for name in FACTORS]
    for surrogate in (sure, unsure):
        surrogate.learn(Observation(CANDIDATES[4], 50.0), told)
    assert unsure.posterior(CANDIDATES).sd[0] > 1.2 * sure.posterior(CANDIDATES).sd[0]

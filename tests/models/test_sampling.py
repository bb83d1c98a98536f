"""Sampling belongs to the request: seed and step decide, nothing else."""

from __future__ import annotations

import numpy as np

from has.models.sampling import Sampling

LOGITS = np.random.default_rng(0).standard_normal(50).astype(np.float32)


def draws(sampling: Sampling, count: int = 4000) -> np.ndarray:
    return np.array([sampling.choose(LOGITS, step) for step in range(count)])


def test_temperature_zero_is_greedy() -> None:
    assert set(draws(Sampling(), 5)) == {int(LOGITS.argmax())}


def test_draws_depend_on_seed_and_step_alone() -> None:
    one = Sampling(temperature=1.0, seed=5)
    assert [one.choose(LOGITS, s) for s in (3, 1, 2)] == [
        Sampling(temperature=1.0, seed=5).choose(LOGITS, s) for s in (3, 1, 2)
    ]
    assert (draws(one, 50) != draws(Sampling(temperature=1.0, seed=6), 50)).any()


def test_frequencies_are_the_softmax() -> None:
    for temperature in (0.7, 1.0, 1.5):
        weights = np.exp(LOGITS / temperature)
        expected = weights / weights.sum()
        seen = np.bincount(draws(Sampling(temperature=temperature)), minlength=50) / 4000
        error = np.abs(seen - expected) / np.sqrt(expected * (1 - expected) / 4000)
        assert error.max() < 4.5


def test_top_p_and_top_k_cut_the_tail() -> None:
    order = np.argsort(-LOGITS)
    assert set(draws(Sampling(temperature=5.0, top_k=3))) == set(order[:3])
    weights = np.exp(LOGITS[order])
    kept = int(np.searchsorted(np.cumsum(weights), 0.5 * weights.sum())) + 1
    assert set(draws(Sampling(temperature=1.0, top_p=0.5))) == set(order[:kept])
    assert set(draws(Sampling(temperature=1.0, top_p=0.0), 20)) == {order[0]}
    assert set(draws(Sampling(temperature=1e-6, seed=1), 20)) == {order[0]}

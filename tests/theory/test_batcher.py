"""The Poisson-gap batcher against its closed forms: q = p^(1/(B-1)), times in units of 1/λ."""

from __future__ import annotations

import numpy as np
import pytest

from tests.theory.worlds import close_to, deployment, poisson, profile, requests, run


def _closed_forms(bound, p):
    q = p ** (1 / (bound - 1))
    batch = (1 - q**bound) / (1 - q)
    wait = sum(j * q**j for j in range(1, bound)) / batch
    return batch, batch - 1, wait


def _check(n, bound, p, rate, workers, seed):
    d = deployment(encode=workers, encode_batch=bound, fill_probability=p, rate=rate)
    r = requests(poisson(rate, n, seed), media=100)
    records = run(d, profile(encode=1e-9), r)
    done = records.encode_start_ns >= 0  # the last batches may lack the arrival that would have told them
    waits = (records.encode_start_ns - r.arrival_ns)[done] * 1e-9 * rate / workers
    batch, first_wait, mean_wait = _closed_forms(bound, p)
    log = records.stages["encode"]
    order = np.argsort(log.start_ns, kind="stable")
    close_to(log.full[order], p)
    close_to(log.size[order], batch)
    close_to(waits, mean_wait)
    close_to(_first_waits(records, done) * rate / workers, first_wait)


def _first_waits(records, done):
    """Wait of the first request of every batch, in order of launch."""
    who = np.flatnonzero(done)
    keys = np.stack([records.encode_worker[who], records.encode_start_ns[who]])
    order = np.lexsort((records.requests.arrival_ns[who], keys[0], keys[1]))
    sorted_keys = keys[:, order]
    new = np.concatenate([[True], np.any(np.diff(sorted_keys, axis=1) != 0, axis=0)])
    first = who[order][new]
    return (records.encode_start_ns[first] - records.requests.arrival_ns[first]) / 1e9


@pytest.mark.parametrize(("bound", "p", "workers"), [(2, 0.6, 1), (4, 0.6, 1), (4, 0.3, 3), (8, 0.6, 2)])
def test_closed_forms(bound, p, workers):
    _check(60_000, bound, p, 5.0, workers, 11)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("bound", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("p", [0.1, 0.6, 0.9])
def test_closed_forms_over_long_runs(bound, p, seed):
    _check(1_000_000, bound, p, 20.0, 4, seed)


def test_age_bounds_every_wait():
    d = deployment(encode_batch=8, rate=0.2, max_wait_ms=700.0)
    r = requests(poisson(2.0, 5000, 12), media=100)
    records = run(d, profile(encode=1e-9), r)
    waits = records.encode_start_ns - r.arrival_ns
    assert waits.max() == 700_000_000
    assert waits.min() >= 0


def test_round_robin_fills_more_batches_than_chance_would():
    """Arrivals per worker are then Erlang: P(full) at B = 4 is .69, .82, .90 for 2, 4, 6 workers, not .6."""
    for workers, expected in ((2, 0.69), (4, 0.82), (6, 0.90)):
        d = deployment(encode=workers, encode_batch=4, rate=6.0, dispatch="round_robin")
        records = run(d, profile(encode=1e-9), requests(poisson(6.0, 60_000, 13), media=100))
        assert records.stages["encode"].full.mean() == pytest.approx(expected, abs=0.01)

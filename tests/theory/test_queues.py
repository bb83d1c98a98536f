"""Waits against recursions (to the nanosecond) and against queueing theory (within three standard errors)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.theory.worlds import PER_TOKEN, close_to, deployment, poisson, profile, requests, run

N = 40_000
LONG = pytest.mark.long


def _tokens(mean, n, seed):
    """Exponential sizes, in whole tokens."""
    return np.maximum(1, np.rint(np.random.default_rng(seed).exponential(mean, n))).astype(np.int64)


def _lindley(arrival, service):
    """Starts of a single server: start = max(arrival, end of the one before)."""
    starts, free = [], 0
    for a, s in zip(arrival.tolist(), service.tolist(), strict=True):
        start = max(a, free)
        free = start + s
        starts.append(start)
    return np.array(starts)


def _kiefer_wolfowitz(arrival, service, servers):
    """Starts of `servers` servers with one line: the ordered vector of when each is free."""
    starts, free = [], [0] * servers
    for a, s in zip(arrival.tolist(), service.tolist(), strict=True):
        start = max(a, free[0])
        free[0] = start + s
        free.sort()
        starts.append(start)
    return np.array(starts)


def test_encode_waits_follow_lindley():
    r = requests(poisson(8.0, 5000, 1), media=_tokens(1000, 5000, 2))
    records = run(deployment(), profile(encode="tokens"), r)
    service = np.rint(r.media_tokens * PER_TOKEN * 1e9).astype(np.int64)
    assert np.array_equal(records.encode_start_ns, _lindley(r.arrival_ns, service))
    assert np.array_equal(records.encode_end_ns - records.encode_start_ns, service)


@pytest.mark.parametrize("where", ["local", "remote"])
def test_prefill_waits_follow_lindley(where):
    r = requests(poisson(8.0, 5000, 3), prompt=_tokens(1000, 5000, 4))
    d = deployment(prefill=1 if where == "remote" else 0)
    records = run(d, profile(prefill="tokens"), r)
    service = np.rint(r.prompt_tokens * PER_TOKEN * 1e9).astype(np.int64)
    assert np.array_equal(records.prefill_start_ns, _lindley(r.arrival_ns, service))


@pytest.mark.parametrize("servers", [2, 3, 5])
def test_the_remote_pool_follows_kiefer_wolfowitz(servers):
    r = requests(poisson(9.0 * servers, 5000, 5), prompt=_tokens(1000, 5000, 6))
    records = run(deployment(prefill=servers), profile(prefill="tokens"), r)
    service = np.rint(r.prompt_tokens * PER_TOKEN * 1e9).astype(np.int64)
    assert np.array_equal(records.prefill_start_ns, _kiefer_wolfowitz(r.arrival_ns, service, servers))


def test_d_d_1_never_waits_below_saturation_and_waits_longer_and_longer_above():
    below = run(deployment(), profile(encode=0.5), requests(np.arange(200) * 0.5, media=100))
    assert np.array_equal(below.encode_start_ns, below.requests.arrival_ns)
    above = run(deployment(), profile(encode=0.5), requests(np.arange(200) * 0.25, media=100))
    waits = above.encode_start_ns - above.requests.arrival_ns
    assert np.array_equal(waits, np.arange(200) * 250_000_000)


def _m_d_1(n, load, seed):
    r = requests(poisson(load, n, seed), media=100)
    records = run(deployment(), profile(encode=1.0), r)
    close_to((records.encode_start_ns - r.arrival_ns) / 1e9, load / (2 * (1 - load)))


def test_m_d_1_wait():
    _m_d_1(N, 0.7, 7)


def _m_m_1(n, load, seed):
    r = requests(poisson(load / (1000 * PER_TOKEN), n, seed), media=_tokens(1000, n, seed + 1))
    records = run(deployment(), profile(encode="tokens"), r)
    service = 1000 * PER_TOKEN
    # Whole tokens: the mean is kept, the variance nearly so.
    close_to((records.encode_start_ns - r.arrival_ns) / 1e9, load / (1 - load) * service, slack=0.002)


def test_m_m_1_wait():
    _m_m_1(N, 0.6, 8)


def _erlang_c(servers, offered):
    last = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return last / (sum(offered**k / math.factorial(k) for k in range(servers)) + last)


def _m_m_c(n, servers, load, seed):
    service = 1000 * PER_TOKEN
    r = requests(poisson(load * servers / service, n, seed), prompt=_tokens(1000, n, seed + 1))
    records = run(deployment(prefill=servers), profile(prefill="tokens"), r)
    expected = _erlang_c(servers, load * servers) * service / (servers * (1 - load))
    close_to((records.prefill_start_ns - r.arrival_ns) / 1e9, expected, slack=0.002)


@pytest.mark.parametrize("servers", [2, 4])
def test_m_m_c_wait(servers):
    _m_m_c(2 * N, servers, 0.7, 9)


def _bulk_wait(rate, service, bound):
    """Mean wait of M/D^(1,B)/1 by its chain at departures: q left behind -> max(q-B, 0) + Poisson(rate·service)."""
    size, mean = 400, rate * service
    arrivals = np.exp([k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(size)])
    chain = np.zeros((size, size))
    for q in range(size):
        left = max(q - bound, 0)
        chain[q, left:] = arrivals[: size - left]
    chain /= chain.sum(axis=1, keepdims=True)
    state = np.full(size, 1 / size)
    for _ in range(3000):
        state = state @ chain
    queue = np.maximum(np.arange(size) - bound, 0) * service + rate * service**2 / 2
    cycle = service + np.where(np.arange(size) == 0, 1 / rate, 0.0)
    return (state @ queue) / (state @ cycle) / rate


def _bulk(n, bound, rate, seed):
    r = requests(poisson(rate, n, seed), media=100)
    d = deployment(encode_batch=bound, fill_probability=0.0, rate=rate)
    records = run(d, profile(encode=1.0), r)
    close_to((records.encode_start_ns - r.arrival_ns) / 1e9, _bulk_wait(rate, 1.0, bound))


@pytest.mark.parametrize("bound", [2, 4])
def test_bulk_service_wait(bound):
    _bulk(N, bound, 0.7 * bound, 10)


@LONG
@pytest.mark.parametrize("seed", [100, 200, 300])
def test_waits_over_long_runs(seed):
    n = 1_000_000
    for load in (0.3, 0.8):
        _m_d_1(n, load, seed)
        _m_m_1(n, load, seed + 1)
        for servers in (2, 8):
            _m_m_c(n, servers, load, seed + 2)
    for bound in (2, 8, 16):
        _bulk(n, bound, 0.8 * bound, seed + 3)

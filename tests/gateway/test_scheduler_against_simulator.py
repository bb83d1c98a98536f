"""One policy, two clocks: the live scheduler on a fake clock gives the simulator's records."""

from __future__ import annotations

import numpy as np
import pytest

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.records import COLUMNS, Records
from has.core.requests import Requests
from has.core.stage import Stage
from has.gateway.scheduler import Scheduler
from has.latency.lookup import LatencyModel
from has.latency.memory import kv_capacity
from has.policy import RateEstimator
from has.sim.simulator import Simulator
from tests.gateway.fake_workers import FakeWorkers

ROUNDING_NS = 1000
LAST_POOL = {"disaggregated": "decode", "e_pd": "prefill_decode", "monolithic": "all"}


def random_profile(rng: np.random.Generator) -> Profile:
    """Latencies that grow with batch and tokens and fall with the share; some with rows beside and transfers."""
    rows = []

    def add(stage: str, shares, batches, tokens, latency, beside="none") -> None:
        rows.extend(
            {
                "stage": stage,
                "sm_percent": sm,
                "beside": beside,
                "batch": b,
                "tokens": t,
                "latency_s": float(latency(sm, b, t)),
            }
            for sm in shares
            for b in batches
            for t in tokens
        )

    e, p, d = rng.uniform(0.5, 2.0, 3)
    shares = (20, 50, 80, 100) if rng.random() < 0.8 else (100,)

    def encode(sm, b, t):
        return e * (0.02 + 0.0007 * b * t) * max(1.0, 55 / sm)

    def prefill(sm, b, t):
        return p * (0.013 + 0.0003 * b * t) * 100 / sm

    add("encode", shares, (1, 4, 8), (0, 64, 512), encode)
    add("prefill", shares, (1, 4), (0, 128, 2048), prefill)
    add("decode", (100,), (1, 8), (16, 1024), lambda sm, b, t: d * (0.004 + 0.0005 * b + 1e-6 * t))
    if rng.random() < 0.5:
        add("encode", shares, (1, 4, 8), (0, 64, 512), lambda *a: 1.3 * encode(*a), "prefill")
        add("prefill", shares, (1, 4), (0, 128, 2048), lambda *a: 1.2 * prefill(*a), "encode")
    if rng.random() < 0.6:
        add("preprocess", (100,), (1,), (0, 1024), lambda sm, b, t: 0.003 + 1.7e-5 * t)
    if rng.random() < 0.5:
        add("embedding_transfer", (100,), (1,), (0, 1024), lambda sm, b, t: 0.0011 + 2.3e-6 * t)
        add("kv_transfer", (100,), (1,), (0, 4096), lambda sm, b, t: 0.0017 + 3.1e-6 * t)
    return Profile.model_validate(
        {
            "metadata": {"version": 1, "device": "hand", "model": "m", "source": "measured"},
            "rows": rows,
        }
    )


def random_deployment(rng: np.random.Generator, topology: str) -> Deployment:
    def pick(*values):
        return values[int(rng.integers(len(values)))]

    fields = {
        "version": 1,
        "model": "m",
        "topology": topology,
        "slo": {"ttft_ms": 1000, "tpot_ms": 50},
        "dispatch": pick("random", "round_robin", "shortest_queue"),
        "rate": float(rng.uniform(2, 20)),
        "max_num_seqs": pick(2, 5, 256),
        "kv_tokens": pick(None, 6000),
        "max_queue": pick(None, None, 8),
        "preprocess_workers": pick(1, 3),
        "max_num_batched_tokens": pick(None, 700),
    }
    if topology != "monolithic":
        fields |= {
            "encode_batch": pick(1, 2, 4, 5),
            "fill_probability": pick(0.0, 0.4, 0.6, 0.9),
            "max_wait_ms": pick(None, 40.0, 300.0),
            "rate_estimate": pick("known", "known", "online"),
        }
    if topology == "disaggregated":
        offload = pick(0.0, 0.3, 0.5, 0.77, 1.0)
        alloc = {"encode": pick(1, 2, 3), "prefill": pick(1, 2) if offload else 0, "decode": pick(1, 2, 3)}
        fields |= {
            "prefill_offload": offload,
            "offload_unit": pick("request", "token"),
            "max_prefill_requests": pick(None, 1, 3),
            "sm_table": pick(
                None, "streams", [{"batch": 1, "encode_sm": 40}, {"batch": 3, "encode_sm": 100}]
            ),
        }
    elif topology == "e_pd":
        alloc = {"encode": pick(1, 2), "prefill_decode": pick(1, 2, 3)}
    else:
        alloc = {"all": pick(1, 2, 4)}
    return Deployment.model_validate({**fields, "alloc": alloc, "gpus": sum(alloc.values())})


def random_requests(rng: np.random.Generator, n: int) -> Requests:
    arrivals = np.cumsum(rng.exponential(1 / rng.uniform(2, 25), n))
    rows = []
    for arrival in arrivals:
        text = rng.random() < 0.2
        rows.append(
            {
                "arrival_s": float(arrival),
                "modality": "text" if text else "image",
                "media_tokens": 0 if text else int(rng.integers(30, 500)),
                "prompt_tokens": int(rng.integers(5, 900)),
                "output_tokens": int(rng.integers(1, 12)),
            }
        )
    return Requests.from_rows(rows)


def live(
    deployment: Deployment, latency: LatencyModel, requests: Requests, seed: int, *, continuous: bool = False
) -> Records:
    simulator = Simulator(latency)
    media_rate = deployment.rate * requests.media_share or None
    encoders = max(1, deployment.alloc.encode or 1)
    online = deployment.rate_estimate == "online"

    def observe():
        estimator = RateEstimator(media_rate / encoders if media_rate else None)
        return lambda now_s: estimator.arrive(now_s=now_s)

    scheduler = Scheduler(
        deployment,
        media_rate=media_rate,
        observe=observe if online else None,
        sm_table=simulator.sm_table(deployment).sm_table,
        preprocesses=latency.covers(Stage.PREPROCESS),
        kv_tokens=kv_capacity(deployment, latency.metadata, LAST_POOL[deployment.topology]),
        max_queue=deployment.max_queue,
        continuous=continuous,
        seed=seed,
    )
    return FakeWorkers(scheduler, deployment, latency, requests).run()


@pytest.mark.parametrize("topology", ["disaggregated", "e_pd", "monolithic"])
@pytest.mark.parametrize("seed", range(100))
def test_same_records(topology: str, seed: int) -> None:
    rng = np.random.default_rng([seed, sorted(LAST_POOL).index(topology)])
    deployment = random_deployment(rng, topology)
    requests = random_requests(rng, 40)
    latency = LatencyModel.from_profile(random_profile(rng))
    simulator = Simulator(latency)
    simulated = simulator.run(deployment, simulator.prepare(requests, seed))
    assert_same(live(deployment, latency, requests, seed), simulated)


@pytest.mark.parametrize("seed", range(30))
def test_as_many_are_refused_where_decode_brings_the_first_token(seed: int) -> None:
    """Engines do not end batches as one; with one request at each encoder and prefill worker that makes no difference."""
    rng = np.random.default_rng([seed, 7])
    fields = random_deployment(rng, "disaggregated").model_dump(mode="json", exclude_none=True)
    fields |= {"encode_batch": 1, "max_prefill_requests": 1, "max_num_seqs": 2, "max_queue": 4}
    deployment = Deployment.model_validate({**fields, "first_token": "decode"})
    requests = random_requests(rng, 80)
    latency = LatencyModel.from_profile(random_profile(rng))
    simulator = Simulator(latency)
    simulated = simulator.run(deployment, simulator.prepare(requests, seed))
    assert_same(live(deployment, latency, requests, seed, continuous=True), simulated)


def assert_same(lived: Records, simulated: Records) -> None:
    np.testing.assert_array_equal(lived.status, simulated.status)
    for column in COLUMNS:
        if column == "prefill_ready_ns":
            continue  # a ticket's own; seen through prefill_start
        ours, theirs = getattr(lived, column), getattr(simulated, column)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=ROUNDING_NS, err_msg=column)

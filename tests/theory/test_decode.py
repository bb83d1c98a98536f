"""Decode against what is known of it: constant steps, processor sharing, nobody lost on the way."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from has.core.deployment import Deployment
from tests.theory.worlds import close_to, deployment, poisson, profile, requests, run


def test_with_constant_steps_a_request_takes_its_steps():
    rng = np.random.default_rng(1)
    r = requests(poisson(20.0, 3000, 2), prompt=10, output=rng.integers(1, 60, 3000))
    records = run(deployment(decode=2), profile(decode=0.01), r)
    long = r.output_tokens > 1
    took = records.finish_ns - records.decode_start_ns
    assert np.array_equal(took[long], (r.output_tokens[long] - 1) * 10_000_000)
    # Who comes while a step runs waits for its end, and never longer.
    waits = (records.decode_start_ns - records.decode_ready_ns)[long]
    assert waits.min() >= 0
    assert waits.max() < 10_000_000
    assert np.all(records.finish_ns[~long] == records.first_token_ns[~long])


def _processor_sharing(n, load, seed):
    """A step of b·τ serves b sequences one token each: every one gets 1/b of the worker. M/G/1-PS, E[T] = E[S]/(1-ρ)."""
    step = 1e-3
    rng = np.random.default_rng(seed)
    output = rng.integers(200, 1000, n)
    service = (599.5 - 1) * step
    rows = [
        {"stage": "decode", "sm_percent": 100, "batch": b, "tokens": 100, "latency_s": b * step}
        for b in (1, 64)
    ]
    r = requests(poisson(load / service, n, seed + 1), prompt=10, output=output)
    records = run(deployment(), profile(decode=None, rows=rows), r)
    # The sequence in step when another joins makes that one wait: half a step or so of some hundred.
    close_to((records.finish_ns - records.decode_ready_ns) / 1e9, service / (1 - load), slack=0.005)


def test_steps_proportional_to_the_batch_are_processor_sharing():
    _processor_sharing(30_000, 0.6, 3)


@pytest.mark.long
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_processor_sharing_over_long_runs(load):
    _processor_sharing(400_000, load, 4)


BUSY = {
    "disaggregated": {"alloc": {"encode": 2, "prefill": 1, "decode": 2}, "encode_batch": 3, "gpus": 5},
    "e_pd": {"alloc": {"encode": 2, "prefill_decode": 3}, "encode_batch": 3, "gpus": 5},
    "monolithic": {"alloc": {"all": 5}, "gpus": 5},
}


@pytest.mark.parametrize("topology", BUSY)
def test_work_in_the_logs_is_work_in_the_records(topology):
    """Little's law in its exact form, and conservation: at each stage the requests in service, integrated
    over time, are the services of the requests, summed; who enters leaves; times never run backwards."""
    fields = {"version": 1, "model": "m", "topology": topology, "slo": {"ttft_ms": 1e6, "tpot_ms": 1e6}}
    if topology == "disaggregated":
        fields |= {"prefill_offload": 0.5, "sm_table": [{"batch": 1, "encode_sm": 40.0}]}
    d = Deployment.model_validate_json(json.dumps(fields | BUSY[topology] | {"rate": 6.0, "max_num_seqs": 6}))
    rng = np.random.default_rng(5)
    n = 4000
    r = requests(
        poisson(6.0, n, 6),
        media=rng.integers(1, 900, n),
        prompt=rng.integers(0, 400, n),
        output=rng.integers(1, 40, n),
    )
    records = run(d, profile(encode=0.2, prefill="tokens", decode=0.01), r)
    assert np.all(records.status == 1)

    def in_service(name, repeats=False):
        load = records.stages[name]
        return int(np.sum((load.end_ns - load.start_ns) * load.size)), load

    many = r.output_tokens > 1
    decoding = int(np.sum((records.finish_ns - records.decode_start_ns)[many]))
    if topology == "disaggregated":
        held, load = in_service("decode")
        assert held == decoding
        assert load.busy_ns == int(np.sum(load.end_ns - load.start_ns))
        ends = records.first_token_ns
        for route, name in enumerate(("prefill_local", "prefill_remote")):
            who = records.route == route
            assert in_service(name)[0] == int(np.sum((ends - records.prefill_start_ns)[who]))
    if topology != "monolithic":
        assert in_service("encode")[0] == int(np.sum(records.encode_end_ns - records.encode_start_ns))
        assert int(records.stages["encode"].size.sum()) == n
    assert records.stages["decode"].step_seqs == int(np.sum(r.output_tokens - 1))

    path = [r.arrival_ns, records.encode_start_ns, records.encode_end_ns, records.prefill_ready_ns]
    path = path if topology != "monolithic" else [r.arrival_ns, records.prefill_ready_ns]
    path += [records.prefill_start_ns, records.first_token_ns]
    for before, after in pairwise(path):
        assert np.all(after >= before)
    rest = (records.first_token_ns, records.decode_ready_ns, records.decode_start_ns, records.finish_ns)
    for before, after in pairwise(rest):
        assert np.all((after >= before)[many])

"""A service at one instant, for every topology."""

from __future__ import annotations

import pytest

from has.core.deployment import Deployment
from has.gateway.pools import Ticket
from has.gateway.scheduler import Scheduler
from has.gateway.snapshot import snapshot

PLANS = {
    "disaggregated": {
        "alloc": {"encode": 1, "prefill": 1, "decode": 2},
        "encode_batch": 2,
        "prefill_offload": 0.5,
        "sm_table": [{"batch": 1, "encode_sm": 50}],
    },
    "e_pd": {"alloc": {"encode": 2, "prefill_decode": 2}, "encode_batch": 2},
    "monolithic": {"alloc": {"all": 4}},
}
POOLS = {
    "disaggregated": {"preprocess": 2, "encode": 1, "prefill": 1, "decode": 2},
    "e_pd": {"preprocess": 2, "encode": 2, "prefill_decode": 2},
    "monolithic": {"preprocess": 2, "all": 4},
}


def deployment(topology: str = "disaggregated") -> Deployment:
    common = {"version": 1, "model": "tiny-image", "gpus": 4, "preprocess_workers": 2}
    slo = {"ttft_ms": 5000, "tpot_ms": 500}
    return Deployment.model_validate({**common, "slo": slo, "topology": topology, **PLANS[topology]})


@pytest.mark.parametrize("topology", POOLS)
def test_every_pool_is_there_with_its_workers(topology: str) -> None:
    scheduler = Scheduler(deployment(topology), media_rate=5.0, kv_tokens=1000)
    state = snapshot(scheduler, 0, None)
    assert {pool.name: len(pool.workers) for pool in state.pools} == POOLS[topology]
    assert all(worker.alive and worker.requests == 0 for pool in state.pools for worker in pool.workers)
    assert state.kv_tokens_total == 1000 * len(state.pools[-1].workers)
    place = "decode" if topology == "disaggregated" else "mixed"
    scheduler.lost(place, 0, 1.0)
    lost = snapshot(scheduler, 0, "why").pools[-1].workers
    assert [worker.alive for worker in lost] == [False] + [True] * (len(lost) - 1)


def test_the_sm_split_is_that_of_the_batch_that_runs() -> None:
    scheduler = Scheduler(deployment(), media_rate=5.0, preprocesses=False)
    for request in range(2):
        scheduler.arrive(Ticket(request, 1.0, True, 64, 10, 5), 1.0)
    waiting = snapshot(scheduler, 2, None)
    assert (waiting.waiting, waiting.running) == (2, 0)
    assert (waiting.encode_workers[0].waiting, waiting.encode_workers[0].encode_sm) == (2, 0.0)
    scheduler.advance(1.0)
    (worker,) = snapshot(scheduler, 2, None).encode_workers
    assert (worker.waiting, worker.encoding, worker.encode_sm, worker.prefill_sm) == (0, 2, 50.0, 50.0)
    assert worker.routed == 2
    scheduler.encoded(0, 2.0)
    (after,) = snapshot(scheduler, 2, None).encode_workers
    assert (after.encoding, after.encode_sm, after.prefill_sm) == (0, 0.0, 100.0)

"""From a deployment and a warm pool to a service that runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from has.core.deployment import Deployment
from has.core.profile import ProfileMetadata
from has.device.device_model import VIRTUAL_GPU
from has.errors import InfeasibleError
from has.gateway.observer import Observer
from has.gateway.scheduler import Scheduler, SmTable
from has.gateway.service import Service, Tap
from has.latency.memory import kv_capacity, memory_verdict
from has.policy import DeficitRouter, MicroBatcher, RateEstimator
from has.runtime.pool import WarmPool
from has.runtime.workers import PoolWorkers

LONGEST_CONTEXT = 4096
"""Tokens of one request a decode slot has room for, where nothing asks for more or less."""
KV_POOL = {"disaggregated": "decode", "e_pd": "prefill_decode", "monolithic": "all"}


def metadata_of(pool: WarmPool) -> ProfileMetadata:
    """What the pool's device and model say about memory, as a profile would."""
    facts = pool.facts
    return ProfileMetadata.model_validate(
        {
            "version": 1,
            "device": VIRTUAL_GPU.name,
            "model": pool.model,
            "source": "measured",
            "memory_bytes": VIRTUAL_GPU.memory_bytes,
            "weights_bytes": facts["weights_bytes"],
            "kv_bytes_per_token": facts["kv_bytes_per_token"],
        }
    )


def compile_policies() -> None:
    """Have the policies' kernels compiled or loaded: the first request should not wait for it."""
    batcher: MicroBatcher[int] = MicroBatcher(2, 1.0, max_wait_s=1.0)
    batcher.add(0, now_s=0.0)
    batcher.next_due_s()
    batcher.take(now_s=2.0)
    DeficitRouter("0.5", unit="token").route(cost=2)
    estimator = RateEstimator(1.0)
    estimator.arrive(now_s=0.0)
    estimator.rate(now_s=1.0)


async def open_service(
    deployment: Deployment,
    pool: WarmPool,
    *,
    media_rate: float | None,
    online: bool,
    sm_table: SmTable = "streams",
    max_queue: int | None = None,
    backpressure: bool = False,
    context: int = LONGEST_CONTEXT,
    encoder_cache_bytes: int = 0,
    seed: int = 0,
    observer: Observer | None = None,
    tap: Tap | None = None,
) -> Service:
    """Give the pool its roles and put a service in front of it.

    media_rate  media requests per second expected, None if nobody knows
    online      learn the rate at each encoder from its arrivals (media_rate is then where it starts)
    context     most tokens of one request
    encoder_cache_bytes  embeddings each encode worker keeps, by the content of the media (0: none)

    Raises MissingError for what the bundled runtime does not run, InfeasibleError where memory does
    not suffice.
    """
    compile_policies()
    metadata = metadata_of(pool)
    verdict = memory_verdict(deployment, metadata)
    if not verdict.fits:
        raise InfeasibleError(verdict.reason)
    kv_tokens = kv_capacity(deployment, metadata, KV_POOL[deployment.topology])
    if kv_tokens == 0:
        raise InfeasibleError("the weights leave a decoding worker no memory for KV caches")
    context = min(context, pool.facts["max_positions"], context if kv_tokens is None else kv_tokens)
    encoders = max(1, deployment.alloc.encode or 1)

    def observe() -> Callable[[float], float | None]:
        estimator = RateEstimator(media_rate / encoders if media_rate else None)
        return lambda now_s: estimator.arrive(now_s=now_s)

    scheduler = Scheduler(
        deployment,
        media_rate=media_rate,
        observe=observe if online else None,
        sm_table=sm_table,
        kv_tokens=kv_tokens,
        max_queue=max_queue if max_queue is not None else deployment.max_queue,
        backpressure=backpressure,
        seed=seed,
    )
    settings: dict[str, Any] = {
        "seed": seed,
        "streams": scheduler.streams,
        "slots": deployment.max_num_seqs,
        "kv_tokens": kv_tokens,
        "max_tokens": context,
        "encoder_cache_bytes": encoder_cache_bytes,
    }
    await pool.configure(deployment, settings)
    port = PoolWorkers(
        pool,
        embedding_bytes_per_token=pool.facts["embedding_bytes_per_token"],
        kv_bytes_per_token=pool.facts["kv_bytes_per_token"],
        mixed=deployment.topology != "disaggregated",
    )
    return Service(
        scheduler,
        port,
        model=pool.model,
        max_model_len=context,
        eos=pool.facts["eos"],
        observer=observer,
        tap=tap,
    )

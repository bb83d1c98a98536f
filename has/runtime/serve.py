"""`has deploy` on the bundled runtime: a pool, a service and the HTTP API, until told to stop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.device.cpu import nominal_table
from has.gateway.descriptors import allow_files
from has.gateway.front import Front, Say, serve_deployment, unfailing, with_age_cap
from has.gateway.observer import Observer
from has.gateway.scheduler import SmTable
from has.gateway.server import DRAIN_S, listen
from has.gateway.service import Service
from has.models.names import BENCH, is_bundled
from has.policy import SmPartitioner
from has.runtime.pool import WarmPool, plan_roles, refuse_unserved
from has.runtime.priority import go_first
from has.runtime.start import open_service

ENCODER_CACHE_BYTES = 16 << 20
"""Embeddings each encode worker keeps of media it has seen, an eighth of a virtual GPU's memory."""


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def sm_table_of(deployment: Deployment, profile: Profile | None) -> SmTable:
    """The table in force: the deployment's, else the profile's, else no partition."""
    if deployment.sm_table is not None:
        return deployment.sm_table
    if profile is None or deployment.topology != "disaggregated":
        return "streams"
    partitioner = SmPartitioner.from_profile(
        profile, deployment.encode_slowdown_budget, deployment.encode_batch or 1
    )
    return partitioner.sm_table


def serve(
    deployment: Deployment,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: str | None = None,
    served_model_names: Sequence[str] = (),
    allowed_media_domains: Sequence[str] = (),
    profile: Profile | None = None,
    total_share: float | None = None,
    drain_s: float = DRAIN_S,
    say: Say = to_stderr,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve `deployment` on http://host:port until SIGINT or SIGTERM, then drain and end.

    Blocks; to be called from the main thread. `on_ready` is called with the base URL once a chat
    would be answered. `port` 0 takes any free one. Raises MissingError for a deployment that the
    bundled runtime does not run, InfeasibleError where its memory does not suffice, RunError where
    the port is taken or the workers do not start; leaves nothing behind in any case.
    """
    say = unfailing(say)
    refuse_unserved(deployment.model, deployment.gpus)
    plan_roles(deployment, deployment.gpus)
    deployment = with_age_cap(deployment, say)
    allow_files()
    sock = listen(host, port)
    try:
        pool = _warm_pool(deployment, total_share, say)
        front = Front(sock, say, api_key, served_model_names, allowed_media_domains, drain_s, on_ready)
        try:
            asyncio.run(_serve(deployment, pool, front, sm_table_of(deployment, profile)))
        finally:
            pool.close()
    finally:
        sock.close()


def _warm_pool(deployment: Deployment, total_share: float | None, say: Say) -> WarmPool:
    from has.device.nominal import kept

    table = None
    if is_bundled(deployment.model):
        if kept(deployment.model, total_share) is None:
            say(f"measuring what {deployment.model} costs on this CPU, once (15 to 30 s)")
        table = nominal_table(deployment.model, BENCH, total_share=total_share, say=say)
    return WarmPool(deployment.model, deployment.gpus, nominal=table)


async def _serve(deployment: Deployment, pool: WarmPool, front: Front, sm_table: SmTable) -> None:
    go_first()

    def start(observer: Observer, max_queue: int) -> Awaitable[Service]:
        return open_service(
            deployment,
            pool,
            media_rate=deployment.rate,
            online=deployment.rate_estimate != "known" or deployment.rate is None,
            sm_table=sm_table,
            max_queue=max_queue,
            backpressure=True,
            encoder_cache_bytes=ENCODER_CACHE_BYTES,
            observer=observer,
        )

    try:
        await serve_deployment(deployment, front, start)
    finally:
        await pool.rest()

"""A service at one instant, read off its scheduler: for metrics and the status page."""

from __future__ import annotations

from has.gateway.observer import EncodeWorkerState, PoolState, ServiceState, WorkerState
from has.gateway.pools import EncodeWorker
from has.gateway.scheduler import Scheduler


def snapshot(scheduler: Scheduler, requests: int, not_ready: str | None) -> ServiceState:
    """`requests`: how many are neither answered whole nor given up."""
    decode = scheduler.decode
    queues = {
        "preprocess": len(scheduler.preprocess.queue),
        "encode": sum(len(encoder.batcher) for encoder in scheduler.encoders),
        "prefill_local": sum(len(encoder.local_queue) for encoder in scheduler.encoders),
        "prefill_remote": len(scheduler.remote.queue),
    }
    return ServiceState(
        running=requests - scheduler.unanswered,
        waiting=scheduler.unanswered,
        queues=queues,
        encode_workers=[_encode_worker(encoder, scheduler.streams) for encoder in scheduler.encoders],
        pools=_pools(scheduler),
        kv_tokens_used=sum(decode.reserved(worker) for worker in range(len(decode.held))),
        kv_tokens_total=None if decode.kv_tokens is None else decode.kv_tokens * len(decode.held),
        not_ready=not_ready,
    )


def _encode_worker(encoder: EncodeWorker, streams: bool) -> EncodeWorkerState:
    router, share = encoder.router, encoder.share_percent
    return EncodeWorkerState(
        waiting=len(encoder.batcher),
        gap_s=encoder.batcher.gap_s,
        rate_rps=encoder.batcher.rate,
        encode_sm=share,
        prefill_sm=100.0 if streams else 100.0 - share,
        remote=router.remote if router else 0,
        routed=router.total if router else 0,
        offload_deviation=float(router.deviation) if router else 0.0,
        encoding=len(encoder.encoder.running),
        prefilling=len(encoder.prefiller.running),
    )


def _pools(scheduler: Scheduler) -> list[PoolState]:
    """Every pool that has workers, in the order of a request's way."""
    disaggregated = scheduler.deployment.topology == "disaggregated"
    last = {"disaggregated": "decode", "e_pd": "prefill_decode", "monolithic": "all"}
    encoders, encoding = scheduler.encoders, scheduler.to_encoder.alive
    pools = [
        PoolState(
            "preprocess", [WorkerState(lane.alive, len(lane.running)) for lane in scheduler.preprocess.lanes]
        ),
        PoolState(
            "encode",
            [
                WorkerState(encoding[e.index], len(e.encoder.running) + len(e.prefiller.running))
                for e in encoders
            ],
        ),
        PoolState("prefill", [WorkerState(lane.alive, len(lane.running)) for lane in scheduler.remote.lanes]),
        PoolState(
            last[scheduler.deployment.topology],
            [
                WorkerState(alive, len(held), scheduler.decode.reserved(worker))
                for worker, (alive, held) in enumerate(
                    zip(
                        scheduler.decode.alive if disaggregated else scheduler.to_mixed.alive,
                        scheduler.decode.held,
                        strict=True,
                    )
                )
            ],
        ),
    ]
    return [pool for pool in pools if pool.workers]

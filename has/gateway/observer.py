"""What a service tells those who watch it. The base observer hears everything and does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EncodeWorkerState:
    """One encode worker now: queue and rates of its batcher, SM split, its router's count, what it works on."""

    waiting: int
    gap_s: float | None
    rate_rps: float | None
    encode_sm: float
    prefill_sm: float
    remote: int
    routed: int
    offload_deviation: float
    encoding: int = 0
    prefilling: int = 0


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker now: how many requests it holds, and the KV tokens they reserve where it holds KV."""

    alive: bool
    requests: int
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool as a deployment names it, or the preprocessing servers."""

    name: str
    workers: Sequence[WorkerState]


@dataclass(frozen=True, slots=True)
class ServiceState:
    """A service now. `running` requests have their first token, `waiting` ones do not; `queues` maps a stage
    to the requests that wait for it; `not_ready` says why a chat would not be served, if so."""

    running: int = 0
    waiting: int = 0
    queues: Mapping[str, int] = field(default_factory=dict)
    encode_workers: Sequence[EncodeWorkerState] = ()
    kv_tokens_used: int | None = None
    kv_tokens_total: int | None = None
    pools: Sequence[PoolState] = ()
    not_ready: str | None = None


class Observer:
    """Told of events as they happen; must not block. Times in seconds."""

    def encode_launched(self, size: int, reason: str) -> None:
        """An encode batch of `size` requests started, because `full`, `gap`, `age` or `drain`."""

    def encoded(self, media: int, known: int) -> None:
        """An encode batch of `media` items ended, of which `known` were not encoded anew."""

    def stage_done(self, stage: str, wait_s: float, service_s: float) -> None:
        """A request (preprocess) or a batch (others) waited and was served: stages as figures name them."""

    def routed(self, remote: bool, tokens: int) -> None:
        """A prefill was sent to the remote pool, or stays."""

    def refused(self, reason: str) -> None:
        """A request was turned away."""

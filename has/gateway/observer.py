"""What a service tells those who watch it. The base observer hears everything and does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EncodeWorkerState:
    """One encode worker now: queue and rates of its batcher, SM split, its router's count."""

    waiting: int
    gap_s: float | None
    rate_rps: float | None
    encode_sm: float
    prefill_sm: float
    remote: int
    routed: int
    offload_deviation: float


@dataclass(frozen=True, slots=True)
class ServiceState:
    """A service now. `queues` maps a stage to the requests that wait for it."""

    running: int = 0
    waiting: int = 0
    queues: Mapping[str, int] = field(default_factory=dict)
    encode_workers: Sequence[EncodeWorkerState] = ()
    kv_tokens_used: int | None = None
    kv_tokens_total: int | None = None


class Observer:
    """Told of events as they happen; must not block. Times in seconds."""

    def encode_launched(self, size: int, reason: str) -> None:
        """An encode batch of `size` requests started, because `full`, `gap`, `age` or `drain`."""

    def stage_done(self, stage: str, wait_s: float, service_s: float) -> None:
        """A request (preprocess) or a batch (others) waited and was served: stages as figures name them."""

    def routed(self, remote: bool, tokens: int) -> None:
        """A prefill was sent to the remote pool, or stays."""

    def refused(self, reason: str) -> None:
        """A request was turned away."""

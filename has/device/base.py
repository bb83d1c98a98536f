"""What a device is asked, and what it answers: work in, result and span out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Work:
    """One batch of one stage, as a lane runs it.

    stage: encode, prefill or decode. batch: requests. tokens: per request (mean over the batch), as profiles
    count them: encode media tokens, prefill prompt + media tokens, decode context.
    share_percent: SMs asked for. A prefill gets at most what a running encode batch leaves.
    ready_s: when it could have started (time.monotonic); None: since the lane's previous work ended.
    """

    stage: str
    batch: int
    tokens: float
    share_percent: float = 100.0
    ready_s: float | None = None


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of a worker that mixes stages (monolithic, prefill_decode).

    decode_batch sequences of mean context decode_tokens make one token each; every pair of `chunks` is a
    request's (tokens done before, tokens of this chunk); every entry of `encodes` is the media tokens of a
    request that is encoded in it.
    """

    decode_batch: int = 0
    decode_tokens: float = 0.0
    chunks: tuple[tuple[int, int], ...] = ()
    encodes: tuple[int, ...] = ()
    ready_s: float | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """When a work ran on the device. Times are of time.monotonic, the same clock in every process.

    end_s is the device's own end: what follows is ready at it, however late the host noticed.
    ratio: the duration the host really needed / the duration the device meant; 1.0 is a quiet host.
    share_percent: SMs that the work had, where they were its own; None where the device does not partition.
    """

    start_s: float
    end_s: float
    ratio: float
    share_percent: float | None = None

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


class Lane(Protocol):
    """One queue of a GPU (a stream on its own SMs). Works of a lane run one after the other."""

    name: str

    def run(self, fn: Callable[[], T], work: Work | Iteration) -> tuple[T, Span]:
        """Compute `fn()` as `work`; return at its end on the device. An exception of `fn` passes through."""
        ...


class Gpu(Protocol):
    """One GPU, real or virtual."""

    @property
    def lanes(self) -> dict[str, Lane]: ...

    def offer(self, share_percent: float) -> float:
        """The SM share that asking for `share_percent` really gives."""
        ...

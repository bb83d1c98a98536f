"""The lanes of a CUDA device: stages on streams of their own, timed by events.

Not run on a GPU yet: held to a recorded fake.

    with CudaGpu(device, partition, TorchTimer(device.index)) as gpu:
        embeddings, span = gpu.lanes["encode"].run(lambda: model.encode(batch), Work("encode", 4, 576, 40))

A work is launched on the stream of its lane between two events, and `run` returns when the second has passed. A span is
the GPU's own: events count its time from one anchor whose instant on the host's clock is known, so spans of all lanes and
of other processes lie on one time line.

Encode takes the pair of green contexts nearest to the share it asks for; a prefill that finds an encode running takes the
other side of that pair, else the whole GPU. A kernel that runs keeps its SMs: a split changes with the next work, not within
one. `streams`, or a device without green contexts: both on the whole GPU, on streams of different priority where the device
has them, which is not spatial.

Every `run` waits for its end, and holds what it was given until then: so a tensor made on one lane's stream and used on
another's is neither read too early nor handed out again too soon, without `record_stream`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self, TypeVar

from has.device.base import Iteration, Span, Work
from has.device.cuda import CudaDevice, SmPartition
from has.errors import RunError

T = TypeVar("T")

LANES = ("encode", "prefill", "decode", "mixed")
ANCHOR_S = 10.0
"""How old the anchor of a lane's times may be: the clocks of GPU and host drift apart."""


class Timer(Protocol):
    """What is needed of torch.cuda on one device."""

    def stream(self, handle: int | None = None, priority: int = 0) -> Any:
        """A stream: that of a green context by its handle, else a new one (a lower priority number goes first)."""

    def priorities(self) -> tuple[int, int]:
        """(least, greatest) priority that streams can have; equal where there is only one."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Launch on `stream` while open."""

    def record(self, stream: Any) -> Any:
        """An event on `stream`, after all that was launched on it."""

    def wait(self, event: Any) -> None:
        """Until the event has passed."""

    def between_s(self, first: Any, second: Any) -> float:
        """Seconds of the GPU's time between two events that have passed."""


class TorchTimer:
    """torch.cuda."""

    def __init__(self, index: int) -> None:
        import torch

        self._torch: Any = torch  # its stubs for streams and events say less than is there
        self._device = torch.device("cuda", index)

    def stream(self, handle: int | None = None, priority: int = 0) -> Any:
        if handle is not None:
            return self._torch.cuda.ExternalStream(handle, device=self._device)
        return self._torch.cuda.Stream(device=self._device, priority=priority)

    def priorities(self) -> tuple[int, int]:
        least, greatest = self._torch.cuda.Stream.priority_range()
        return int(least), int(greatest)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        opened: AbstractContextManager[Any] = self._torch.cuda.stream(stream)
        return opened

    def record(self, stream: Any) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def wait(self, event: Any) -> None:
        event.synchronize()

    def between_s(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second)) / 1e3


class CudaGpu:
    """One CUDA device with its lanes. partition: None shares all SMs (streams). Closing it closes the partition."""

    cold = True
    """A new shape grows the stream's own allocator pool, and cuBLAS sets itself up on each stream."""

    def __init__(
        self,
        device: CudaDevice,
        partition: SmPartition | None,
        timer: Timer,
        *,
        streams: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.device = device
        self.partition = partition
        self.timer = timer
        self.streams = streams
        self.clock = clock
        self.encoding: float | None = None
        """Share of the encode that runs on a pair now."""
        self.lock = threading.Lock()
        least, greatest = timer.priorities()
        self.spatial = partition is not None
        self.prioritised = least != greatest
        self._whole = {
            # Encode feeds the prefill of the next requests; decode has a deadline a token.
            name: timer.stream(priority=greatest if name in ("encode", "decode") else least)
            for name in LANES
        }
        self._wrapped: dict[int, Any] = {}
        self.lanes: dict[str, CudaLane] = {name: CudaLane(self, name) for name in LANES}

    def offer(self, share_percent: float) -> float:
        """The SM share that asking for it gives; 100 is the whole GPU."""
        if self.partition is None or share_percent >= 100:
            return 100.0
        return self.partition.offer(share_percent)

    def given(self, stage: str, share_percent: float) -> float:
        """The share that a work of `stage` has when it asks for this, with no encode beside it."""
        with self.lock:
            return self.stream_for(Work(stage, 1, 0, share_percent))[1]

    def rest(self, stage: str, share_percent: float) -> float:
        """What a work beside one of `stage` that asks for this is to ask for, to be on the other side of its pair.

        100 less the share that `stage` is given would not do: a split may leave SMs in neither part, and another
        pair can be nearer to that.
        """
        if stage == "prefill":
            return self.offer(100.0 - share_percent)
        return 100.0 - self.offer(share_percent)

    def cancel(self, lane: str) -> None:
        """Nothing to do: a kernel that was launched runs to its end, which is soon."""

    def stream_for(self, work: Work | Iteration) -> tuple[Any, float]:
        """(stream, share of the SMs it has) for a work that starts now."""
        stage = work.stage if isinstance(work, Work) else "mixed"
        whole = self._whole[stage], 100.0
        if self.partition is None or self.streams or not isinstance(work, Work):
            return whole
        if stage in ("encode", "decode") and work.share_percent < 100:  # decode: while it is profiled
            pair = self.partition.pair(work.share_percent)
            return self._external(pair.encode_stream), 100.0 * pair.encode_sms / self.device.sm_count
        if stage == "prefill" and (self.encoding is not None or work.share_percent < 100):
            beside = self.encoding if self.encoding is not None else 100.0 - work.share_percent
            pair = self.partition.pair(beside)
            return self._external(pair.prefill_stream), 100.0 * pair.prefill_sms / self.device.sm_count
        return whole

    def _external(self, handle: Any) -> Any:
        number = int(handle)
        if number not in self._wrapped:
            self._wrapped[number] = self.timer.stream(number)
        return self._wrapped[number]

    def close(self) -> None:
        self._wrapped.clear()
        if self.partition is not None:
            self.partition.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CudaLane:
    """One lane. `run` is called by one thread at a time."""

    def __init__(self, gpu: CudaGpu, name: str) -> None:
        self.name = name
        self._gpu = gpu
        self._anchor: tuple[Any, float] | None = None

    def run(self, fn: Callable[[], T], work: Work | Iteration) -> tuple[T, Span]:
        """Launch `fn()` as `work`, wait for its end; its result and when it ran. What `fn` raises passes through.

        `ratio` is 1: nothing is paced here, and whether a measurement counts is NVML's to say (nvml.noise).
        """
        gpu, timer = self._gpu, self._gpu.timer
        encoding = self.name == "encode"
        with gpu.lock:
            stream, share = gpu.stream_for(work)
            if encoding:
                gpu.encoding = share if share < 100 else None
        try:
            anchor, anchor_s = self._anchored(stream)
            with timer.on(stream):
                first = timer.record(stream)
                result = fn()
                last = timer.record(stream)
            timer.wait(last)
        except RuntimeError as error:
            if "CUDA" in str(error) or "out of memory" in str(error):
                raise RunError(f"the GPU failed in {self.name}: {str(error).splitlines()[0]}") from error
            raise
        finally:
            if encoding:
                with gpu.lock:
                    gpu.encoding = None
        start_s = anchor_s + timer.between_s(anchor, first)
        end_s = anchor_s + timer.between_s(anchor, last)
        return result, Span(start_s, end_s, 1.0, share if gpu.partition is not None else None)

    def _anchored(self, stream: Any) -> tuple[Any, float]:
        """An event and its instant on the host's clock, at most ANCHOR_S old."""
        gpu = self._gpu
        if self._anchor is None or gpu.clock() - self._anchor[1] > ANCHOR_S:
            event = gpu.timer.record(stream)
            gpu.timer.wait(event)
            self._anchor = event, gpu.clock()
        return self._anchor

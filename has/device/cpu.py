"""The CPU device: virtual GPUs that compute for real and end on a deadline.

    table = nominal_table("tiny-image", has.models.names.BENCH)   # once, in the parent; kept in the user's cache
    gpu = open_gpu(0, "tiny-image", nominal=table, seed=7)       # in each worker process, after host.settle()
    embeddings, span = gpu.lanes["encode"].run(lambda: model.encode(batch), Work("encode", 4, 64, 40, ready_s))

A lane starts a work when it became ready, or when the lane's previous work ended if that is later, but never
more than 30 ms ago: so the host's own delays below that leave no trace, and larger ones show. It computes, then
waits until the device would be done and returns. Lanes of one GPU are threads of one process; they share its SMs
(device_model.py) and are repriced against each other (progress.py). `span.ratio` feeds the gate (gate.py).
"""

from __future__ import annotations

import hashlib
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from has.device import host
from has.device import nominal as _nominal
from has.device.base import Iteration, Span, Work
from has.device.calibrate import nominal_table
from has.device.device_model import VIRTUAL_GPU, DeviceModel
from has.device.nominal import Nominal
from has.device.progress import Progress
from has.errors import InputError, RunError

T = TypeVar("T")

__all__ = ["CREDIT_S", "LANES", "Cancelled", "VirtualGpu", "VirtualLane", "nominal_table", "open_gpu"]

CREDIT_S = 0.030
"""How far back a start may lie."""
LANES = ("encode", "prefill", "decode", "mixed")


class Cancelled(RunError):
    """The wait of a lane was cut short by `VirtualGpu.cancel`."""


class VirtualGpu:
    """One virtual GPU: four lanes over one slice of the CPU.

    nominal: what works cost. model: the device model. streams: encode and prefill hold all SMs together (no
    partition); may be changed between works. cold: no, a first run lasts as long as others by its pace. seed: of the jitter, which differs per GPU `index` and lane.
    """

    cold = False

    def __init__(
        self,
        nominal: Nominal,
        model: DeviceModel = VIRTUAL_GPU,
        *,
        index: int = 0,
        seed: int = 0,
        streams: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.nominal = nominal
        self.model = model
        self.streams = streams
        self.index = index
        self.clock = clock
        self.changed = threading.Condition()
        self.progress: Progress[Work | Iteration] = Progress(self._rates, history_s=2 * CREDIT_S)
        self.lanes: dict[str, VirtualLane] = {name: VirtualLane(self, name, seed) for name in LANES}

    def offer(self, share_percent: float) -> float:
        """The share that asking for `share_percent` really gives (whole virtual SMs)."""
        return self.model.offer(share_percent)

    def given(self, stage: str, share_percent: float) -> float:
        """The share that a work of `stage` has when it asks for this: that of `offer`, whatever the stage."""
        return self.offer(share_percent)

    def rest(self, stage: str, share_percent: float) -> float:
        """What a work beside one of `stage` that asks for this is to ask for: the SMs that are left."""
        return 100.0 - self.offer(share_percent)

    def cancel(self, lane: str) -> None:
        """End the work of `lane` now, if it has one: its `run` raises Cancelled once its computation is done."""
        with self.changed:
            self.lanes[lane].cancelled = True
            self.changed.notify_all()

    def meant_s(self, work: Work | Iteration) -> float:
        """How long `work` lasts alone on this GPU, without jitter."""
        if isinstance(work, Iteration):
            return self._iteration_s(work)
        rate = self._rates({work.stage: work})[work.stage]
        return self.nominal.seconds(work.stage, work.batch, work.tokens) / rate if rate > 0 else math.inf

    def amount(self, work: Work | Iteration) -> float:
        """What a work has to do, in seconds at rate 1."""
        if isinstance(work, Iteration):
            return self._iteration_s(work)
        return self.nominal.seconds(work.stage, work.batch, work.tokens)

    def _whole_s(self, stage: str, batch: int, tokens: float) -> float:
        return self.meant_s(Work(stage, batch, tokens))

    def _iteration_s(self, it: Iteration) -> float:
        """A decode step, plus the chunks, plus what earlier context adds to them, plus the encodes.

        T_decode(b, context) + T_prefill(n, mean chunk)
        + Σ over continued chunks [T_prefill(1, done+chunk) - T_prefill(1, done) - T_prefill(1, chunk) + T_prefill(1, 0)]
        + Σ T_encode(1, media tokens)
        """
        seconds = 0.0
        if it.decode_batch:
            seconds += self._whole_s("decode", it.decode_batch, it.decode_tokens)
        if it.chunks:
            seconds += self._whole_s("prefill", len(it.chunks), sum(c for _, c in it.chunks) / len(it.chunks))
        for done, chunk in it.chunks:
            if done:
                prefill = [self._whole_s("prefill", 1, n) for n in (done + chunk, done, chunk, 0)]
                seconds += prefill[0] - prefill[1] - prefill[2] + prefill[3]
        return seconds + sum(self._whole_s("encode", 1, tokens) for tokens in it.encodes)

    def _share(self, work: Work, running: Mapping[str, Work | Iteration]) -> float:
        """Share of SMs (0..1) that a work has now: a prefill gets at most what a running encode leaves."""
        asked = self.offer(work.share_percent)
        encode = running.get("encode")
        if work.stage == "prefill" and isinstance(encode, Work) and not self.streams:
            asked = min(asked, 100.0 - self.offer(encode.share_percent))
        return asked / 100.0

    def _rates(self, running: Mapping[str, Work | Iteration]) -> dict[str, float]:
        alone: dict[str, float] = {}
        used: dict[str, float] = {}
        for lane, work in running.items():
            if isinstance(work, Iteration):
                alone[lane], used[lane] = 1.0, 1.0
                continue
            stage = self.model.stage(work.stage)
            share, occupancy = self._share(work, running), stage.occupancy(work.batch, work.tokens)
            alone[lane], used[lane] = stage.rate(share, occupancy), min(share, occupancy)
        total = sum(used.values())
        return {
            lane: rate
            if isinstance(work := running[lane], Iteration)
            else rate / self.model.stage(work.stage).slowdown(used[lane], total - used[lane])
            for lane, rate in alone.items()
        }


class VirtualLane:
    """One lane of a virtual GPU. `run` is called by one thread at a time."""

    def __init__(self, gpu: VirtualGpu, name: str, seed: int) -> None:
        self.name = name
        self.cancelled = False
        self._gpu = gpu
        self._previous_end_s = -math.inf
        words = f"{seed} {gpu.index} {name}".encode()
        self._jitter = random.Random(int.from_bytes(hashlib.sha256(words).digest()[:8], "big"))

    def run(self, fn: Callable[[], T], work: Work | Iteration) -> tuple[T, Span]:
        """Compute `fn()` and return its result with the span at the work's end on the device.

        Raises what `fn` raises (the lane is free again at once), or Cancelled.
        """
        gpu = self._gpu
        amount = gpu.amount(work) * math.exp(self._jitter.gauss(0.0, gpu.model.jitter))
        with gpu.changed:
            self.cancelled = False
            now = gpu.clock()
            ready_s = work.ready_s
            if ready_s is None:
                ready_s = self._previous_end_s if now - self._previous_end_s <= CREDIT_S else now
            gpu.progress.start(self.name, work, amount, max(ready_s, self._previous_end_s, now - CREDIT_S))
            gpu.changed.notify_all()
        try:
            result = fn()
            start_s, end_s = self._finish()
        except BaseException:
            with gpu.changed:
                self._previous_end_s = gpu.progress.release(self.name, gpu.clock())[1]
                gpu.changed.notify_all()
            raise
        self._previous_end_s = end_s
        real_s = max(gpu.clock(), end_s) - start_s
        return result, Span(start_s, end_s, real_s / max(end_s - start_s, 1e-9))

    def _finish(self) -> tuple[float, float]:
        """Wait until the device is done, by what all lanes have entered so far. Returns (start_s, end_s)."""
        gpu = self._gpu
        with gpu.changed:
            while not self.cancelled:
                left_s = gpu.progress.end_s(self.name) - gpu.clock()
                if left_s <= 0:
                    return gpu.progress.release(self.name)
                gpu.changed.wait(None if math.isinf(left_s) else left_s)
        raise Cancelled(f"the work on lane {self.name} was cancelled")


def open_gpu(
    index: int,
    model: str,
    *,
    nominal: Nominal | None = None,
    total_share: float | None = None,
    seed: int = 0,
    streams: bool = False,
) -> VirtualGpu:
    """Virtual GPU `index` (0..7) for `model`. nominal: its table, else the one kept on this machine.

    Raises MissingError where no table is given and none is kept.
    """
    if not 0 <= index < host.MAX_VIRTUAL_GPUS:
        raise InputError(
            "no such virtual GPU",
            where="argument",
            field="index",
            value=index,
            allowed=f"0..{host.MAX_VIRTUAL_GPUS - 1}",
        )
    return VirtualGpu(
        nominal or _nominal.require(model, total_share), index=index, seed=seed, streams=streams
    )

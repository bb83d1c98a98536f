"""A virtual GPU whose clock moves when, and only when, a lane waits."""

from __future__ import annotations

import threading
from dataclasses import replace

from has.device.cpu import VirtualGpu
from has.device.device_model import VIRTUAL_GPU, DeviceModel
from has.device.nominal import Costs, Nominal

CALM = replace(VIRTUAL_GPU, jitter=0.0)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Instant(threading.Condition):
    """Waiting takes no time of ours."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None, "the lane would wait for ever"
        self._clock.now += timeout
        return True


def table() -> Nominal:
    """20 ms of CPU an encoded item of 64 tokens, 0.2 ms a prefilled token, 5 ms + 0.25 ms a sequence decoded."""
    encode = Costs((1, 8), (64, 128), ((0.02, 0.04), (0.16, 0.32)))
    prefill = Costs((1, 8), (64, 128), ((0.0128, 0.0256), (0.1024, 0.2048)))
    decode = Costs((1, 9), (64,), ((0.00525,), (0.00725,)))
    return Nominal("toy", 0.8, 0.2, {"encode": encode, "prefill": prefill, "decode": decode})


def gpu(model: DeviceModel = CALM, **options) -> tuple[VirtualGpu, Clock]:
    clock = Clock()
    made = VirtualGpu(table(), model, clock=clock, **options)
    made.changed = Instant(clock)
    return made, clock

"""What stands where a GPU and a model on it would: a GPU whose times follow a formula, on a recorded driver."""

from __future__ import annotations

import threading
import time
from typing import Any

from has.device import nvml
from has.profiler.cuda import in_this_process, profile_cuda
from has.profiler.transfers import PIECE_BYTES
from tests.device.fake_driver import L40S, FakeDriver, FakeNvml, FakeTimer

FACTS = {
    "media_unit": 4,
    "weights_bytes": {"encoder": 10, "lm": 20},
    "kv_bytes_per_token": 57344,
    "kv_heads": 4,
    "embedding_bytes_per_token": 16,
    "dtype": "bfloat16",
}


class Gpu(FakeTimer):
    """Work that fills 40 % of the SMs: 1 ms a token and request, no faster on more; half as fast again beside another."""

    def __init__(self) -> None:
        super().__init__()
        self.mine = threading.local()
        self.sms: dict[str, float] = {}
        self.first_s = 0.0
        """What the first work of its length on a stream takes longer."""
        self.seen: set[tuple[str, float]] = set()

    def on(self, stream):
        self.mine.stream, self.mine.records = stream, 0
        return super().on(stream)

    def record(self, stream):
        self.mine.records = getattr(self.mine, "records", 0) + 1
        at = self.clock_s - self.began_s
        if self.mine.records != 2:
            return at
        first = (stream, self.mine.seconds) not in self.seen
        self.seen.add((stream, self.mine.seconds))
        return at + self.mine.seconds * max(1.0, 40 / self.sms.get(stream, 100.0)) + first * self.first_s


class Bench:
    kind = "image"
    facts = FACTS

    def __init__(self, timer: Gpu) -> None:
        self._timer = timer

    def prepare(self, stage: str, batch: int, tokens: int) -> Any:
        def run() -> None:
            self._timer.mine.seconds = 1e-3 * batch * tokens if stage != "decode" else 1e-3 * (10 + batch)

        return run

    def moves(self, shared: Any) -> Any:
        """From the GPU to the host .5 ms, and back .2 ms."""
        assert len(shared) <= PIECE_BYTES
        return (lambda count: time.sleep(5e-4)), (lambda count: time.sleep(2e-4))


def quiet() -> nvml.Snapshot:
    return nvml.snapshot(FakeNvml(), L40S)


def measured(opened, model="qwen2.5-vl-7b", tell=lambda _: None, **more):
    given = {"size": "quick", "sm": [25, 50, 75, 100], "batch": [1, 2], "tokens": [64], "out": None}
    return profile_cuda(model, open_place=opened, **(given | more), tell=tell)


def facts_of(weights: int, kv: int):
    return FACTS | {"weights_bytes": {"encoder": 0, "lm": weights}, "kv_bytes_per_token": kv}


def with_bench(place, bench):
    """Opens an L40S (48 GiB) with `bench` on it."""

    def opened(model, shares):
        made = place(FakeDriver(), [quiet()])(model, shares)
        return in_this_process(made.gpu, bench(made.gpu.timer), True, made.snapshot)

    return opened

"""Profile under MPS where a GPU has no green contexts: one process a share, as MPS fixes a process's share when it starts.

Not run on a GPU yet: held to processes that stand in for it.

    symbol   meaning
    x        percent of the threads (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE) that a process was started with
    share    SMs that its context says it has, of the device's

A point runs in the process of its share; what runs beside it, in another of the rest, at the same time. A share under MPS
is a limit, not a set of SMs of its own: two whose limits add up to no more than the whole hardly meet. Each process holds the model,
so only `KEPT` are open at a time, and points for those that are come first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from has.device import cuda
from has.device.base import Work
from has.device.cuda import CudaDevice
from has.device.cuda_lanes import CudaGpu, TorchTimer
from has.device.fleet import Fleet, Handler
from has.profiler.measure import Beside, Lanes, Measurer, warm
from has.profiler.plan import Point
from has.profiler.rank import open_rank

KEPT = 2
OPENER, WORKER = "has.profiler.cuda_mps:open_share", "has.profiler.cuda_mps:worker"


@dataclass
class Share:
    """In a process of a share: its SMs, its lanes, and the model once it is asked for."""

    sms: int
    gpu: Lanes
    open_bench: Callable[[], Any]


def open_share(argument: str) -> Share:
    """Called in a process that was started with a percentage. argument: {model, dummy, gpus, device} as JSON."""
    asked = json.loads(argument)
    driver = cuda.load_driver()
    device = cuda.devices(driver)[asked["device"]]
    import torch

    torch.zeros(1, device=f"cuda:{device.index}")  # the context that is asked for its SMs

    def open_bench() -> Any:
        return open_rank(asked["model"], asked["dummy"], asked["gpus"])

    return Share(cuda.granted_sms(driver), CudaGpu(device, None, TorchTimer(device.index)), open_bench)


def worker(share: Share, index: int) -> Handler:
    """Messages: {sms}; {facts}; {measure_point: a point}; {start: a companion} and {stop}, between which it runs without pause."""
    return _Worker(share).handle


class _Worker:
    def __init__(self, share: Share) -> None:
        self._share = share
        self._beside: Beside | None = None

    def handle(self, message: dict[str, Any]) -> Any:
        ((what, about),) = message.items()
        return getattr(self, f"_{what}")(about)

    @cached_property
    def _bench(self) -> Any:
        return self._share.open_bench()

    @cached_property
    def _measurer(self) -> Measurer:
        return Measurer(self._bench, 0, self._share.gpu)

    def _sms(self, _: Any) -> int:
        return self._share.sms

    def _facts(self, _: Any) -> dict[str, Any]:
        return {"facts": self._bench.facts, "kind": self._bench.kind}

    def _measure_point(self, point: dict[str, Any]) -> dict[str, Any]:
        return self._measurer.measure(point)

    def _start(self, companion: dict[str, Any]) -> None:
        work = Work(**companion)
        run = self._bench.prepare(work.stage, work.batch, int(work.tokens))
        warm(self._share.gpu, run, work)
        self._beside = Beside(self._share.gpu, run, work).__enter__()

    def _stop(self, _: Any) -> float:
        """Seconds in all that the companion did not run."""
        beside, self._beside = self._beside, None
        if beside is None:
            return 0.0
        beside.__exit__()
        return beside.gaps_s


@dataclass
class MpsGpu:
    """The device as a profile sees it: `given`, and `measure` in place of a Measurer of this process.

    levels: percentages below 100 that processes are started with; a share asked for is the nearest of them.
    opening: called with what starts a process, to note that it is no stranger on the GPU."""

    device: CudaDevice
    levels: Sequence[float]
    model: str
    dummy: bool
    gpus: int = 1
    opener: str = OPENER
    clock: Callable[[], float] = time.monotonic
    opening: Callable[[Callable[[], Fleet]], Fleet] = lambda start: start()
    partition: None = None
    _open: dict[tuple[float, bool], Fleet] = field(default_factory=dict)
    _sms: dict[float, int] = field(default_factory=dict)

    def given(self, stage: str, share_percent: float) -> float:
        """Share of the SMs that a process asked to have `share_percent` really has, whatever the stage."""
        level = self._level(share_percent)
        if level >= 100:
            return 100.0
        if level not in self._sms:
            self._sms[level] = self._process(level, False).ask(0, {"sms": True})
        return 100.0 * self._sms[level] / self.device.sm_count

    def _level(self, share_percent: float) -> float:
        if share_percent >= 100:
            return 100.0
        return min(self.levels, key=lambda level: abs(level - share_percent))

    def about(self) -> dict[str, Any]:
        """{facts, kind} of the model."""
        found: dict[str, Any] = self._process(100.0, False).ask(0, {"facts": True})
        return found

    def first(self, wanted: Sequence[Point]) -> Point:
        """The one to measure next: of those whose processes are open the first, else the first."""
        return next((point for point in wanted if self._open.keys() >= self._places(point)), wanted[0])

    def measure(self, point: dict[str, Any]) -> dict[str, Any]:
        """As `Measurer.measure`."""
        companion, level = point["companion"], self._level(point["sm_asked"])
        own = self._process(level, False)
        alone = {"measure_point": point | {"companion": None, "sm_asked": 100.0}}
        if companion is None:
            reply: dict[str, Any] = own.ask(0, alone)
        else:
            other = self._process(_rest(level), True)
            other.ask(0, {"start": companion})
            begun = self.clock()
            try:
                reply = own.ask(0, alone)
                took_s = self.clock() - begun
            finally:
                gaps_s = other.ask(0, {"stop": True})
            reply["covered"] = max(0.0, 1.0 - gaps_s / took_s) if took_s > 0 else 1.0
        reply["sm_percent"] = self.given(point["stage"], point["sm_asked"])
        return reply

    def processes(self) -> list[int]:
        """Pids that measure, and of the MPS servers: no strangers on the GPU."""
        return [fleet.pid for fleet in self._open.values()] + cuda.mps_servers()

    def _places(self, point: Point) -> set[tuple[float, bool]]:
        """Processes that a point needs."""
        level = self._level(point.sm_asked)
        return {(level, False)} | ({(_rest(level), True)} if point.companion else set())

    def _process(self, share_percent: float, beside: bool) -> Fleet:
        """The open process of this share; of `KEPT` the one longest unused gives way to a new one."""
        key = (share_percent, beside)
        fleet = self._open.pop(key, None)
        if fleet is None:
            while len(self._open) >= KEPT:
                self._open.pop(next(iter(self._open))).close()
            argument = {
                "model": self.model,
                "dummy": self.dummy,
                "gpus": self.gpus,
                "device": self.device.index,
            }
            environment = cuda.mps_environment(share_percent)

            def start() -> Fleet:
                started = Fleet(self.opener, json.dumps(argument), WORKER, 1, environment=environment)
                started.ask(0, {"sms": True})  # once it answers its context is there, and NVML lists it
                return started

            fleet = self.opening(start)
        self._open[key] = fleet
        return fleet

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _rest(share_percent: float) -> float:
    return 100.0 if share_percent >= 100 else 100.0 - share_percent

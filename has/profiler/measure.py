"""Measure one point, in a worker process: run its work through a lane until the samples agree."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from has.device import host
from has.device.base import Lane, Span, Work
from has.device.calibrate import Bench
from has.device.cpu import CREDIT_S, Cancelled, VirtualGpu
from has.device.fleet import Handler
from has.device.gate import P90_BOUND, p90
from has.device.nominal import Nominal, from_dict
from has.errors import RunError
from has.latency.confidence import half_width
from has.profiler.transfers import Moves, time_each, time_transfers

WORKER = "has.profiler.measure:worker"
MAX_FACTOR = 3


def worker(bench: ModelBench, index: int) -> Handler:
    """Messages: {facts}, {table}, then points as `asdict(Point)` with their sampling; see `Measurer.measure`."""
    measurer = Measurer(bench, index)
    return measurer.handle


class ModelBench(Bench, Protocol):
    """What a model is measured by."""

    def moves(self, shared: mmap.mmap) -> Moves | None:
        """How bytes go between `shared` and the memory of the model's GPU; None where that is the host's."""


class Lanes(Protocol):
    """What is measured on: a virtual GPU, or a CUDA one."""

    streams: bool
    cold: bool
    """Whether the first run at a shape, and the first on a stream, takes longer than those after."""

    @property
    def lanes(self) -> Mapping[str, Lane]: ...

    @property
    def clock(self) -> Callable[[], float]: ...

    def offer(self, share_percent: float) -> float: ...

    def given(self, stage: str, share_percent: float) -> float: ...

    def rest(self, stage: str, share_percent: float) -> float: ...

    def cancel(self, lane: str) -> None: ...


class Measurer:
    """One virtual GPU with a bench on it."""

    def __init__(self, bench: ModelBench, index: int, gpu: Lanes | None = None) -> None:
        self._bench = bench
        self._index = index
        self._gpu = gpu
        self._warm: set[str] = set()

    def handle(self, message: dict[str, Any]) -> Any:
        if "facts" in message:
            return self._bench.facts
        if "table" in message:
            self.open(from_dict(message["table"]), message["seed"])
            return None
        return self.measure(message)

    def open(self, table: Nominal, seed: int) -> None:
        self._gpu = VirtualGpu(table, index=self._index, seed=seed)

    def measure(self, point: dict[str, Any]) -> dict[str, Any]:
        """{samples: seconds each, ratio: p90 of real/meant duration (1 where nothing is paced), covered: share of
        the time that the companion really ran (1 without one), sm_percent, dropped: samples not used}."""
        stage, batch, tokens = point["stage"], point["batch"], point["tokens"]
        if stage == "preprocess":
            return _unpaced(time_each(self._prepare(stage, batch, tokens), 5 * point["least"]))
        if stage.endswith("_transfer"):
            each = self._bench.facts[f"{stage.removesuffix('_transfer')}_bytes_per_token"]
            return _unpaced(time_transfers(each * tokens, point["least"], self._bench.moves))
        gpu = self._gpu
        if gpu is None:
            raise RunError("no nominal table was given")
        work = Work(stage, batch, tokens, point["sm_asked"])
        run = self._prepare(stage, batch, tokens)
        least = point["steps"] if stage == "decode" else point["least"]
        sampling = Repeats(least, point["width"], point["cap_s"])
        companion, covered = point["companion"], 1.0
        gpu.streams = companion is not None and gpu.offer(point["sm_asked"]) >= 100
        if companion is None:
            warm(gpu, run, work)
            kept, dropped = repeat(gpu, run, work, sampling)
        else:
            rest = 100.0 if gpu.streams else gpu.rest(stage, point["sm_asked"])
            other = Work(companion["stage"], companion["batch"], companion["tokens"], rest)
            other_run = self._prepare(other.stage, other.batch, int(other.tokens))
            warm(gpu, other_run, other)
            warm(gpu, run, work)
            begun = gpu.clock()
            with Beside(gpu, other_run, other) as beside:
                kept, dropped = repeat(gpu, run, work, sampling)
                took_s = gpu.clock() - begun
            covered = max(0.0, 1.0 - beside.gaps_s / took_s)
        given = gpu.given(stage, point["sm_asked"])
        if other_shares := {span.share_percent for span in kept} - {given, None}:
            raise RunError(
                f"{stage} ran on {', '.join(f'{share:g}' for share in other_shares)} % of the SMs, and not on the {given:g} %"
                " that its row is of"
            )
        return {
            "samples": [span.duration_s for span in kept],
            "ratio": p90([span.ratio for span in kept]),
            "covered": covered,
            "sm_percent": given,
            "dropped": dropped,
        }

    def _prepare(self, stage: str, batch: int, tokens: int) -> Callable[[], object]:
        """The callable, after one small run of its stage: first calls build things that later ones reuse."""
        if stage not in self._warm:
            self._bench.prepare(stage, 1, min(tokens, 64))()
            self._warm.add(stage)
        return self._bench.prepare(stage, batch, tokens)


def warm(gpu: Lanes, run: Callable[[], object], work: Work) -> None:
    """Run once on the lane and its stream, and wait for its end: what grows and is set up there is no part of a sample.

    Not where works are paced: that would last as long as a sample, and what a first run builds is built by `_prepare`.
    """
    if gpu.cold:
        gpu.lanes[work.stage].run(run, work)


@dataclass(frozen=True, slots=True)
class Repeats:
    """Of one point: see plan.Sampling."""

    least: int
    width: float
    cap_s: float


def repeat(gpu: Lanes, run: Callable[[], object], work: Work, sampling: Repeats) -> tuple[list[Span], int]:
    """Run `work` back to back, as plan.Sampling says. Returns (spans, how many others were dropped).

    A span that the host was late for is dropped, as long as one is left that it was not.
    """
    clean: list[Span] = []
    late: list[Span] = []
    bound = P90_BOUND[work.stage]
    begun: float | None = None
    while True:
        span = gpu.lanes[work.stage].run(run, work)[1]
        begun = span.start_s if begun is None else begun
        (clean if span.ratio <= bound else late).append(span)
        runs = len(clean) + len(late)
        enough = len(clean) >= sampling.least and (
            half_width([span.duration_s for span in clean]) <= sampling.width
        )
        if enough or runs >= MAX_FACTOR * sampling.least or span.end_s - begun >= sampling.cap_s:
            return (clean, len(late)) if clean else (late, 0)


class Beside:
    """Keeps `work` running on its lane, in a thread of its own, while the context is open.

    gaps_s: how long in all it did not run, because the host came back too late to start it again in time.
    """

    def __init__(self, gpu: Lanes, run: Callable[[], object], work: Work) -> None:
        self._gpu, self._run, self._work = gpu, run, work
        self.gaps_s = 0.0
        self._begun = threading.Event()
        self._done = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name=f"beside-{work.stage}")

    def __enter__(self) -> Self:
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._done = True
        self._gpu.cancel(self._work.stage)
        self._thread.join()
        if self._error:
            raise self._error

    def _loop(self) -> None:
        host.precise_sleep()
        lane, work = self._gpu.lanes[self._work.stage], self._work
        try:
            with suppress(Cancelled):
                while not self._done:
                    end_s = lane.run(self._noted, work)[1].end_s
                    work = replace(work, ready_s=end_s)
                    self.gaps_s += max(0.0, self._gpu.clock() - end_s - CREDIT_S)
        except Exception as error:
            self._error = error
        finally:
            self._begun.set()

    def _noted(self) -> object:
        self._begun.set()
        return self._run()


def _unpaced(samples: list[float]) -> dict[str, Any]:
    return {"samples": samples, "ratio": 1.0, "covered": 1.0, "sm_percent": 100.0, "dropped": 0}

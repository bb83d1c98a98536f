"""Measure the nominal table of a model: CPU seconds of its works, at the duty that pacing runs them at."""

from __future__ import annotations

import fcntl
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from has.device import host, nominal
from has.device.fleet import Fleet, Handler
from has.device.nominal import Costs, Nominal

REPEATS = 5
LONG_S, LONG_REPEATS = 0.1, 3
"""What takes longer than this is measured less often: its relative noise is smaller."""
WORKER = "has.device.calibrate:worker"


class Bench(Protocol):
    """What can be measured of a model: works as callables, and facts for profiles.

    facts["media_unit"]: media tokens of the smallest thing the encoder takes.
    """

    facts: dict[str, Any]

    def prepare(self, stage: str, batch: int, tokens: int) -> Callable[[], object]: ...


def grid(media_unit: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Batches and tokens to measure per stage: enough, as CPU cost is near linear between and beyond them."""
    media = max(1, round(64 / media_unit)) * media_unit
    return {
        "encode": ((1, 4, 8), (media, 2 * media)),
        "prefill": ((1, 4), (16, 64, 256)),
        "decode": ((1, 8, 32), (64, 256)),
    }


def nominal_table(
    model: str,
    bench: str,
    *,
    total_share: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    fresh: bool = False,
) -> Nominal:
    """The table of `model` that is kept on this machine, else measured now (some ten seconds) and kept.

    fresh: one that was measured while others used the machine is measured again, if they no longer do.

    bench: "module:function" that opens a Bench for a model name (has.models.names.BENCH for bundled models).
    total_share: see host.total_share. Two callers at once measure once.
    """
    with _alone():
        table = nominal.kept(model, total_share)
        if table is not None and fresh and table.disturbed and _quiet():
            total_share, table = table.total_share, None
        if table is None:
            table = measure(model, bench, host.total_share(total_share), progress)
            nominal.keep(table)
    return table


def _quiet() -> bool:
    return host.busy_cores() <= nominal.OTHERS_BOUND * host.cores()


def measure(
    model: str, bench: str, share: float, progress: Callable[[int, int], None] | None = None
) -> Nominal:
    """Measure with as many workers as there are virtual GPUs, each at the duty of one."""
    slice_cores = host.slice_cores(share)
    costs: dict[tuple[str, int, int], float] = {}
    own_s = 0.0
    with Fleet(bench, model, WORKER, host.MAX_VIRTUAL_GPUS) as fleet:
        axes = grid(fleet.ask(0, {"facts": True})["media_unit"])
        points = [(s, b, t) for s, (batches, tokens) in axes.items() for b in batches for t in tokens]
        others = host.OthersMeter()
        waiting = sorted(points, key=lambda p: p[1] * p[2] if p[0] != "decode" else 0)
        free = list(range(fleet.size))
        while len(costs) < len(points):
            while free and waiting:
                stage, batch, tokens = waiting.pop()
                fleet.send(
                    free.pop(), {"stage": stage, "batch": batch, "tokens": tokens, "duty": slice_cores}
                )
            for index, (stage, batch, tokens, cpu_s, all_s) in fleet.replies():
                costs[stage, batch, tokens] = cpu_s
                own_s += all_s
                free.append(index)
                if progress:
                    progress(len(costs), len(points))
        used = others.cores(own_s)
    return Nominal(
        model,
        share,
        slice_cores,
        {
            stage: Costs(batches, tokens, tuple(tuple(costs[stage, b, t] for t in tokens) for b in batches))
            for stage, (batches, tokens) in axes.items()
        },
        round(used, 2),
    )


def worker(bench: Bench, index: int) -> Handler:
    def handle(message: dict[str, Any]) -> Any:
        if message.get("facts"):
            return bench.facts
        stage, batch, tokens = message["stage"], message["batch"], message["tokens"]
        begun = time.process_time()
        cpu_s = paced_cpu_s(bench.prepare(stage, batch, tokens), message["duty"])
        return stage, batch, tokens, cpu_s, time.process_time() - begun

    return handle


def paced_cpu_s(fn: Callable[[], object], duty: float) -> float:
    """Median CPU seconds of `fn` on this thread when it computes for `duty` of the time (after one warm-up)."""
    fn()
    samples: list[float] = []
    while len(samples) < (LONG_REPEATS if samples and samples[0] > LONG_S else REPEATS):
        begun = time.thread_time()
        fn()
        samples.append(time.thread_time() - begun)
        time.sleep(samples[-1] * (1.0 / duty - 1.0))
    return statistics.median(samples)


@contextmanager
def _alone() -> Iterator[None]:
    with (host.cache_folder() / "nominal.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

"""Make a profile: measure the points of a plan on the device's lanes, in as many at once as it has GPUs."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from has.core.profile import Profile
from has.device import host, nominal
from has.device.cpu import VirtualGpu, nominal_table
from has.device.device_model import VIRTUAL_GPU
from has.device.fleet import Fleet
from has.device.nominal import Nominal
from has.device.patience import Patience
from has.errors import InputError, MissingError
from has.files.profile import save_profile
from has.models.names import BENCH, BUNDLED
from has.models.tokens import token_rule
from has.profiler.adapt import Lookout, outlook, rows, settled
from has.profiler.assemble import assemble, words
from has.profiler.cpu_metadata import device_of, notes_of
from has.profiler.forecast import Forecast, expected_s
from has.profiler.measure import WORKER
from has.profiler.plan import Key, Plan, Point, Size, load, make_plan, weight
from has.profiler.points import Measured, Progress, WorkFile, medians, work_file_path

WORKERS_PER_GPU = 2
"""Points on few SMs leave most of a slice idle; so more points than GPUs are measured at once."""
BUSY_BOUND = 0.95
"""Share of the slices that points may keep busy: what is left is for preparing others, which is not paced."""
LOAD_S = 10.0
"""Until workers have loaded the model, on a quiet machine."""
REPEATED_SHARE = 10
"""Of this many points one may be measured again; a host that disturbs more will not be quieter then."""


def profile_device(
    model: str,
    device: str = "cpu",
    *,
    size: Size = "quick",
    sm: Sequence[float] | None = None,
    batch: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
    out: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    resume: bool = True,
    virtual_gpus: int = host.MAX_VIRTUAL_GPUS,
    total_share: float | None = None,
    tensor_parallel: int = 1,
    seed: int = 0,
) -> Profile:
    """Measure a profile; with `out`, write it there (.parquet or .csv).

    On cpu of a bundled model. On cuda of any whose shapes are known, with its weights where they are here (see
    `cuda.profile_cuda`, also for tensor_parallel; virtual_gpus, total_share and seed are of the CPU device).

    Every finished point is kept at once in `work_file_path(out)`; called again, only what is missing is
    measured (resume=False: all of it). Interrupted, it leaves no process behind and loses no finished point.
    Raises InputError for bad arguments, MissingError where the device is not here, RunError where measuring fails.
    """
    tell = progress or (lambda _: None)
    if device == "cuda":
        from has.profiler.cuda import profile_cuda

        return profile_cuda(
            model,
            size=size,
            sm=sm,
            batch=batch,
            tokens=tokens,
            out=out,
            tell=tell,
            resume=resume,
            tensor_parallel=tensor_parallel,
        )
    if tensor_parallel != 1:
        raise InputError(
            "a virtual GPU holds a whole model",
            where="argument",
            field="tensor_parallel",
            value=tensor_parallel,
            allowed="1",
        )
    _check(model, device, virtual_gpus)
    plan = make_plan(
        model,
        lambda _, share: VIRTUAL_GPU.offer(share),
        lambda count: token_rule(model).nearest(BUNDLED[model], count).tokens,
        size=size,
        sm=sm,
        batch=batch,
        tokens=tokens,
    )
    begun = Progress(0, rows(plan, outlook(plan, {})), None, "measuring what works cost on this CPU")
    tell(begun)
    table = nominal_table(
        model,
        BENCH,
        total_share=total_share,
        progress=lambda passed_s, of_s: tell(replace(begun, doing=f"{begun.doing}, {passed_s} of {of_s} s")),
        say=lambda text: tell(replace(begun, warning=text)),
        fresh=not resume,
    )
    path = work_file_path(out) if out is not None else None
    if path is not None and not resume:
        path.unlink(missing_ok=True)
    setup = _digest(plan.digest(), table.digest(), VIRTUAL_GPU.digest(), str(seed))
    work = WorkFile(path, setup, plan.points)
    if work.unused:
        tell(replace(begun, warning=work.unused))
    if outlook(plan, medians(work)).wanted or not work.facts:
        _measure(plan, work, table, virtual_gpus, seed, tell, kept=path is not None)
    profile = assemble(plan, work, device_of(table), notes_of(table))
    if out is not None:
        save_profile(profile, out)
    tell(Progress(len(profile.rows), len(profile.rows), 0.0, "done"))
    return profile


def _check(model: str, device: str, virtual_gpus: int) -> None:
    if device != "cpu":
        raise MissingError(
            f"no profile can be measured on {device}: devices are cpu and cuda",
            mend="has profile --device cpu",
        )
    if model not in BUNDLED:
        raise InputError(
            "the cpu device profiles the bundled models",
            where="argument",
            field="model",
            value=model,
            allowed=", ".join(BUNDLED),
            mend=f"has profile --model {next(iter(BUNDLED))}",
        )
    if not 1 <= virtual_gpus <= host.MAX_VIRTUAL_GPUS:
        raise InputError(
            "no such number of virtual GPUs",
            where="argument",
            field="virtual_gpus",
            value=virtual_gpus,
            allowed=f"1..{host.MAX_VIRTUAL_GPUS}",
        )


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _measure(
    plan: Plan,
    work: WorkFile,
    table: Nominal,
    virtual_gpus: int,
    seed: int,
    tell: Callable[[Progress], None],
    *,
    kept: bool,
) -> None:
    """Measure what is wanted, until nothing more is; a point that the host disturbed once more."""
    seconds = medians(work)
    lookout = Lookout(plan)
    ahead = lookout.look(seconds)
    gpu = VirtualGpu(table)
    forecast = Forecast(
        [point for point in plan.points if point.key not in seconds],
        lambda point: expected_s(gpu, plan.sampling, point),
        BUSY_BOUND * virtual_gpus,
    )
    forecast.follow(ahead.absent)
    size = min(WORKERS_PER_GPU * virtual_gpus, max(1, len(plan.points) - len(seconds)))
    step = Progress(settled(plan, seconds, ahead), rows(plan, ahead), forecast.left_s(), "loading the model")
    patience = Patience(
        "measuring these points",
        LOAD_S + forecast.left_s(),
        lambda text: tell(replace(step, warning=text)),
        kept="; finished points are kept" if kept else "",
    )
    with Fleet(BENCH, plan.model, WORKER, size, patience=patience) as fleet:
        if not work.facts:
            work.note(fleet.ask(0, {"facts": True}))
        for index in range(size):
            fleet.ask(index, {"table": nominal.to_dict(table), "seed": seed})
        waiting, running = list(ahead.wanted), dict[int, Point]()
        again = set[Key]()
        while waiting or running:
            for index, point in _assign(waiting, running, size, virtual_gpus):
                fleet.send(index, {**asdict(point), **asdict(plan.sampling)})
                forecast.started(point)
            for index, reply in fleet.replies():
                point = running.pop(index)
                measured = Measured(tuple(reply.pop("samples")), **reply)
                once_more = (
                    measured.disturbed(point.stage)
                    and point.key not in again
                    and len(again) < 1 + len(seconds) // REPEATED_SHARE
                )
                forecast.ended(point, again=once_more)
                if once_more:
                    again.add(point.key)
                    waiting.insert(0, point)  # as it is, the longest of those left must not come last
                    continue
                work.add(point, measured)
                seconds[point.key] = statistics.median(measured.samples)
                ahead = lookout.look(seconds)
                forecast.follow(ahead.follows)
                under_way = {other.key for other in (*waiting, *running.values())}
                found = [other for other in ahead.wanted if other.key not in under_way]
                forecast.expect(found)
                waiting += found
                waiting.sort(key=weight, reverse=True)
                step = Progress(
                    settled(plan, seconds, ahead), rows(plan, ahead), forecast.left_s(), words(point)
                )
                tell(step)


def _assign(
    waiting: list[Point], running: dict[int, Point], size: int, virtual_gpus: int
) -> list[tuple[int, Point]]:
    """Take points that fit beside those running, first come first: together they keep fewer than
    `virtual_gpus` busy.

    What is not paced runs when nothing else does: it is to be measured undisturbed.
    """
    taken = []
    free = [index for index in range(size) if index not in running]
    busy = sum(load(point) for point in running.values())
    for point in list(waiting):
        if not free:
            break
        alone = weight(point) == 0.0
        if running and (alone or busy + load(point) > BUSY_BOUND * virtual_gpus):
            continue
        if any(weight(other) == 0.0 for other in running.values()):
            break
        waiting.remove(point)
        running[free[0]] = point
        taken.append((free.pop(0), point))
        busy += load(point)
    return taken

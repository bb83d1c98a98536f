"""Profile a model on a CUDA device: one point after the other, in this process, by events.

Not run on a GPU yet: held to a recorded fake.

Weights are the checkpoint's where they are here (safetensors), else dummy ones of the same shapes, as latency does not depend on
their values; the profile says which. What the GPU has no memory for is left out, and said (`memory.py`). Encode and its neighbour run in two
threads on two streams of one process; the first run of each is no sample. Between two looks at NVML a point counts only if
the GPU was left alone (`nvml.noise`); else it is measured once more, then kept and named as unstable.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from has.core.profile import Profile
from has.core.stage import Stage
from has.device import cuda, nvml
from has.device.cuda_lanes import CudaGpu, Timer, TorchTimer
from has.device.watch import Waker, Watch
from has.errors import InputError, MissingError
from has.files.profile import save_profile
from has.models.rules import TokenRule
from has.models.tokens import token_rule
from has.profiler.adapt import Lookout, rows
from has.profiler.assemble import assemble, words
from has.profiler.cuda_mps import KEPT, MpsGpu
from has.profiler.measure import Measurer
from has.profiler.memory import OutOfMemory, Room, fitting, no_room_for
from has.profiler.plan import AXES, Axes, Plan, Point, Size, make_plan, weight
from has.profiler.points import Measured, Progress, WorkFile, medians, work_file_path
from has.profiler.rank import linked, open_rank, sums

CUDA_AXES: dict[Size, Axes] = {
    "quick": replace(
        AXES["quick"], media=(256, 1280), prompt=(256, 2048), context=(512, 4096), moved=(256, 4096)
    ),
    "full": replace(
        AXES["full"],
        # Whole eights of 132 SMs, too. Large batches of encode need 80 to 90 % to stay within a budget of 20 %, so that
        # is worth a level of the eight, and the ones below an eighth, which Hopper rounds to 6 %, are not.
        sm=(13, 19, 25, 31, 43, 55, 73, 88, 100),
        media=(64, 256, 576, 1280, 2560),
        prompt=(64, 256, 1024, 2048, 4096, 8192),
        context=(256, 2048, 8192),
        moved=(256, 2048, 16384),
    ),
}
TRANSFERS = "from the GPU into shared memory of the host, told to another process, and into the GPU; memory not pinned"
SLOW_WEIGHT_S = 0.02
"""Seconds that a unit of a point's weight is expected to take, until some have been seen."""


@dataclass(frozen=True, slots=True)
class Place:
    """A device ready to measure on. facts, kind: of the model, as its bench says them. measure: as `Measurer.measure`.
    snapshot: what NVML says now (None: it does not, and `blind` says why). first: which of several points to measure first.
    processes: pids that NVML may list without their being strangers. why_dummy: why there are no real weights here."""

    gpu: CudaGpu | MpsGpu
    facts: dict[str, Any]
    kind: str
    dummy: bool
    measure: Callable[[dict[str, Any]], dict[str, Any]]
    snapshot: Callable[[], nvml.Snapshot | None]
    first: Callable[[Sequence[Point]], Point] = itemgetter(0)
    processes: Callable[[], Collection[int]] = list
    blind: str = ""
    why_dummy: str = ""
    waker: Waker = field(default_factory=Waker)


def in_this_process(
    gpu: CudaGpu, bench: Any, dummy: bool, snapshot: Callable[[], nvml.Snapshot | None]
) -> Place:
    return Place(gpu, bench.facts, bench.kind, dummy, Measurer(bench, 0, gpu).measure, snapshot)


def profile_cuda(
    model: str,
    *,
    size: Size,
    sm: Sequence[float] | None,
    batch: Sequence[int] | None,
    tokens: Sequence[int] | None,
    out: str | Path | None,
    tell: Callable[[Progress], None],
    resume: bool = True,
    tensor_parallel: int = 1,
    open_place: Callable[[str, Sequence[float]], Place] | None = None,
) -> Profile:
    """As `run.profile_device`, on the first CUDA device. Raises MissingError where there is none.

    tensor_parallel: GPUs of a prefill or decode worker; above one, a rank's part is measured and the sums are estimated (`rank.py`).
    """
    levels = partition_levels(sm, batch, size)
    with no_room_for(f"the weights of {model}"):
        place = (open_place or partial(open_cuda, gpus=tensor_parallel))(model, levels)
    with place.gpu as gpu:
        rule, kind = token_rule(model), place.kind
        plan = make_plan(
            model,
            gpu.given,
            lambda count: nearest(rule, kind, count),
            size=size,
            sm=sm,
            batch=batch,
            tokens=tokens,
            usual=CUDA_AXES,
        )
        path = work_file_path(out) if out is not None else None
        if path is not None and not resume:
            path.unlink(missing_ok=True)
        seen = place.snapshot()
        device = device_of(gpu, seen) | {"tensor_parallel": tensor_parallel}
        notes: dict[str, Any] = {"transfers": TRANSFERS}
        aloud = [f"{place.why_dummy}: dummy weights are measured"] if place.why_dummy else []
        if seen is None:
            notes["noise_gate"] = f"off, no point was judged by it: {place.blind}"
            aloud.append(f"the noise gate is {notes['noise_gate']}")
        elif seen.mig:
            notes["mig"] = f"shares are of the MIG slice, a part of {seen.name} ({seen.uuid})"
        for warning in aloud:
            tell(Progress(0, len(plan.points), None, "opening", warning))
        if tensor_parallel > 1:
            added = sums(gpu.device.name, tensor_parallel, place.facts)
            place = replace(place, measure=added.added(place.measure))
            notes["tensor_parallel"] = (
                f"one rank's part of {tensor_parallel} was measured; the sums between ranks are estimated"
            )
        setup = json.dumps([plan.digest(), device, place.dummy], sort_keys=True)
        work = WorkFile(path, hashlib.sha256(setup.encode()).hexdigest()[:12], plan.points)
        if work.unused:
            tell(Progress(0, len(plan.points), None, "looking at kept points", warning=work.unused))
        if not work.facts:
            work.note(place.facts)
        copies = KEPT if isinstance(gpu, MpsGpu) else 1
        room = Room.of(gpu.device.memory_bytes, place.facts, tensor_parallel, copies)
        flags = _measure(plan, work, place, room, tell)
        plan, left_out = fitting(plan, room)
        if left_out:
            notes["left_out"] = left_out
        weights = "the checkpoint's weights"
        if place.dummy:
            weights = "; ".join(filter(None, ("dummy weights: right shapes, random values", place.why_dummy)))
        profile = assemble(plan, work, device, {"weights": weights, "flags": flags, **notes})
    if out is not None:
        save_profile(profile, out)
    tell(Progress(len(profile.rows), len(profile.rows), 0.0, "done"))
    return profile


def partition_levels(sm: Sequence[float] | None, batch: Sequence[int] | None, size: Size) -> list[float]:
    """The shares below 100 % at which the GPU is split. Raises InputError for more than it can be split at."""
    levels = sorted({share for share in sm or CUDA_AXES[size].sm if share < 100})
    if len(levels) > cuda.MAX_LEVELS:
        raise InputError(
            "too many SM shares",
            where="argument",
            field="sm",
            value=list(sm or ()),
            allowed=f"up to {cuda.MAX_LEVELS} below 100, as every split grows allocator pools and cuBLAS workspaces of its own",
            mend="profile fewer shares; the rest is looked up between them",
        )
    return with_spare(levels, cuda.MAX_LEVELS) if sm is None and batch is None else levels


def with_spare(shares: Sequence[float], most: int) -> list[float]:
    """Up to `most` shares: more in the middle of the relatively widest gaps, for where a curve bends (`adapt.py`)."""
    levels = sorted(shares)
    while 1 < len(levels) < most:
        low, high = max(pairwise(levels), key=lambda gap: gap[1] / gap[0])
        levels = sorted([*levels, 2 / (1 / low + 1 / high)])
    return levels


def nearest(rule: TokenRule, kind: str, count: int) -> int:
    return rule.nearest(kind, count).tokens


def open_cuda(model: str, shares: Sequence[float], *, gpus: int = 1) -> Place:
    """The first device, partitioned at `shares` where it can be, with the model on it, or its part of one of `gpus` ranks."""
    driver = cuda.load_driver()
    found = cuda.devices(driver)
    if not found:
        raise MissingError("no CUDA device is visible", mend="has doctor says what is here; or --device cpu")
    import torch

    from has.models.folders import why_no_weights

    device = found[0]
    if gpus > 1:
        linked(device.name, gpus)  # before minutes of loading
    why_dummy = why_no_weights(model)
    dummy = bool(why_dummy)
    watch = Watch(device.uuid)
    if device.mechanism == "MPS" and shares:
        opening = partial(watch.opening, pid=attrgetter("pid"))
        mps = MpsGpu(device, shares, model, dummy, gpus, opening=opening)
        about = mps.about()

        def processes() -> Collection[int]:
            return {*mps.processes(), *watch.own}

        return Place(
            mps,
            about["facts"],
            about["kind"],
            dummy,
            mps.measure,
            watch.snapshot,
            mps.first,
            processes,
            watch.blind,
            why_dummy,
        )
    # torch makes its context first, and green ones share it
    watch.opening(lambda: torch.zeros(1, device="cuda"))
    bench = open_rank(model, dummy, gpus)
    partition = (
        cuda.SmPartition(driver, device, shares) if device.mechanism == "green contexts" and shares else None
    )
    timer: Timer = TorchTimer(device.index)
    place = in_this_process(CudaGpu(device, partition, timer), bench, dummy, watch.snapshot)
    return replace(place, processes=lambda: watch.own, blind=watch.blind, why_dummy=why_dummy)


def device_of(gpu: CudaGpu | MpsGpu, seen: nvml.Snapshot | None) -> dict[str, Any]:
    """As the metadata says it, and as points of an interrupted profile are told apart."""
    device = gpu.device
    if isinstance(gpu, MpsGpu):
        shared = "MPS (limits of threads, not SMs of one's own)"
    elif gpu.partition is not None:
        shared = "green contexts"
    else:
        shared = f"none used; {device.mechanism}"
    return {
        "device": device.name,
        "uuid": device.uuid,
        "sm_count": device.sm_count,
        "memory_bytes": device.memory_bytes,
        "driver": (seen.driver if seen else None) or str(device.driver),
        "partition_mechanism": shared,
    }


def _measure(
    whole: Plan, work: WorkFile, place: Place, room: Room, tell: Callable[[Progress], None]
) -> list[str]:
    """Measure what is wanted of what there is room for; what runs out all the same goes to `room`. Returns what NVML flagged."""
    seconds = medians(work)
    step, said = Progress(0, len(whole.points), None, "looking at the GPU's memory"), set[str]()

    def fit() -> Plan:
        plan, left_out = fitting(whole, room)
        for line in left_out:
            if line not in said:
                tell(replace(step, warning=f"left out: {line}"))
        said.update(left_out)
        return plan

    plan = fit()
    flags: dict[str, None] = {}
    begun, done_weight = place.gpu.clock(), 0.0
    lookout = Lookout(plan)
    while wanted := lookout.look(seconds).wanted:
        point = place.first(wanted)
        if isinstance(measured := _tried(plan, point, place, flags), str):
            gc.collect()  # a companion's error and its thread hold each other, and what was allocated
            room.failed.append((point, measured))
            plan = fit()
            lookout = Lookout(plan)
            continue
        work.add(point, measured)
        seconds[point.key] = medians(work)[point.key]
        ahead = lookout.look(seconds)
        settled = seconds.keys() | ahead.follows.keys() | ahead.absent
        left = [each for each in plan.points if each.key not in settled]
        done_weight += weight(point)
        each = (place.gpu.clock() - begun) / done_weight if done_weight else SLOW_WEIGHT_S
        left_s = each * sum(map(weight, left))
        total = rows(plan, ahead)
        step = Progress(total - len(left), total, left_s, words(point))
        tell(step)
    return list(flags)


def _tried(plan: Plan, point: Point, place: Place, flags: dict[str, None]) -> Measured | str:
    """As measured, once more if it was disturbed; or what was said when memory ran out."""
    try:
        with no_room_for(words(point)):
            measured = _once(plan, point, place, flags)
            return measured if measured.ratio <= 1 else _once(plan, point, place, flags)
    except OutOfMemory as error:
        return error.message


WAKE = {"companion": None, "least": 10**6, "steps": 10**6, "cap_s": 0.5}
"""Of a point that is run to wake the GPU: half a second of it, alone."""
DISTURBED = 2.0
"""Written as the ratio of a point that NVML rejects: beyond every bound of the gate."""


def _once(plan: Plan, point: Point, place: Place, flags: dict[str, None]) -> Measured:
    asked = {**asdict(point), **asdict(plan.sampling)}
    on_sms = point.stage in (Stage.ENCODE, Stage.PREFILL, Stage.DECODE)
    look = place.snapshot
    before = place.waker.before(look, lambda: place.measure(asked | WAKE)) if on_sms else look()
    reply = place.measure(asked)
    after = look()
    measured = Measured(tuple(reply.pop("samples")), **reply)
    if on_sms:
        place.waker.after(after)
    elif before is not None:
        before = replace(before, sm_mhz=None)  # the SMs may come to rest meanwhile
    if before is None or after is None:
        return measured
    verdict = nvml.noise(before, after, own=[os.getpid(), *place.processes()])
    flags.update(dict.fromkeys((*verdict.flags, *verdict.reject)))
    return replace(measured, ratio=DISTURBED) if verdict.reject else measured

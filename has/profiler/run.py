"""Make a profile: measure the points of a plan on the device's lanes, in as many at once as it has GPUs."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from has.core.profile import Profile
from has.core.stage import Stage
from has.device import host, nominal
from has.device.cpu import nominal_table
from has.device.device_model import VIRTUAL_GPU
from has.device.fleet import Fleet
from has.device.gate import P90_BOUND
from has.device.nominal import Nominal
from has.errors import InputError, MissingError
from has.files.profile import profile_from_rows, save_profile
from has.models.bench import OPEN
from has.models.names import BUNDLED
from has.models.tokens import token_rule
from has.profiler.measure import WORKER
from has.profiler.plan import Plan, Point, Size, load, make_plan, weight
from has.profiler.points import Measured, WorkFile, work_file_path

WORKERS_PER_GPU = 2
"""Points on few SMs leave most of a slice idle; so more points than GPUs are measured at once."""
BUSY_BOUND = 0.95
"""Share of the slices that points may keep busy: what is left is for preparing others, which is not paced."""
REPEATED_SHARE = 10
"""Of this many points one may be measured again; a host that disturbs more will not be quieter then."""
UNSTABLE_SPREAD = 0.10
MEASURED_ERROR = 0.05


@dataclass(frozen=True, slots=True)
class Progress:
    """done of total points, seconds left by forecast (None: unknown yet), and what is being done."""

    done: int
    total: int
    eta_s: float | None
    doing: str


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
    seed: int = 0,
) -> Profile:
    """Measure the profile of a bundled model on the CPU device; with `out`, write it there (.parquet or .csv).

    Every finished point is kept at once in `work_file_path(out)`; called again, only what is missing is
    measured (resume=False: all of it). Interrupted, it leaves no process behind and loses no finished point.
    Raises InputError for bad arguments, MissingError where the device is not here, RunError where measuring fails.
    """
    _check(model, device, virtual_gpus)
    tell = progress or (lambda _: None)
    plan = make_plan(
        model,
        VIRTUAL_GPU.offer,
        lambda count: token_rule(model).nearest(BUNDLED[model], count).tokens,
        size=size,
        sm=sm,
        batch=batch,
        tokens=tokens,
    )
    total = len(plan.points)
    tell(Progress(0, total, None, "measuring what works cost on this CPU"))
    table = nominal_table(model, OPEN, total_share=total_share)
    path = work_file_path(out) if out is not None else None
    if path is not None and not resume:
        path.unlink(missing_ok=True)
    setup = _digest(plan.digest(), table.digest(), VIRTUAL_GPU.digest(), str(seed))
    work = WorkFile(path, setup)
    missing = [point for point in plan.points if point not in work]
    if missing or not work.facts:
        _measure(plan, missing, work, table, virtual_gpus, seed, tell)
    profile = _profile(plan, work, table)
    if out is not None:
        save_profile(profile, out)
    tell(Progress(total, total, 0.0, "done"))
    return profile


def _check(model: str, device: str, virtual_gpus: int) -> None:
    if device != "cpu":
        raise MissingError(
            f"this version measures profiles on the cpu device, not on {device}",
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
    missing: list[Point],
    work: WorkFile,
    table: Nominal,
    virtual_gpus: int,
    seed: int,
    tell: Callable[[Progress], None],
) -> None:
    """Measure what is missing; a point that the host disturbed once more."""
    size = min(WORKERS_PER_GPU * virtual_gpus, max(1, len(missing)))
    total = len(plan.points)
    forecast = Forecast(missing)
    with Fleet(OPEN, plan.model, WORKER, size) as fleet:
        if not work.facts:
            work.note(fleet.ask(0, {"facts": True}))
        for index in range(size):
            fleet.ask(index, {"table": nominal.to_dict(table), "seed": seed})
        waiting, running = list(missing), dict[int, Point]()
        again = set[Any]()
        most_again = len(missing) // REPEATED_SHARE
        while waiting or running:
            for index, point in _assign(waiting, running, size, virtual_gpus):
                fleet.send(index, {**asdict(point), **asdict(plan.sampling)})
            for index, reply in fleet.replies():
                point = running.pop(index)
                measured = Measured(tuple(reply.pop("samples")), **reply)
                if measured.disturbed(point.stage) and point.key not in again and len(again) < most_again:
                    again.add(point.key)
                    waiting.insert(0, point)  # as it is, the longest of those left must not come last
                    continue
                work.add(point, measured)
                tell(
                    Progress(
                        total - len(waiting) - len(running), total, forecast.left_s(point), _words(point)
                    )
                )


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


class Forecast:
    """Seconds left, by the weight of what is done so far and the time it took."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._left = sum(weight(point) * load(point) for point in points)
        self._done = 0.0
        self._begun = time.monotonic()

    def left_s(self, point: Point) -> float | None:
        """After `point` is done."""
        amount = weight(point) * load(point)
        self._done += amount
        self._left -= amount
        if self._done <= 0:
            return None
        return max(0.0, self._left) * (time.monotonic() - self._begun) / self._done


def _words(point: Point) -> str:
    beside = f" beside {point.beside}" if point.companion else ""
    return f"{point.stage}{beside}, {point.sm_percent:g} % of SMs, batch {point.batch}, {point.tokens} tokens"


def _profile(plan: Plan, work: WorkFile, table: Nominal) -> Profile:
    facts = work.facts
    rows, unstable = [], []
    for point in sorted(plan.points, key=lambda p: (list(Stage).index(p.stage), p.key)):
        measured = work.measured[point.key]
        samples = sorted(measured.samples)
        deciles = statistics.quantiles(samples, n=10, method="inclusive") if len(samples) > 1 else samples * 9
        median = statistics.median(samples)
        paced = point.stage in P90_BOUND
        rows.append(
            {
                "stage": str(point.stage),
                "sm_percent": measured.sm_percent,
                "sm_asked": float(point.sm_asked),
                "beside": str(point.beside),
                "batch": point.batch,
                "tokens": point.tokens,
                "latency_s": median,
                "p10_s": deciles[0],
                "p90_s": deciles[8],
                "samples": len(samples),
            }
        )
        if measured.disturbed(point.stage) or (paced and deciles[8] - deciles[0] > UNSTABLE_SPREAD * median):
            unstable.append(
                f"{_words(point)}: p10 {deciles[0]:.4g} s, p90 {deciles[8]:.4g} s, host {measured.ratio:.3f}, companion {measured.covered:.3f}"
            )
    metadata = {
        "version": 1,
        "device": "cpu (emulated)",
        "model": plan.model,
        "source": "measured",
        "engine": "has",
        "sm_count": VIRTUAL_GPU.sm_count,
        "memory_bytes": VIRTUAL_GPU.memory_bytes,
        "dtype": facts["dtype"],
        "tensor_parallel": 1,
        "partition_mechanism": "deadline pacing (emulated)",
        "weights_bytes": facts["weights_bytes"],
        "kv_bytes_per_token": facts["kv_bytes_per_token"],
        "error": MEASURED_ERROR,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "notes": {
            "emulated": "virtual GPUs: real computation on slices of this CPU, paced by the device model below",
            "plan": plan.size,
            "unstable": unstable,
        },
        "device_model": VIRTUAL_GPU.text(),
        "device_model_digest": VIRTUAL_GPU.digest(),
        "cpu": host.cpu_name(),
        "cpu_share": table.total_share,
        "nominal_digest": table.digest(),
    }
    return profile_from_rows(metadata, rows)

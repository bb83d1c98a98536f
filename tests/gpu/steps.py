"""The checks, each yielding lines as it finds them."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.gpu.setting import Line, Setting, snapshot

ESTIMATE_BOUND = 1.0
"""An estimate off by more than twice says that one of the two is wrong, not that the engine adds a little."""
MEDIAN_BOUND = 0.5


def run(gpu: Any, stage: str, fn: Callable[[], Any], share: float = 100.0, times: int = 5) -> float:
    """Median seconds on a lane, after one run."""
    from has.device.base import Work

    spans = [gpu.lanes[stage].run(fn, Work(stage, 1, 1, share))[1] for _ in range(times + 1)]
    return statistics.median(span.duration_s for span in spans[1:])


def product(setting: Setting, size: int) -> Callable[[], Any]:
    import torch

    dtype = torch.bfloat16 if setting.device != "cpu" else torch.float32
    a = torch.randn(size, size, device=setting.device, dtype=dtype)

    def compute() -> Any:
        out = a
        for _ in range(8):
            out = a @ a
        return out

    return compute


def granted(setting: Setting) -> Iterator[Line]:
    """What was asked of the driver and what it gave, at every level."""
    if setting.partition is None:
        mechanism = getattr(setting.gpu.device, "mechanism", "CPU")
        yield Line("SM partition", setting.device == "cpu", f"none: {mechanism}")
        return
    total = setting.partition.device.sm_count
    for share, pair in setting.partition.pairs.items():
        yield Line(
            f"{pair.asked_sms} SMs asked",
            pair.encode_sms + pair.prefill_sms <= total,
            f"{pair.encode_sms} + {pair.prefill_sms} of {total} given ({share:.1f} %)",
            {"asked": pair.asked_sms, "encode": pair.encode_sms, "prefill": pair.prefill_sms},
        )


def scaling(setting: Setting) -> Iterator[Line]:
    """A large product takes total/SMs as long; beside another on the rest it is hardly slower: the halves are disjoint."""
    work = product(setting, 4096 if setting.device != "cpu" else 256)
    whole_s = run(setting.gpu, "encode", work)
    yield Line("product on 100 %", True, f"{1e3 * whole_s:.2f} ms", {"seconds": whole_s})
    if setting.partition is None:
        return
    for share in setting.partition.pairs:
        part_s = run(setting.gpu, "encode", work, share)
        factor, ideal = part_s / whole_s, 100 / share
        yield Line(
            f"product on {share:.0f} %",
            0.7 * ideal < factor < 1.3 * ideal,
            f"x{factor:.2f} (1/share {ideal:.2f})",
            {"share": share, "seconds": part_s},
        )
    alone_s = run(setting.gpu, "encode", work, 50.0)
    stop = threading.Event()

    def beside() -> None:
        while not stop.is_set():
            run(setting.gpu, "prefill", work, 50.0, times=1)

    thread = threading.Thread(target=beside, daemon=True)
    thread.start()
    try:
        both_s = run(setting.gpu, "encode", work, 50.0)
    finally:
        stop.set()
        thread.join(timeout=10)
    yield Line(
        "product on 50 % beside another",
        both_s < 1.4 * alone_s,
        f"x{both_s / alone_s:.2f} of alone",
        {"alone": alone_s, "beside": both_s},
    )


def answers(setting: Setting) -> Iterator[Line]:
    """The bundled models answer on the device as on the CPU: greedy, 24 tokens, float32."""
    from has.models.stage_model import load_stage_model
    from tests.models.cases import answer_alone, case

    for name in ("tiny-image", "tiny-video", "tiny-audio"):
        here, there = load_stage_model(name), load_stage_model(name, setting.device)
        request = case(here, 1)
        expected, got = answer_alone(here, request, 24), answer_alone(there, request, 24)
        parted = next((i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if a != b), None)
        yield Line(
            f"{name}: 24 tokens",
            parted is None,
            "as on the CPU" if parted is None else f"part at token {parted}",
        )


SIZES = [
    ("encode", 1, 1196),
    ("encode", 4, 1196),
    ("prefill", 1, 512),
    ("prefill", 1, 2048),
    ("decode", 1, 2048),
    ("decode", 32, 2048),
]
SMALL = [("encode", 1, 64), ("prefill", 1, 64), ("decode", 2, 64)]


def stages(setting: Setting) -> Iterator[Line]:
    """A model with dummy weights, stage by stage, against the estimate for this GPU."""
    from has.models.bench import open_bench, open_dummy_bench

    small = setting.device == "cpu"
    bench = open_bench("tiny-image") if small else open_dummy_bench(setting.model, setting.device)
    estimate, lacking = estimator(setting)
    yield from lacking
    for stage, batch, count in SMALL if small else SIZES:
        measured_s = run(
            setting.gpu, stage, bench.prepare(stage, batch, count), times=8 if stage == "decode" else 4
        )
        figure, ok, data = f"{1e3 * measured_s:.2f} ms", True, {"seconds": measured_s}
        if estimate is not None:
            estimated_s = getattr(estimate, stage)(batch, count).seconds(estimate.gpu, 100.0)
            off = measured_s / estimated_s - 1
            figure += f", estimate {1e3 * estimated_s:.2f} ms ({off:+.0%})"
            ok, data["estimate"] = abs(off) <= ESTIMATE_BOUND, estimated_s
        yield Line(f"{stage}, batch {batch}, {count} tokens", ok, figure, data)
    for share in setting.partition.pairs if setting.partition else ():
        if setting.left_s < 10:
            return
        for stage, count in (("encode", 1196), ("prefill", 512)):
            measured_s = run(setting.gpu, stage, bench.prepare(stage, 1, count), share, times=3)
            at = setting.gpu.given(stage, share)
            yield Line(
                f"{stage} on {at:.0f} %",
                True,
                f"{1e3 * measured_s:.2f} ms",
                {"share": at, "seconds": measured_s},
            )


def estimator(setting: Setting) -> tuple[Any, list[Line]]:
    """The estimate for this GPU; where it or the model has no facts None, and the line that fails as nothing is compared."""
    from has.errors import InputError
    from has.files import facts
    from has.latency.estimate import Estimator
    from has.latency.roofline import Gpu, Roofline

    if setting.device == "cpu":  # a rehearsal: no data sheet is this machine's
        return None, []
    try:
        card = Gpu.from_facts(setting.gpu.device.name)
        return Estimator(facts.find_model(setting.model), Roofline(card), 1), []
    except InputError as error:
        return None, [Line("estimate", False, f"nothing to compare with: {error.message}")]


def profile(setting: Setting) -> Iterator[Line]:
    """A quick profile of the model, as far as time allows (its points are kept and can be gone on with), against the estimate."""
    if setting.device == "cpu":
        yield Line("profile", True, "not rehearsed: has profile --device cpu is its rehearsal")
        return
    import torch

    from has.profiler.cuda import profile_cuda
    from has.profiler.points import Progress

    torch.cuda.empty_cache()
    out = setting.out / f"{Path(setting.model).name}.parquet"
    seen: list[Progress] = []

    def tell(progress: Progress) -> None:
        seen.append(progress)
        if setting.left_s < 3:
            raise KeyboardInterrupt

    try:
        measured = profile_cuda(
            setting.model, size="quick", sm=None, batch=None, tokens=None, out=out, tell=tell
        )
    except KeyboardInterrupt:
        last = seen[-1]
        yield Line(
            "profile",
            True,
            f"{last.done} of {last.total} points in the time there was, kept beside {out.name}",
            {"done": last.done, "total": last.total},
        )
        return
    notes: Any = measured.metadata.notes
    yield Line(
        "profile",
        True,
        f"{len(measured.rows)} rows, {notes['measured']} measured, {len(notes['unstable'])} unstable",
        {"flags": notes["flags"], "sharing": (measured.metadata.model_extra or {}).get("sharing")},
    )
    estimate, lacking = estimator(setting)
    yield from lacking
    for stage in ("encode", "prefill", "decode") if estimate is not None else ():
        rows = [row for row in measured.rows if row.stage == stage and row.beside == "none" and row.samples]
        off = [
            row.latency_s
            / getattr(estimate, stage)(row.batch, row.tokens).seconds(estimate.gpu, row.sm_percent)
            - 1
            for row in rows
        ]
        middle = statistics.median(map(abs, off))
        yield Line(
            f"{stage} against the estimate",
            middle <= MEDIAN_BOUND,
            f"median {middle:.0%} off, bias {statistics.median(off):+.0%}, {len(off)} points",
            {"median": middle, "bias": statistics.median(off), "points": len(off)},
        )


def noise(setting: Setting) -> Iterator[Line]:
    """Whether the gate would have passed what was measured so far."""
    from has.device import nvml

    seen = snapshot(setting)
    if seen is None:
        yield Line("noise gate", setting.device == "cpu", "NVML does not know this GPU")
        return
    own = setting.watch.own
    verdict = nvml.noise(replace(seen, sm_mhz=None), seen, own)  # clocks rise from rest: that is no drift
    yield Line(
        "noise gate",
        not verdict.reject,
        "; ".join((*verdict.reject, *verdict.flags)) or f"quiet, {seen.sm_mhz} MHz, {seen.temperature_c} C",
        {"sm_mhz": seen.sm_mhz, "temperature_c": seen.temperature_c, "mig": seen.mig},
    )

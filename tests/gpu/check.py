"""Checks on a real GPU, each a line of a table. Not run on one yet; `--rehearse` runs them on the CPU without their meaning."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

BUDGET_S = 560.0
ESTIMATE_BOUND = 1.0
"""An estimate off by more than twice says that one of the two is wrong, not that the engine adds a little."""


@dataclass
class Setting:
    device: str
    model: str
    gpu: Any
    partition: Any
    uuid: str | None


@dataclass(frozen=True)
class Line:
    what: str
    ok: bool
    figure: str


class HostTimer:
    """For the rehearsal: the lane's interface over the host's clock."""

    def stream(self, handle: int | None = None, priority: int = 0) -> Any:
        return object()

    def priorities(self) -> tuple[int, int]:
        return 0, 0

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        yield

    def record(self, stream: Any) -> float:
        return time.monotonic()

    def wait(self, event: float) -> None:
        pass

    def between_s(self, first: float, second: float) -> float:
        return second - first


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
    if setting.partition is None:
        yield Line(
            "SM partition",
            setting.device == "cpu",
            "none: " + getattr(setting.gpu.device, "mechanism", "CPU"),
        )
        return
    for share, pair in setting.partition.pairs.items():
        total = setting.partition.device.sm_count
        yield Line(
            f"{pair.asked_sms} SMs asked",
            pair.encode_sms + pair.prefill_sms <= total,
            f"{pair.encode_sms} + {pair.prefill_sms} of {total} given ({share:.1f} %)",
        )


def scaling(setting: Setting) -> Iterator[Line]:
    """A large product takes total/SMs as long; beside another on the rest it is hardly slower: the halves are disjoint."""
    work = product(setting, 4096 if setting.device != "cpu" else 256)
    whole_s = run(setting.gpu, "encode", work)
    for share in (25.0, 50.0, 75.0) if setting.partition else ():
        part_s = run(setting.gpu, "encode", work, share)
        given = setting.gpu.offer(share)
        factor, ideal = part_s / whole_s, 100 / given
        yield Line(
            f"product on {given:.0f} %",
            0.7 * ideal < factor < 1.3 * ideal,
            f"x{factor:.2f} (1/share {ideal:.2f})",
        )
    if setting.partition:
        alone_s = run(setting.gpu, "encode", work, 50.0)
        stop = threading.Event()

        def beside() -> None:
            while not stop.is_set():
                run(setting.gpu, "prefill", work, 50.0, times=1)

        thread = threading.Thread(target=beside)
        thread.start()
        both_s = run(setting.gpu, "encode", work, 50.0)
        stop.set()
        thread.join()
        yield Line(
            "product on 50 % beside another", both_s < 1.4 * alone_s, f"x{both_s / alone_s:.2f} of alone"
        )


def tokens(setting: Setting) -> Iterator[Line]:
    """The bundled image model answers on the device as on the CPU: greedy, 24 tokens, float32."""
    from has.models.stage_model import load_stage_model
    from tests.models.cases import answer_alone, case

    for name in ("tiny-image", "tiny-video", "tiny-audio"):
        here, there = load_stage_model(name), load_stage_model(name, setting.device)
        request = case(here, 1)
        same = answer_alone(there, request, 24) == answer_alone(here, request, 24)
        yield Line(f"{name}: 24 tokens", same, "as on the CPU" if same else "differ")


def stages(setting: Setting) -> Iterator[Line]:
    """A model with dummy weights, stage by stage, against the estimate for this GPU."""
    from has.errors import InputError
    from has.files import facts
    from has.latency.estimate import Estimator
    from has.latency.roofline import Gpu, Roofline
    from has.models.bench import open_bench, open_dummy_bench

    bench = (
        open_dummy_bench(setting.model, setting.device)
        if setting.device != "cpu"
        else open_bench("tiny-image")
    )
    try:
        card = Gpu.from_facts(setting.gpu.device.name.removeprefix("NVIDIA "))
        estimate = Estimator(facts.find_model(setting.model), Roofline(card), 1)
    except (InputError, AttributeError):
        estimate = None
    small = setting.device == "cpu"
    for stage, batch, count in (
        [("encode", 1, 64), ("prefill", 1, 64), ("decode", 2, 64)]
        if small
        else [
            ("encode", 1, 1196),
            ("encode", 4, 1196),
            ("prefill", 1, 512),
            ("prefill", 1, 2048),
            ("decode", 1, 2048),
            ("decode", 32, 2048),
        ]
    ):
        measured_s = run(
            setting.gpu, stage, bench.prepare(stage, batch, count), times=8 if stage == "decode" else 4
        )
        figure, ok = f"{1e3 * measured_s:.2f} ms", True
        if estimate is not None:
            load = getattr(estimate, stage)(batch, count)
            estimated_s = load.seconds(estimate.gpu, 100.0)
            off = measured_s / estimated_s - 1
            figure += f", estimate {1e3 * estimated_s:.2f} ms ({off:+.0%})"
            ok = abs(off) <= ESTIMATE_BOUND
        yield Line(f"{stage}, batch {batch}, {count} tokens", ok, figure)
    for share in (25.0, 50.0) if setting.partition else ():
        measured_s = run(setting.gpu, "encode", bench.prepare("encode", 1, 1196), share, times=3)
        yield Line(f"encode on {setting.gpu.offer(share):.0f} %", True, f"{1e3 * measured_s:.2f} ms")


def setting_of(arguments: list[str]) -> Setting:
    from has.device import cuda, nvml
    from has.device.cuda_lanes import CudaGpu, TorchTimer

    model = next((a for a in arguments if not a.startswith("-")), "qwen2.5-vl-7b")
    if "--rehearse" in arguments:
        gpu = CudaGpu(None, None, HostTimer())  # type: ignore[arg-type]  # no device: whole "GPU" alone is used
        return Setting("cpu", model, gpu, None, None)
    driver = cuda.load_driver()
    device = cuda.devices(driver)[0]
    uuid = next((u for u in nvml.uuids(nvml.load_nvml()) if u.endswith(device.uuid)), None)
    import torch

    torch.zeros(1, device="cuda")  # the context is torch's, made before any green one
    partition = cuda.SmPartition(driver, device) if device.mechanism == "green contexts" else None
    return Setting("cuda", model, CudaGpu(device, partition, TorchTimer(device.index)), partition, uuid)


def noise(setting: Setting, before: Any) -> Iterator[Line]:
    from has.device import nvml

    if setting.uuid is None:
        return
    verdict = nvml.noise(before, nvml.snapshot(nvml.load_nvml(), setting.uuid))
    yield Line("noise gate", not verdict.reject, "; ".join((*verdict.reject, *verdict.flags)) or "quiet")


def main(arguments: list[str]) -> int:
    from has.device import nvml
    from has.errors import HasError

    begun = time.monotonic()
    try:
        setting = setting_of(arguments)
    except HasError as error:
        print(f"no check: {error.message}\n  {error.mend}", file=sys.stderr)
        return 3
    before = nvml.snapshot(nvml.load_nvml(), setting.uuid) if setting.uuid else None
    if before is not None:
        print(
            f"{before.name}, driver {before.driver}, {before.sm_mhz} MHz, MIG {'on' if before.mig else 'off'}"
        )
    failed = 0
    for check in (granted, scaling, tokens, stages, lambda s: noise(s, before)):
        if time.monotonic() - begun > BUDGET_S:
            print("out of time: the checks after this one were not run")
            failed += 1
            break
        try:
            for line in check(setting):
                failed += not line.ok
                print(f"{'ok  ' if line.ok else 'FAIL'}  {line.what:<36} {line.figure}", flush=True)
        except HasError as error:
            failed += 1
            print(f"FAIL  {error.message}", flush=True)
    print(f"{failed} failed, {time.monotonic() - begun:.0f} s")
    setting.gpu.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What the checks run on: the first GPU, or, for a rehearsal, the CPU behind the lanes' interface."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "cuda-bindings", "nvidia-ml-py", "numpy", "numba", "pyarrow", "pydantic")


@dataclass
class Setting:
    """watch: what NVML says of the GPU (None: there is none). until: when the step that runs now should have ended.
    words: the device in a line."""

    device: str
    model: str
    gpu: Any
    partition: Any
    watch: Any
    out: Path
    words: str
    until: float = float("inf")

    @property
    def left_s(self) -> float:
        return self.until - time.monotonic()


@dataclass(frozen=True)
class Line:
    """ok: whether it holds. data: figures for the file, beside the words."""

    what: str
    ok: bool
    figure: str
    data: dict[str, Any] = field(default_factory=dict)


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


def environment() -> dict[str, Any]:
    """Versions, whether or not the device can be opened."""
    found: dict[str, Any] = {"python": platform.python_version(), "kernel": platform.release()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def snapshot(setting: Setting) -> Any:
    """What NVML says now, or None."""
    return setting.watch.snapshot() if setting.watch else None


def setting_of(model: str, out: Path, *, rehearse: bool) -> Setting:
    from has.device import cuda
    from has.device.cuda_lanes import CudaGpu, TorchTimer
    from has.device.watch import Watch

    if rehearse:
        gpu = CudaGpu(None, None, HostTimer())  # type: ignore[arg-type]  # no device: whole "GPU" alone is used
        return Setting("cpu", model, gpu, None, None, out, "rehearsal on the CPU")
    driver = cuda.load_driver()
    device = cuda.devices(driver)[0]
    watch = Watch(device.uuid)
    if watch.blind:  # a container may hide NVML: the partition can be tried without
        print(f"no NVML: {watch.blind}")
    import torch

    # the context is torch's, made before any green one
    watch.opening(lambda: torch.zeros(1, device="cuda"))
    words = (
        f"{device.name}, {device.sm_count} SMs, {device.memory_bytes / 2**30:.0f} GiB, capability"
        f" {device.capability[0]}.{device.capability[1]}, driver API {device.driver}, {device.mechanism}"
        + (f" in steps of {device.align_sms} SMs, at least {device.min_sms}" if device.min_sms else "")
        + "".join(f"; no {name}: {why}" for name, why in device.reasons.items())
    )
    partition = cuda.SmPartition(driver, device) if device.mechanism == "green contexts" else None
    return Setting(
        "cuda", model, CudaGpu(device, partition, TorchTimer(device.index)), partition, watch, out, words
    )

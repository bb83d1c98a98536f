"""A GPU to profile."""

from __future__ import annotations

import pytest

from has.device import cuda, nvml
from has.device.cuda_lanes import CudaGpu
from has.profiler.cuda import in_this_process
from tests.device.fake_driver import FakeDriver
from tests.profiler.cuda_fake import Bench, Gpu


@pytest.fixture
def place(monkeypatch):
    """Opens an L40S; `snapshots` are what NVML says, the last one again and again."""
    monkeypatch.setattr(cuda, "mps_state", lambda: "absent")

    def make(driver: FakeDriver, snapshots: list[nvml.Snapshot | None]):
        def opened(model, shares):
            timer = Gpu()
            (device,) = cuda.devices(driver)
            partition = (
                cuda.SmPartition(driver, device, shares) if device.mechanism == "green contexts" else None
            )
            gpu = CudaGpu(device, partition, timer, clock=timer.clock)
            for pair in (partition.pairs if partition else {}).values():
                timer.sms[f"context {int(pair.encode_stream)}"] = 100 * pair.encode_sms / device.sm_count
                timer.sms[f"context {int(pair.prefill_stream)}"] = 100 * pair.prefill_sms / device.sm_count
            left = list(snapshots)
            return in_this_process(gpu, Bench(timer), True, lambda: left.pop(0) if len(left) > 1 else left[0])

        return opened

    return make

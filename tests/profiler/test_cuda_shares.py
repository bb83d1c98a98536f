"""Each side of a split is measured on the SMs that its row says, on every NVIDIA GPU of the facts. No GPU takes part in this."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from has.core.stage import Stage
from has.device import cuda
from has.device.cuda_lanes import CudaGpu
from has.errors import RunError
from has.files import facts
from has.profiler.cuda import CUDA_AXES, partition_levels
from has.profiler.measure import Measurer
from has.profiler.plan import make_plan
from tests.device.fake_driver import FakeDriver
from tests.profiler.cuda_fake import Bench, Gpu

SMS = sorted({gpu["sm_or_cu"] for name, gpu in facts.gpus().items() if not name.startswith("MI")})
GRANULARITY = {132: (8, 8), 148: (8, 8)}
"""Hopper and Blackwell; Ampere and Ada split in twos from four on."""


def opened(monkeypatch, sms, size, lost=0):
    monkeypatch.setattr(cuda, "mps_state", lambda: "absent")
    driver = FakeDriver(sm_count=sms, says_granularity=GRANULARITY.get(sms, (4, 2)), lost=lost)
    (device,) = cuda.devices(driver)
    timer = Gpu()
    return CudaGpu(
        device,
        cuda.SmPartition(driver, device, partition_levels(None, None, size)),
        timer,
        clock=timer.clock,
    )


def plan_of(gpu, size):
    return make_plan("qwen2.5-vl-7b", gpu.given, lambda count: count, size=size, usual=CUDA_AXES)


@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("size", ["quick", "full"])
@pytest.mark.parametrize("sms", SMS)
def test_both_sides_run_on_one_pair_at_the_share_of_the_row(monkeypatch, sms, size, lost):
    """Also a spare share, and where a split leaves SMs in neither part."""
    with opened(monkeypatch, sms, size, lost) as gpu:
        measurer = Measurer(Bench(gpu.timer), 0, gpu)
        sides = [
            (f"context {int(pair.encode_stream)}", f"context {int(pair.prefill_stream)}", pair)
            for pair in gpu.partition.pairs.values()
        ]
        plan = plan_of(gpu, size)
        one_each = {
            (point.stage, point.sm_percent): point
            for point in plan.points
            if point.companion and point.sm_percent < 100
        }
        assert any(point.spare for point in one_each.values())
        for (stage, share), point in one_each.items():
            gpu.timer.launched.clear()
            reply = measurer.measure({**asdict(point), **asdict(plan.sampling)})
            ran = set(gpu.timer.launched)
            assert reply["sm_percent"] == share
            (pair,) = [pair for encode, prefill, pair in sides if ran == {encode, prefill}]
            sms_had = pair.encode_sms if stage is Stage.ENCODE else pair.prefill_sms
            assert share == pytest.approx(100 * sms_had / sms)


def test_a_row_of_other_sms_than_it_ran_on_is_refused(monkeypatch):
    with opened(monkeypatch, 132, "quick") as gpu:
        measurer, plan = Measurer(Bench(gpu.timer), 0, gpu), plan_of(gpu, "quick")
        point = next(p for p in plan.points if p.stage is Stage.PREFILL and p.sm_percent < 100)
        monkeypatch.setattr(gpu, "given", lambda stage, share: 100.0)
        with pytest.raises(RunError, match=r"and not on the 100 % that its row is of"):
            measurer.measure({**asdict(point), "companion": None, **asdict(plan.sampling)})

"""A profile under MPS: real processes, each with its percentage, and a GPU that follows a formula. No GPU takes part in this."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from has.core.stage import Beside, Stage
from has.device import cuda
from has.latency.lookup import LatencyModel
from has.profiler.cuda import Place, profile_cuda
from has.profiler.cuda_mps import KEPT, MpsGpu
from has.profiler.plan import Companion, Point
from tests.device.fake_driver import FakeDriver
from tests.profiler.mps_share import FACTS, MOST_ROWS, SMS, sms_of


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(cuda, "mps_state", lambda: "running")
    (device,) = cuda.devices(FakeDriver(no_green=True, sm_count=SMS, capability=(9, 0)))
    assert device.mechanism == "MPS"
    with MpsGpu(
        device, [25.0, 50.0, 75.0], "qwen2.5-vl-7b", True, opener="tests.profiler.mps_share:open_share"
    ) as made:
        yield made


def measured(gpu, **plan):
    def opened(model, shares):
        return Place(gpu, FACTS, "image", True, gpu.measure, lambda: None, gpu.first, gpu.processes)

    return profile_cuda(
        "qwen2.5-vl-7b", size="quick", out=None, tell=lambda _: None, open_place=opened, **plan
    )


@pytest.mark.live
def test_a_profile_under_mps_has_the_shares_that_processes_were_given(gpu):
    profile = measured(gpu, sm=[25, 50, 75, 100], batch=[1, 2], tokens=[64])
    assert "MPS" in profile.metadata.partition_mechanism
    given = [100 * sms_of(share) / SMS for share in (25, 50, 75, 100)]
    for stage in (Stage.ENCODE, Stage.PREFILL, Stage.DECODE):
        assert sorted({row.sm_percent for row in profile.rows if row.stage == stage}) == pytest.approx(given)
    latency = LatencyModel.from_profile(profile)
    assert latency.seconds(Stage.ENCODE, 2, 64) == pytest.approx(0.128)
    assert latency.seconds(Stage.ENCODE, 2, 64, given[0]) == pytest.approx(0.128 * 100 / given[0])
    assert latency.covers(Stage.ENCODE, Beside.PREFILL)
    assert not psutil.Process().children(recursive=True)  # closed with the profile


@pytest.mark.live
def test_a_point_that_runs_out_of_memory_in_its_process_is_left_out(gpu):
    """A companion that runs meanwhile is stopped, and the processes go on."""
    profile = measured(gpu, sm=[50, 100], batch=[1, 16], tokens=[64, 1024])
    assert 16 * 64 < MOST_ROWS < 16 * 1024
    for stage in (Stage.ENCODE, Stage.PREFILL, Stage.DECODE):
        rows = [(row.batch, row.tokens) for row in profile.rows if row.stage is stage]
        assert {(1, min(tokens for _, tokens in rows))} < set(rows)
        assert max(batch * tokens for batch, tokens in rows) <= MOST_ROWS
    assert any("CUDA out of memory" in line for line in profile.metadata.notes["left_out"])


@pytest.mark.live
def test_no_more_processes_hold_the_model_than_two_and_points_for_them_come_first(gpu):
    points = [
        Point(Stage.ENCODE, 25.0, 1, 64, 25.0),
        Point(Stage.ENCODE, 75.0, 1, 64, 75.0, Companion(Stage.PREFILL, 1, 64)),
        Point(Stage.ENCODE, 50.0, 1, 64, 50.0),
    ]
    assert gpu.first(points) is points[0]
    for share in (25, 50):
        gpu.given("encode", share)
    assert gpu.first(points[1:]) is points[2]
    for share in (75, 100):
        gpu.given("encode", share)
    assert len(gpu.processes()) - len(cuda.mps_servers()) == KEPT

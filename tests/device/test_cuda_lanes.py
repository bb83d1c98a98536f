"""Lanes of a CUDA device on a recorded driver and timer. No GPU takes part in this."""

from __future__ import annotations

import threading

import pytest

from has.device import cuda
from has.device.base import Iteration, Work
from has.device.cuda_lanes import ANCHOR_S, CudaGpu
from has.errors import RunError
from tests.device.fake_driver import FakeDriver, FakeTimer


@pytest.fixture
def made(monkeypatch):
    """(gpu, timer, driver) of an L40S in pairs of 25, 50 and 75 %."""
    monkeypatch.setattr(cuda, "mps_state", lambda: "absent")
    driver, timer = FakeDriver(), FakeTimer()
    (device,) = cuda.devices(driver)
    partition = cuda.SmPartition(driver, device, [25.0, 50.0, 75.0])
    with CudaGpu(device, partition, timer, clock=timer.clock) as gpu:
        yield gpu, timer, driver
    assert not driver.live


def stream(gpu, share, side):
    return f"context {int(getattr(gpu.partition.pair(share), f'{side}_stream'))}"


def test_encode_runs_on_its_share_and_says_what_it_got(made):
    gpu, timer, _ = made
    assert gpu.offer(40) == pytest.approx(100 * 70 / 142)
    assert gpu.offer(100) == 100
    result, span = gpu.lanes["encode"].run(lambda: "embedding", Work("encode", 4, 576, 40))
    assert result == "embedding"
    assert timer.launched == [stream(gpu, 50, "encode")]
    assert span.ratio == 1.0


def test_a_prefill_beside_an_encode_takes_the_other_side_of_its_pair_else_the_whole_gpu(made):
    gpu, timer, _ = made
    encoding, done = threading.Event(), threading.Event()

    def encode():
        encoding.set()
        assert done.wait(20)

    lane = threading.Thread(target=gpu.lanes["encode"].run, args=(encode, Work("encode", 1, 576, 25)))
    lane.start()
    assert encoding.wait(20)
    gpu.lanes["prefill"].run(lambda: None, Work("prefill", 1, 700))
    beside = timer.launched[-1]
    done.set()
    lane.join()
    gpu.lanes["prefill"].run(lambda: None, Work("prefill", 1, 700))
    assert beside == stream(gpu, 25, "prefill")
    assert timer.launched[-1] == "stream 1"


def test_a_prefill_that_is_profiled_at_a_share_has_the_pair_that_leaves_it(made):
    gpu, timer, _ = made
    gpu.lanes["prefill"].run(lambda: None, Work("prefill", 1, 700, 75))
    assert timer.launched == [stream(gpu, 25, "prefill")]


@pytest.mark.parametrize(
    "work", [Work("decode", 8, 700), Work("encode", 1, 576, 100), Iteration(decode_batch=3)]
)
def test_what_has_no_partner_has_the_whole_gpu(made, work):
    gpu, timer, _ = made
    lane = work.stage if isinstance(work, Work) else "mixed"
    gpu.lanes[lane].run(lambda: None, work)
    assert timer.launched[0].startswith("stream")


def test_streams_and_devices_without_green_contexts_hold_all_sms(monkeypatch):
    monkeypatch.setattr(cuda, "mps_state", lambda: "absent")
    driver, timer = FakeDriver(no_green=True), FakeTimer()
    (device,) = cuda.devices(driver)
    with CudaGpu(device, None, timer, clock=timer.clock) as gpu:
        assert gpu.offer(30) == 100
        gpu.lanes["encode"].run(lambda: None, Work("encode", 1, 576, 30))
    assert timer.launched == ["stream 0"]
    assert [priority for _, priority in timer.made] == [-5, 0, -5, 0]
    assert (gpu.spatial, gpu.prioritised) == (False, True)
    alike = FakeTimer(priorities=(0, 0))
    assert not CudaGpu(device, None, alike, clock=alike.clock).prioritised


def test_spans_are_the_gpus_time_on_the_hosts_time_line(made):
    gpu, timer, _ = made
    timer.took_s[stream(gpu, 50, "encode")] = 0.25
    timer.took_s["stream 2"] = 0.01
    work = Work("encode", 4, 576, 50)
    first, second = (gpu.lanes["encode"].run(lambda: None, work)[1] for _ in range(2))
    assert (first.start_s, first.end_s) == pytest.approx((50.0, 50.25))
    assert second.start_s == pytest.approx(first.end_s)
    step = gpu.lanes["decode"].run(lambda: None, Work("decode", 8, 700))[1]
    assert (step.start_s, step.duration_s) == pytest.approx((second.end_s, 0.01))


def test_the_anchor_is_renewed_before_clocks_drift_apart(made):
    gpu, timer, _ = made
    lane, work = gpu.lanes["decode"], Work("decode", 8, 700)
    lane.run(lambda: None, work)
    timer.clock_s += ANCHOR_S + 1
    timer.began_s += 0.5  # the GPU's clock has lost half a second
    span = lane.run(lambda: None, work)[1]
    assert span.start_s == pytest.approx(timer.clock_s)


def test_what_a_work_raises_frees_the_lane(made):
    gpu, timer, _ = made
    work = Work("encode", 1, 576, 50)

    def fails(error):
        raise error

    with pytest.raises(KeyError):
        gpu.lanes["encode"].run(lambda: fails(KeyError("x")), work)
    with pytest.raises(RunError, match="the GPU failed in encode: CUDA error: an illegal"):
        gpu.lanes["encode"].run(lambda: fails(RuntimeError("CUDA error: an illegal access\nmore")), work)
    assert gpu.encoding is None
    gpu.lanes["prefill"].run(lambda: None, Work("prefill", 1, 700))
    assert timer.launched[-1] == "stream 1"

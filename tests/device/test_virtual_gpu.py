"""Lanes of a virtual GPU: starts, ends, sharing, repricing, iterations."""

from __future__ import annotations

import itertools
import statistics
import threading

import pytest

from has.device.base import Iteration, Work
from has.device.cpu import CREDIT_S, Cancelled, VirtualGpu
from has.device.device_model import VIRTUAL_GPU
from has.errors import InputError, MissingError
from tests.device.virtual import CALM, gpu, table


def seconds(stage, batch, tokens, share=1.0):
    """The declared formula: CPU seconds / (slice · min(share, occupancy)); decode saturates."""
    cpu_s = {
        "encode": 0.02 * batch * tokens / 64,
        "prefill": 0.0002 * batch * tokens,
        "decode": 0.005 + 0.00025 * batch,
    }
    model = VIRTUAL_GPU.stage(stage)
    return cpu_s[stage] / 0.2 / model.rate(share, model.occupancy(batch, tokens))


@pytest.mark.parametrize(
    ("stage", "batch", "tokens"),
    [("encode", 1, 64), ("encode", 4, 96), ("prefill", 2, 100), ("decode", 5, 64)],
)
@pytest.mark.parametrize("percent", [20, 50, 100])
def test_a_work_alone_lasts_what_the_device_model_declares(stage, batch, tokens, percent):
    device, clock = gpu()
    begun = clock.now
    result, span = device.lanes[stage].run(lambda: "computed", Work(stage, batch, tokens, percent))
    assert result == "computed"
    assert span.start_s == begun
    assert span.duration_s == pytest.approx(seconds(stage, batch, tokens, percent / 100))
    assert clock.now == pytest.approx(span.end_s)
    assert span.ratio == pytest.approx(1.0)


def test_a_lane_runs_back_to_back_and_starts_at_the_instant_that_made_ready():
    device, clock = gpu()
    lane = device.lanes["decode"]
    _, first = lane.run(lambda: None, Work("decode", 1, 64))
    clock.now += 0.010  # the host was slow to come back
    _, second = lane.run(lambda: None, Work("decode", 1, 64))
    assert second.start_s == first.end_s
    clock.now += 5.0
    _, third = lane.run(lambda: None, Work("decode", 1, 64, ready_s=clock.now - 0.020))
    assert third.start_s == pytest.approx(clock.now - third.duration_s)


def test_delays_above_the_credit_show():
    device, clock = gpu()
    lane = device.lanes["decode"]
    lane.run(lambda: None, Work("decode", 1, 64))
    clock.now += 0.2
    late = clock.now
    _, span = lane.run(lambda: None, Work("decode", 1, 64, ready_s=late - 0.2))
    assert span.start_s == pytest.approx(late - CREDIT_S)


def test_a_start_never_precedes_the_end_before_it():
    device, _ = gpu()
    lane = device.lanes["decode"]
    _, first = lane.run(lambda: None, Work("decode", 1, 64))
    _, second = lane.run(lambda: None, Work("decode", 1, 64, ready_s=first.start_s))
    assert second.start_s == first.end_s


def test_a_slow_host_is_in_the_ratio_not_in_the_end():
    device, clock = gpu()
    meant = seconds("encode", 1, 64)

    def slow():
        clock.now += 2 * meant

    _, span = device.lanes["encode"].run(slow, Work("encode", 1, 64))
    assert span.duration_s == pytest.approx(meant)
    assert span.ratio == pytest.approx(2.0)


def beside(device, outer: Work, inner: Work):
    """Run `inner` while `outer` runs, both from the same instant."""
    spans = {}

    def during():
        spans["inner"] = device.lanes[inner.stage].run(lambda: None, inner)[1]

    spans["outer"] = device.lanes[outer.stage].run(during, outer)[1]
    return spans["outer"], spans["inner"]


def test_prefill_gets_what_encode_leaves_and_both_suffer():
    device, _ = gpu()
    encode, prefill = VIRTUAL_GPU.encode, VIRTUAL_GPU.prefill
    e, p = beside(device, Work("encode", 8, 64, 60), Work("prefill", 1, 64))
    # the prefill ends first: it had 40 % of the SMs all the time
    assert p.duration_s == pytest.approx(seconds("prefill", 1, 64, 0.4) * prefill.slowdown(0.4, 0.6))
    # encode was slower as long as the prefill ran, then went on at its own rate
    slow = encode.slowdown(0.6, 0.4)
    alone = seconds("encode", 8, 64, 0.6)
    assert e.duration_s == pytest.approx(alone - p.duration_s / slow + p.duration_s)


def test_prefill_has_all_again_when_encode_ends():
    device, _ = gpu()
    prefill = VIRTUAL_GPU.prefill
    p, e = beside(device, Work("prefill", 8, 128), Work("encode", 1, 64, 40))
    # during the encode: 60 % of the SMs, slowed; what remains at 100 %
    used = VIRTUAL_GPU.encode.occupancy(1, 64)
    assert used > 0.4
    rate = 0.6 / prefill.slowdown(0.6, 0.4)
    left = 0.0002 * 8 * 128 / 0.2 - rate * e.duration_s
    assert p.duration_s == pytest.approx(e.duration_s + left)


def test_a_prefill_without_sms_stands_still_and_disturbs_nobody():
    device, _ = gpu()
    p, e = beside(device, Work("prefill", 1, 128), Work("encode", 8, 64, 100))
    assert e.duration_s == pytest.approx(seconds("encode", 8, 64))
    assert p.duration_s == pytest.approx(e.duration_s + seconds("prefill", 1, 128))


def test_streams_hold_all_sms_together():
    device, _ = gpu(streams=True)
    e, p = beside(device, Work("encode", 8, 64), Work("prefill", 1, 64))
    u = VIRTUAL_GPU.prefill.occupancy(1, 64)
    assert p.duration_s == pytest.approx(seconds("prefill", 1, 64) * VIRTUAL_GPU.prefill.slowdown(u, 1.0))
    assert e.duration_s < seconds("encode", 8, 64) + seconds("prefill", 1, 64) * 2


def test_an_iteration_is_the_sum_of_its_parts():
    device, _ = gpu()
    work = Iteration(4, 64, ((0, 96), (64, 32)), (64, 128))
    parts = (
        seconds("decode", 4, 64)
        + seconds("prefill", 2, 64)
        + seconds("encode", 1, 64)
        + seconds("encode", 1, 128)
    )
    earlier = sum(
        sign * device.meant_s(Work("prefill", 1, n)) for sign, n in ((1, 96), (-1, 64), (-1, 32), (1, 0))
    )
    _, span = device.lanes["mixed"].run(lambda: None, work)
    assert span.duration_s == pytest.approx(parts + earlier)


def test_an_error_of_the_computation_passes_and_frees_the_lane():
    device, _ = gpu()

    def fails():
        raise ValueError("as it does")

    with pytest.raises(ValueError, match="as it does"):
        device.lanes["encode"].run(fails, Work("encode", 1, 64))
    assert device.lanes["encode"].run(lambda: 1, Work("encode", 1, 64))[0] == 1


def test_cancelling_ends_the_wait():
    device, clock = gpu()
    begun = clock.now
    with pytest.raises(Cancelled):
        device.lanes["encode"].run(lambda: device.cancel("encode"), Work("encode", 8, 64))
    assert clock.now == begun


def test_jitter_is_seeded_small_and_differs_between_gpus():
    def durations(**options):
        device, _ = gpu(VIRTUAL_GPU, **options)
        run = device.lanes["decode"].run
        return [run(lambda: None, Work("decode", 1, 64))[1].duration_s for _ in range(200)]

    assert durations(seed=3) == durations(seed=3)
    assert durations(seed=3) != durations(seed=4)
    assert durations(seed=3, index=0) != durations(seed=3, index=1)
    drawn = [d / seconds("decode", 1, 64) for d in durations(seed=3)]
    assert abs(statistics.median(drawn) - 1.0) < 0.003
    assert 0.007 < statistics.stdev(drawn) < 0.013


def test_opening_says_what_is_missing(tmp_path, monkeypatch):
    from has.device.cpu import open_gpu

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingError, match="has not been measured"):
        open_gpu(0, "tiny-image")
    with pytest.raises(InputError, match="no such virtual GPU"):
        open_gpu(8, "tiny-image")


def test_two_threads_in_real_time_keep_their_order_and_never_gain():
    device = VirtualGpu(table(), CALM)
    works = {"encode": Work("encode", 1, 64, 40), "prefill": Work("prefill", 2, 64)}
    spans = {lane: [] for lane in works}

    def loop(lane):
        for _ in range(3):
            result, span = device.lanes[lane].run(lambda: lane, works[lane])
            assert result == lane
            spans[lane].append(span)

    threads = [threading.Thread(target=loop, args=(lane,)) for lane in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for lane, of in spans.items():
        assert len(of) == 3
        assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(of))
        assert all(span.duration_s >= device.meant_s(works[lane]) - 1e-9 for span in of)
        assert all(span.ratio >= 1.0 for span in of)

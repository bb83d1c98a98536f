"""How often a point is repeated, and what counts as disturbed."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from has.device.base import Span, Work
from has.device.cpu import CREDIT_S
from has.profiler.measure import Beside, repeat, time_each, time_transfers
from has.profiler.points import Measured

WORK = Work("encode", 1, 64)


def device(*durations: float):
    """A lane whose works last as told, back to back."""
    left = list(durations)
    now = [0.0]

    def run(fn, work):
        start = now[0]
        now[0] += left.pop(0)
        return fn(), Span(start, now[0], 1.0)

    return SimpleNamespace(lanes={"encode": SimpleNamespace(run=run)})


def test_samples_that_agree_are_enough():
    assert len(repeat(device(1.0, 1.01, 9, 9), lambda: None, WORK, 2, 0.04, cap_s=100)) == 2


def test_samples_that_do_not_agree_are_repeated_up_to_three_times_as_often():
    assert len(repeat(device(1, 2, 1, 2, 1, 2, 1, 2), lambda: None, WORK, 2, 0.04, cap_s=100)) == 6


def test_a_long_point_ends_with_its_time_and_has_one_sample_at_least():
    assert len(repeat(device(5, 5), lambda: None, WORK, 3, 0.04, cap_s=2)) == 1
    assert len(repeat(device(1, 1.5, 1), lambda: None, WORK, 3, 0.04, cap_s=2)) == 2


@pytest.mark.parametrize(
    ("stage", "ratio", "covered", "disturbed"),
    [
        ("encode", 1.03, 1.0, False),
        ("encode", 1.031, 1.0, True),
        ("decode", 1.05, 1.0, False),
        ("prefill", 1.0, 0.97, True),
        ("kv_transfer", 1.0, 1.0, False),
    ],
)
def test_a_point_is_disturbed_when_the_host_was_late_or_its_companion_paused(
    stage, ratio, covered, disturbed
):
    assert Measured((1.0,), ratio, covered, 50.0).disturbed(stage) is disturbed


def test_a_companion_runs_until_it_is_cancelled_and_counts_its_pauses():
    """It is entered again at its own end; the host comes back 30 ms + 50 ms after the second."""
    clock, ready, cancelled = [0.0], [], threading.Event()

    def run(fn, work):
        ready.append(work.ready_s)
        fn()
        if len(ready) == 3:
            cancelled.wait()
        end_s = clock[0] + 1.0
        clock[0] = end_s + (CREDIT_S + 0.05 if len(ready) == 2 else 0.0)
        return None, Span(end_s - 1.0, end_s, 1.0)

    gpu = SimpleNamespace(
        lanes={"encode": SimpleNamespace(run=run)},
        clock=lambda: clock[0],
        cancel=lambda lane: cancelled.set(),
    )
    third = threading.Event()
    with Beside(gpu, lambda: len(ready) == 3 and third.set(), WORK) as beside:
        assert third.wait(20)
    assert ready[:3] == [None, 1.0, 2.0]
    assert beside.gaps_s == pytest.approx(0.05)


def test_an_error_of_the_companion_is_not_lost():
    def run(fn, work):
        fn()
        raise ValueError("as it does")

    gpu = SimpleNamespace(
        lanes={"encode": SimpleNamespace(run=run)}, clock=lambda: 0.0, cancel=lambda lane: None
    )
    with pytest.raises(ValueError, match="as it does"), Beside(gpu, lambda: None, WORK):
        pass


def test_transfers_reach_another_process_and_cost_more_for_more_bytes():
    small, large = (min(time_transfers(size, 5)) for size in (1_000, 50_000_000))
    assert 0 < small < large


def test_timing_warms_up_first():
    calls = []
    assert len(time_each(lambda: calls.append(1), 4)) == 4
    assert len(calls) == 5

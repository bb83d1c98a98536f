"""How often a point is repeated, and what counts as disturbed."""

from __future__ import annotations

import mmap
import threading
from types import SimpleNamespace

import psutil
import pytest

from has.device.base import Span, Work
from has.device.cpu import CREDIT_S
from has.latency.confidence import half_width
from has.profiler import transfers
from has.profiler.measure import Beside, Repeats, repeat
from has.profiler.points import Measured
from has.profiler.transfers import time_each, time_transfers
from tests.device.virtual import gpu

WORK = Work("encode", 1, 64)
TWICE = Repeats(least=2, width=0.04, cap_s=100)


def device(*durations: float, late: tuple[int, ...] = ()):
    """A lane whose works last as told, back to back; those numbered in `late` found the host busy."""
    left = list(enumerate(durations))
    now = [0.0]

    def run(fn, work):
        number, duration = left.pop(0)
        start = now[0]
        now[0] += duration
        return fn(), Span(start, now[0], 1.5 if number in late else 1.0)

    return SimpleNamespace(lanes={"encode": SimpleNamespace(run=run)})


def samples(gpu, sampling=TWICE):
    kept, dropped = repeat(gpu, lambda: None, WORK, sampling)
    return [span.duration_s for span in kept], dropped


def test_a_narrow_interval_is_enough():
    assert samples(device(1.0, 1.005, 9, 9)) == (pytest.approx([1.0, 1.005]), 0)


def test_samples_are_repeated_until_the_interval_is_narrow():
    """Two at a distance of 2 % say little (t = 6.3 with one degree of freedom); a third settles it."""
    assert len(samples(device(1.0, 1.02, 1.01, 9))[0]) == 3


def test_samples_that_do_not_agree_are_repeated_up_to_three_times_as_often():
    assert len(samples(device(1, 2, 1, 2, 1, 2, 1, 2))[0]) == 6


def test_a_long_point_ends_with_its_time_and_has_one_sample_at_least():
    assert len(samples(device(5, 5), Repeats(3, 0.04, cap_s=2))[0]) == 1
    assert len(samples(device(1, 1.5, 1), Repeats(3, 0.04, cap_s=2))[0]) == 2


def test_a_run_that_a_competing_load_disturbed_is_dropped_and_made_good():
    kept, dropped = samples(device(1.0, 1.4, 1.3, 1.0, 9, late=(1, 2)))
    assert kept == pytest.approx([1.0, 1.0])
    assert dropped == 2


def test_runs_that_were_all_disturbed_are_kept_and_show_it():
    kept, dropped = repeat(device(*[1.0] * 6, late=tuple(range(6))), lambda: None, WORK, TWICE)
    assert (len(kept), dropped) == (6, 0)
    assert Measured(tuple(span.duration_s for span in kept), 1.5, 1.0, 50.0).disturbed("encode")


def test_a_load_on_the_host_reaches_the_gate():
    """A virtual GPU whose computation is held up for longer than its work lasts: late, and dropped."""
    made, clock = gpu()
    held_up = iter([0.0, 3.0, 0.0, 0.0, 0.0, 0.0])

    def compute():
        clock.now += next(held_up)

    kept, dropped = repeat(made, compute, Work("encode", 1, 64, 100.0), TWICE)
    assert dropped == 1
    assert len(kept) == 2
    assert all(span.ratio == pytest.approx(1.0) for span in kept)


@pytest.mark.parametrize(
    ("numbers", "half"),
    [
        ((1.0,), float("inf")),
        ((0.9, 1.1), 6.314 * 0.1414213562 / 2**0.5),
        ((1.0, 1.0, 1.0), 0.0),
        (tuple(1.0 + 0.01 * (i % 2) for i in range(40)), 1.6849 * 0.0050637 / 40**0.5 / 1.005),
    ],
)
def test_half_of_the_interval(numbers, half):
    assert half_width(numbers) == pytest.approx(half, rel=2e-3)


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
    small, large = (min(time_transfers(size, 1)) for size in (1_000, 50_000_000))
    assert 0 < small < large


def test_what_is_moved_is_read_from_pages_of_its_own():
    """Pages that were never written are one page of zeros to read, in the cache: half of what a copy costs."""
    before = psutil.Process().memory_info().rss
    held = transfers._copied(mmap.mmap(-1, 1), 2**26)
    assert psutil.Process().memory_info().rss - before > 0.9 * 2**26
    del held


def test_moves_of_a_gpu_go_through_the_host_in_pieces(monkeypatch):
    """Put, told, taken, piece after piece, so that no host has to hold a long prompt's KV three times; once, beyond a gigabyte."""
    monkeypatch.setattr(transfers, "PIECE_BYTES", 1000)
    monkeypatch.setattr(transfers, "TIMES", ((2000, 3),))
    moved, shared = [], []

    def moves(memory):
        shared.append(len(memory))
        return (
            lambda count: moved.append(("put", count)),
            lambda count: moved.append(("take", count)),
        )

    assert len(time_transfers(2500, 2, moves)) == 2
    pieces = [(way, count) for count in (1000, 1000, 500) for way in ("put", "take")]
    assert moved == pieces * 3  # with the one that warms up
    assert shared == [1000]
    assert len(time_transfers(500, 2, moves)) == 6


def test_timing_warms_up_first():
    calls = []
    assert len(time_each(lambda: calls.append(1), 4)) == 4
    assert len(calls) == 5

"""The bookkeeping of works that share a GPU, on handed-in time."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from has.device.progress import Progress


def shared(running: Mapping[str, str]) -> dict[str, float]:
    """Processor sharing: n works progress at 1/n each."""
    return {lane: 1.0 / len(running) for lane in running}


def stalled_by_encode(running: Mapping[str, str]) -> dict[str, float]:
    return {lane: 0.0 if lane == "prefill" and "encode" in running else 1.0 for lane in running}


def progress(rates=shared) -> Progress[str]:
    return Progress(rates, history_s=0.06)


def test_alone_a_work_takes_its_amount():
    p = progress()
    p.start("encode", "a", 0.4, 10.0)
    assert p.end_s("encode") == pytest.approx(10.4)


def test_the_rest_goes_on_at_the_new_rate_when_another_starts_and_when_it_ends():
    p = progress()
    p.start("encode", "a", 1.0, 0.0)
    p.start("prefill", "b", 0.2, 0.5)
    # from 0.5 both run at half speed: b takes 0.4, meanwhile a does 0.2, and has 0.3 left at full speed
    assert p.end_s("prefill") == pytest.approx(0.9)
    assert p.end_s("encode") == pytest.approx(1.2)


def test_a_released_work_keeps_its_end():
    p = progress()
    p.start("encode", "a", 0.1, 0.0)
    assert p.release("encode") == (0.0, pytest.approx(0.1))
    p.start("prefill", "b", 0.1, 0.09)  # entered late: a had still been running for 10 ms
    assert p.end_s("prefill") == pytest.approx(0.195)


def test_what_stands_still_ends_after_what_holds_it_up():
    p = progress(stalled_by_encode)
    p.start("prefill", "b", 0.3, 0.0)
    p.start("encode", "a", 0.5, 0.1)
    assert p.end_s("prefill") == pytest.approx(0.8)


def test_what_stands_still_for_good_never_ends():
    p = progress(lambda running: dict.fromkeys(running, 0.0))
    p.start("prefill", "b", 0.3, 0.0)
    assert p.end_s("prefill") == math.inf


def test_cutting_a_work_off_gives_the_other_its_speed_back():
    p = progress()
    p.start("encode", "a", 1.0, 0.0)
    p.start("prefill", "b", 1.0, 0.0)
    assert p.release("encode", at_s=0.5) == (0.0, 0.5)
    assert p.end_s("prefill") == pytest.approx(1.25)


def test_a_lane_holds_one_work():
    p = progress()
    p.start("encode", "a", 1.0, 0.0)
    with pytest.raises(RuntimeError, match="busy"):
        p.start("encode", "b", 1.0, 0.0)


def test_a_long_work_remembers_all_that_ran_beside_it():
    p = progress()
    p.start("prefill", "long", 10.0, 0.0)
    at = 0.0
    for _ in range(40):
        p.start("encode", "short", 0.05, at)
        _, at = p.release("encode")
        at += 0.1
    # 40 works of 0.05 s, at half speed while both run: each costs the long one 0.05 s
    assert p.end_s("prefill") == pytest.approx(12.0)


jobs = st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.001, 1.0)), min_size=1, max_size=4)


@given(jobs, st.randoms(use_true_random=False))
def test_the_order_of_entering_does_not_matter(works, random):
    in_time, shuffled = progress(), progress()
    named = [(f"lane{i}", *work) for i, work in enumerate(works)]
    for lane, start, amount in sorted(named, key=lambda job: job[1]):
        in_time.start(lane, lane, amount, start)
    random.shuffle(named)
    for lane, start, amount in named:
        shuffled.start(lane, lane, amount, start)
    for lane, _, _ in named:
        assert shuffled.end_s(lane) == pytest.approx(in_time.end_s(lane), abs=1e-9)


@given(jobs)
def test_sharing_loses_and_gains_no_work(works):
    """Processor sharing keeps the server busy at rate 1: the last end of a busy period is that of FCFS."""
    p = progress()
    for i, (start, amount) in enumerate(works):
        p.start(f"lane{i}", "w", amount, start)
    free = 0.0
    for start, amount in sorted(works):
        free = max(free, start) + amount
    assert max(p.end_s(f"lane{i}") for i in range(len(works))) == pytest.approx(free, abs=1e-9)

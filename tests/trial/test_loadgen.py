"""The open loop: on its own clock, so that nothing here depends on the machine."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has.errors import InputError
from has.trial.loadgen import LEAD_S, open_loop


class Clock:
    """Time that passes only by sleeping, and each sleep may end `early`, but comes at least half the way."""

    def __init__(self, early: float = 0.0) -> None:
        self.now_s = 100.0
        self.early = early

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        later = self.now_s + max(seconds - self.early, seconds / 2)
        self.now_s = max(later, math.nextafter(self.now_s, math.inf)) if seconds > 0 else later
        await asyncio.sleep(0)


def run(offsets, *, clock=None, prepare_s=lambda i: 0.0, answer=None):
    """(what was sent when, relative to offset 0; the schedule)."""
    clock = clock or Clock()
    sent = {}

    async def go():
        all_sent = asyncio.Event()

        async def prepare(i):
            clock.now_s += prepare_s(i)
            return f"body {i}"

        async def send(i, body, sent_s):
            assert body == f"body {i}"
            sent[i] = sent_s
            if len(sent) == len(offsets):
                all_sent.set()
            await all_sent.wait()  # nobody is answered before the last has been sent
            if answer is not None:
                answer(i)

        return await open_loop(offsets, prepare, send, clock=clock, sleep=clock.sleep)

    schedule = asyncio.run(go())
    return {i: at - schedule.start_s for i, at in sent.items()}, schedule


def test_requests_go_out_when_due_though_nothing_was_answered():
    offsets = [0.0, 0.5, 0.5, 3.0]
    sent, schedule = run(offsets)
    assert [sent[i] for i in range(4)] == pytest.approx(offsets)
    assert schedule.late_s == pytest.approx(np.zeros(4), abs=1e-9)
    assert schedule.late_p90_s == pytest.approx(0, abs=1e-9)


def test_a_slow_preparation_makes_late_and_does_not_shift_the_rest():
    sent, schedule = run([0.0, 1.0, 2.0, 3.0], prepare_s=lambda i: 1.4 if i == 1 else 0.0)
    late = 1.4 - LEAD_S
    assert schedule.late_s == pytest.approx([0.0, max(late - 1.0, 0) + LEAD_S, 0.0, 0.0])
    assert sent[2] == pytest.approx(2.0)


def test_the_first_body_is_not_on_the_clock():
    _, schedule = run([0.0, 1.0], prepare_s=lambda i: 5.0 if i == 0 else 0.0)
    assert schedule.late_s == pytest.approx([0.0, 0.0])


@settings(deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 2), max_size=30), st.floats(0, 0.01))
def test_never_early_and_in_order(gaps, early):
    offsets = np.cumsum(gaps)
    sent, schedule = run(offsets, clock=Clock(early))
    assert sorted(sent) == list(range(len(offsets)))
    assert np.all(schedule.late_s >= 0)
    assert all(sent[i] >= offsets[i] - 1e-9 for i in sent)
    assert np.all(schedule.late_s <= 1e-5)


def test_a_fault_in_a_send_ends_the_run():
    def answer(i):
        if i == 1:
            raise ZeroDivisionError

    def fault(i):
        if i == 2:
            raise InputError("no such body")
        return 0.0

    with pytest.raises(ZeroDivisionError):
        run([0.0, 0.1, 0.2], answer=answer)
    with pytest.raises(InputError):
        run([0.0, 0.1, 0.2], prepare_s=fault)

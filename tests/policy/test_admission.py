"""Backpressure: bounded whatever comes, and never a refusal without need."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has import HasError
from has.policy import Admission
from has.policy.admission import LONGEST_RETRY_S, SHORTEST_RETRY_S, Load

fixed = settings(deadline=None, derandomize=True, max_examples=150)


def test_without_bounds_all_come_in():
    assert (
        Admission().decide(10**9, Load(unanswered=10**6, promised_kv_tokens=10**9, free_kv_tokens=0)).admitted
    )


def test_the_queue_is_bounded():
    admission = Admission(max_queue=3)
    assert admission.decide(1, Load(unanswered=2)).admitted
    refused = admission.decide(1, Load(unanswered=3, first_tokens_rps=0.25))
    assert not refused.admitted
    assert refused.reason == "queue"
    assert refused.retry_after_s == 4.0  # one place too few, a place every four seconds


def test_what_can_never_fit_is_said_so():
    decision = Admission(kv_tokens=100, decode_workers=4).decide(101, Load(free_kv_tokens=400))
    assert decision.reason == "too_long"
    assert decision.retry_after_s == math.inf


def test_promises_beyond_the_backlog_are_not_made():
    admission = Admission(kv_tokens=100, decode_workers=2, kv_backlog=0.5)
    load = {"free_kv_tokens": 50, "released_tps": 10.0}
    assert admission.decide(
        60, Load(promised_kv_tokens=90, **load)
    ).admitted  # 150 asked, 50 free, 100 may wait
    refused = admission.decide(90, Load(promised_kv_tokens=90, **load))
    assert (refused.reason, refused.retry_after_s) == ("kv", 3.0)


@fixed
@given(st.integers(0, 10**6), st.integers(0, 100), st.floats(0, 1e6))
def test_a_retry_is_never_sooner_or_later_than_useful(excess, bound, pace):
    decision = Admission(max_queue=bound + 1).decide(
        1, Load(unanswered=bound + 1 + excess, first_tokens_rps=pace)
    )
    assert SHORTEST_RETRY_S <= decision.retry_after_s <= LONGEST_RETRY_S


@fixed
@given(
    max_queue=st.integers(1, 20),
    backlog=st.floats(0, 2),
    events=st.lists(st.one_of(st.integers(1, 120), st.just("first_token"), st.just("finish")), max_size=200),
)
def test_whatever_comes_queue_and_promises_stay_bounded(max_queue, backlog, events):
    """A pool of 2 x 100 tokens driven by arbitrary arrivals, prefills and ends."""
    admission = Admission(max_queue=max_queue, kv_tokens=100, decode_workers=2, kv_backlog=backlog)
    waiting: list[int] = []
    held: list[int] = []
    for event in events:
        if event == "first_token" and waiting and sum(held) + waiting[0] <= 200:
            held.append(waiting.pop(0))
        elif event == "finish" and held:
            held.pop(0)
        elif isinstance(event, int):
            load = Load(
                unanswered=len(waiting), promised_kv_tokens=sum(waiting), free_kv_tokens=200 - sum(held)
            )
            decision = admission.decide(event, load)
            if decision.admitted:
                assert event <= 100
                waiting.append(event)
            else:
                full = len(waiting) >= max_queue
                short = sum(waiting) + event > 200 - sum(held) + math.floor(backlog * 200)
                assert {"queue": full, "kv": short, "too_long": event > 100}[decision.reason]
        assert len(waiting) <= max_queue


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_queue": 0},
        {"max_queue": True},
        {"kv_tokens": 0},
        {"kv_backlog": -1},
        {"kv_tokens": 1, "decode_workers": 0},
    ],
)
def test_bad_bounds_are_refused(arguments):
    with pytest.raises(HasError):
        Admission(**arguments)


def test_bad_requests_are_refused():
    with pytest.raises(HasError):
        Admission().decide(-1, Load())

from __future__ import annotations

import pytest

from has.core.trial import Progress
from has.search.stop import StopRule
from has.search.watch import Watch


def progress(sent: int, met: int, missed: int, elapsed_s: float, total: int = 100) -> Progress:
    return Progress(total, sent, met + missed, met, missed, elapsed_s)


def test_ends_a_trial_that_cannot_beat_the_incumbent_any_more() -> None:
    watch = Watch(incumbent_rps=8.0, span_s=10.0)
    assert watch(progress(50, 30, 15, 5.0)) is None  # 30 + 55 left over 10 s is 8.5/s
    assert watch(progress(60, 30, 21, 6.0)) is not None  # at most 79 in 10 s
    late = Watch(incumbent_rps=8.0, span_s=10.0)
    assert late(progress(100, 85, 0, 10.5)) is None
    assert late(progress(100, 85, 0, 12.6)) is not None  # 100 in 12.6 s is 7.94/s


def test_the_bound_is_never_wrong() -> None:
    """Whatever the rest does, final goodput after warm-up stays under the bound that ended the trial."""
    incumbent, span, warmup = 7.0, 10.0, 1.0
    watch = Watch(incumbent, span, warmup)
    for met in range(101):
        for finished in range(met, 101):
            reason = watch(progress(100, met, finished - met, 9.0))
            if reason is not None and reason.startswith("cannot beat"):
                best_possible = (met + 100 - finished) / (span - warmup)
                assert best_possible < incumbent
    assert Watch(None, span)(progress(100, 0, 100, 50.0)) is None


def test_ends_a_queue_that_only_grows() -> None:
    watch = Watch(6.0, 10.0)
    said = [watch(progress(sent, 0, sent // 2, sent / 10)) for sent in range(10, 101, 10)]
    assert any(reason and "only grows" in reason for reason in said)


@pytest.mark.parametrize("incumbent_rps", [None, 0.0, 3.0])
def test_a_queue_that_grows_where_nothing_keeps_up_ends_nothing(incumbent_rps: float | None) -> None:
    """Before anything has run whole, and where the best so far misses most itself, that tells nothing."""
    watch = Watch(incumbent_rps, 10.0)
    said = [watch(progress(sent, sent // 6, sent // 3, sent / 10)) for sent in range(10, 101, 10)]
    assert said == [None] * 10


def test_a_burst_that_is_caught_up_with_does_not_end_it() -> None:
    watch = Watch(6.0, 10.0)
    backlog = [3, 6, 9, 5, 4, 8, 11, 9, 4, 1]
    said = [
        watch(progress(sent, sent - waiting, 0, sent / 10))
        for sent, waiting in zip(range(10, 101, 10), backlog, strict=True)
    ]
    assert said == [None] * 10


def test_a_growing_queue_that_meets_the_slo_goes_on() -> None:
    watch = Watch(6.0, 10.0)
    said = [watch(progress(sent, sent // 2, 0, sent / 10)) for sent in range(10, 101, 10)]
    assert said == [None] * 10


def test_a_trial_that_is_begun_anew_is_watched_anew() -> None:
    watch = Watch(6.0, 10.0)
    for sent in (10, 20, 30, 40):
        assert watch(progress(sent, 0, sent // 2, sent / 10)) is None
    said = [watch(progress(sent, 0, sent // 2, sent / 10)) for sent in range(0, 41, 10)]
    assert said == [None] * 5


def test_stops_after_two_small_expectations_in_a_row() -> None:
    rule = StopRule()
    for expected in (0.005, 0.02, 0.005, None, 0.009):
        rule.heard(expected)
        assert not rule.satisfied
    rule.heard(0.001)
    assert rule.satisfied


def sent_one_by_one(watch: Watch, misses: list[bool]) -> int | None:
    """How many answers it took to end the trial."""
    for n in range(1, len(misses) + 1):
        missed = sum(misses[:n])
        if watch(progress(n, n - missed, missed, n / 10, total=len(misses))) is not None:
            return n
    return None


def test_cusum_ends_a_hopeless_trial_long_before_the_exact_bound() -> None:
    """1,000 requests of which nine tenths miss, where the best misses a tenth of its requests."""
    hopeless = [n % 10 != 0 for n in range(1000)]
    ended = sent_one_by_one(Watch(incumbent_rps=9.0, span_s=100.0), hopeless)
    assert ended is not None
    assert ended < 60  # the exact bound needs over 100


def test_cusum_forgives_a_burst_of_misses() -> None:
    """Twenty misses in a row, in a trial that misses a tenth in all, as the best does."""
    burst = [100 <= n < 120 or (n % 12 == 0) for n in range(1000)]
    assert sum(burst) <= 105
    assert sent_one_by_one(Watch(incumbent_rps=8.9, span_s=100.0), burst) is None


def test_an_incumbent_that_met_nothing_ends_nothing() -> None:
    """As where the first trial of a search at overload met nothing: any misses are as likely as its own."""
    assert sent_one_by_one(Watch(incumbent_rps=0.0, span_s=100.0), [True] * 1000) is None

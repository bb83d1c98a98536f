"""What a search replays of a trace: all of it, or stretches that keep its bursts; live, what is most like it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has.core.requests import Requests
from has.core.space import SearchSpace
from has.core.workload import Workload
from has.files.trace import save_trace
from has.files.validate import validate
from has.search.events import Callbacks
from has.search.run import search
from has.search.simulated import ModelExecutor
from has.search.traffic import STRETCHES, lasting, most_like, replay
from tests.search.small import make_profile

SPACE = SearchSpace(version=1, encode_batch=[1, 4], prefill_offload={"step": 0.5})


def trace_of(arrival_s: Any, seed: int = 0) -> Requests:
    n = len(arrival_s)
    rng = np.random.default_rng(seed)
    nan = np.full(n, np.nan)
    media = rng.integers(0, 2, n)
    sizes = [rng.integers(low, high, n) for low, high in ((20, 90), (1, 60))]
    return Requests(
        np.rint(np.asarray(arrival_s) * 1e9).astype(np.int64), media, media, media * 64, *sizes, nan, nan
    )


def tides(n: int, seed: int = 0) -> Requests:
    """Hours busy and quiet, and bursts within: the rate goes from 1 to 9, the gaps' CV is 1.4."""
    rng = np.random.default_rng(seed)
    rate = 5 + 4 * np.sin(np.arange(n) / n * 12)
    return trace_of(np.cumsum(rng.gamma(0.5, 2 / rate)), seed)


def rows(requests: Requests) -> list[tuple[Any, ...]]:
    names = [f.name for f in fields(Requests) if not f.name.endswith("_slo_s") and f.name != "arrival_ns"]
    return list(zip(*(getattr(requests, name).tolist() for name in names), strict=True))


def per_minute(requests: Requests) -> Any:
    seconds = (requests.arrival_ns - requests.arrival_ns[0]) / 1e9
    return np.bincount((seconds // 60).astype(int)) / 60


def test_a_trace_of_usual_length_is_replayed_whole() -> None:
    trace = tides(3000)
    assert lasting(trace) is trace
    played = replay(trace, None, live=False, few=80, look=300)
    assert played.judged is played.trial is trace
    assert len(played.look) == 300
    assert "the whole trace, 3000 requests" in played.words


def test_a_very_long_one_keeps_its_quiet_and_its_busy_hours() -> None:
    trace = tides(60_000)
    kept = lasting(trace, 12_000)
    assert len(kept) == pytest.approx(12_000, rel=0.2)
    assert kept.mean_rate == pytest.approx(trace.mean_rate, rel=0.15)
    before, after = per_minute(trace), per_minute(kept)
    assert after.max() > 0.85 * before.max()
    for q in (20, 50, 80):
        assert np.percentile(after, q) == pytest.approx(np.percentile(before, q), rel=0.2), q
    gaps, own = np.diff(kept.arrival_ns), np.diff(trace.arrival_ns)
    assert gaps.std() / gaps.mean() == pytest.approx(own.std() / own.mean(), rel=0.1)
    assert f"{STRETCHES} stretches" in replay(trace, None, live=False, few=80, look=300).words


def test_the_busiest_minutes_are_among_them() -> None:
    """A rush in a sea of calm: by chance it would be left out five times of six."""
    calm = np.arange(0, 40_000, 1.0)
    rush = 31_234 + np.arange(0, 60, 0.05)
    trace = trace_of(np.sort(np.concatenate([calm, rush])))
    kept = lasting(trace, 8_000)
    assert per_minute(kept).max() > 10
    assert per_minute(most_like(trace, 300)[0]).max() < 5


def test_stretches_busier_than_the_whole_are_said_to_be() -> None:
    """All bursts weigh more in few stretches than in the whole: goodput there may exceed the rate asked for."""
    calm = np.arange(0, 80_000, 1.0)
    trace = trace_of(np.sort(np.concatenate([calm, 31_234 + np.arange(0, 300, 0.05)])))
    played = replay(trace, None, live=False, few=80, look=300)
    times = played.judged.mean_rate / trace.mean_rate
    assert times > 1.05
    assert f"{times:.3g} times as many a second as the whole" in played.words
    assert "times as many" not in replay(tides(3_000), None, live=False, few=80, look=300).words


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.lists(st.sampled_from([0.0, 1e-9, 0.001, 1.0, 500.0]), min_size=1, max_size=400),
    st.integers(1, 200),
)
def test_whatever_the_arrivals_what_is_kept_is_of_the_trace_and_in_order(
    gaps: list[float], most: int
) -> None:
    trace = trace_of(np.cumsum(gaps))
    kept = lasting(trace, most)
    assert 1 <= len(kept) <= max(STRETCHES * max(1, most // 2), most)
    assert np.all(np.diff(kept.arrival_ns) >= 0)
    assert set(rows(kept)) <= set(rows(trace))
    part, start_s = most_like(trace, most)
    assert len(part) == min(most, len(trace))
    assert np.all(np.diff(part.arrival_ns) >= 0)
    assert start_s >= 0


def test_the_stretch_most_like_the_whole_is_no_calm_and_no_rush() -> None:
    trace = tides(20_000)
    part, start_s = most_like(trace, 400)
    assert part.mean_rate == pytest.approx(trace.mean_rate)
    gaps = np.diff(part.arrival_ns)
    assert gaps.std() / gaps.mean() > 1.3  # the whole's 2.0 is of its tides too, which no short stretch has
    assert part.media_share == pytest.approx(trace.media_share, abs=0.05)
    assert part.total_tokens.mean() == pytest.approx(trace.total_tokens.mean(), rel=0.05)
    at = int(np.searchsorted(trace.arrival_ns, trace.arrival_ns[0] + round(start_s * 1e9)))
    assert rows(part) == rows(trace[at : at + 400])


class Heard(Callbacks):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Seen(ModelExecutor):
    """The simulator; keeps how many requests each run had."""

    def __init__(self, profile: Any, *, live: bool) -> None:
        super().__init__(profile)
        self.live = live
        self.lengths: set[int] = set()

    def run(self, plan: Any) -> Any:
        self.lengths.add(len(plan.requests))
        return super().run(plan)


def replayed(tmp_path: Path, trace: Requests, **more: Any) -> tuple[Any, Seen, Heard]:
    save_trace(trace, tmp_path / "t.parquet")
    workload = validate(
        Workload,
        {
            "version": 1,
            "arrivals": {"process": "trace", "file": str(tmp_path / "t.parquet")},
            "slo": {"ttft_ms": 2000, "tpot_ms": 200},
        },
    )
    profile = make_profile()
    executor, heard = Seen(profile, live=more.pop("live", False)), Heard()
    outcome = search(3, profile, workload, space=SPACE, trials=4, executor=executor, callbacks=heard, **more)
    return outcome, executor, heard


def bursts(tmp_path: Path, *, last: bool) -> Requests:
    """1,600 requests, calm but for rushes in the last half, if there are any."""
    rng = np.random.default_rng(3)
    mean = np.full(1600, 1.0)
    if last:
        mean[800:] = np.where(np.arange(800) < 400, 0.3, 1.7)
    return trace_of(np.cumsum(rng.exponential(mean)))


def test_rushes_after_the_first_thousand_requests_count(tmp_path: Path) -> None:
    """Two traces alike in their first half and in their mean; one has its rushes later."""
    calm, executor, heard = replayed(tmp_path, bursts(tmp_path, last=False))
    assert executor.lengths == {1600}
    assert any("the whole trace, 1600 requests" in note for note in heard.notes)
    rushes, _, _ = replayed(tmp_path, bursts(tmp_path, last=True))
    assert rushes.objective < 0.9 * calm.objective
    cut, executor, _ = replayed(tmp_path, bursts(tmp_path, last=True), requests=500)
    assert executor.lengths == {500}
    assert cut.objective > rushes.objective


def test_a_live_trial_replays_a_stretch_of_bounded_length(tmp_path: Path) -> None:
    _, executor, heard = replayed(tmp_path, tides(1500), live=True)
    assert executor.lengths == {80}
    assert any("each trial replays 80 of the trace's 1500 requests" in note for note in heard.notes)

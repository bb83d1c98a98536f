"""Measured over predicted service, under the conditions each batch really had."""

from __future__ import annotations

import pytest

from has.core.profile import Profile
from has.device.base import Span
from has.latency.lookup import LatencyModel
from has.trial.live_records import Work
from has.trial.live_service import service_ratios

ROWS = [
    *(("encode", sm, "none", s) for sm, s in ((50, 2.0), (100, 1.0))),
    *(("encode", sm, "prefill", s) for sm, s in ((50, 3.0), (100, 2.0))),
    *(("prefill", sm, "none", s) for sm, s in ((50, 4.0), (100, 2.0))),
    ("decode", 100, "none", 0.1),
]
LATENCY = LatencyModel.from_profile(
    Profile.model_validate(
        {
            "metadata": {"version": 1, "device": "hand", "model": "m", "source": "measured"},
            "rows": [
                {"stage": stage, "sm_percent": sm, "beside": beside, "batch": 1, "tokens": 1, "latency_s": s}
                for stage, sm, beside, s in ROWS
            ],
        }
    )
)


def work(stage: str, start_s: float, end_s: float, share: float = 100.0, worker: int = 0) -> Work:
    return Work(stage, worker, (0,), Span(start_s, end_s, 1.0), share, 1.0)


def ratio(works: list[Work], stage: str, streams: bool = False) -> float:
    return service_ratios(works, LATENCY, streams=streams)[stage]["measured_over_predicted"]


def test_alone_it_is_the_profile() -> None:
    works = [work("encode", 0.0, 1.1), work("decode", 0.0, 0.1), work("decode", 0.1, 0.22)]
    assert ratio(works, "encode") == pytest.approx(1.1)
    assert ratio(works, "decode") == pytest.approx(1.1)


def test_beside_each_other_both_change() -> None:
    # Encode on half the SMs: one second alone is half of it, then three beside a prefill are the whole of another.
    works = [work("encode", 0.0, 2.5, share=50.0), work("prefill_local", 1.0, 5.0)]
    assert ratio(works, "encode") == pytest.approx(1.0 / 2.0 + 1.5 / 3.0)
    # The prefill has the other half while encode runs (4 s), and all of it afterwards (2 s).
    assert ratio(works, "prefill_local") == pytest.approx(1.5 / 4.0 + 2.5 / 2.0)


def test_streams_share_all_of_it() -> None:
    works = [work("encode", 0.0, 2.0), work("prefill_local", 0.0, 2.0)]
    assert ratio(works, "encode", streams=True) == pytest.approx(2.0 / 2.0)
    assert ratio(works, "prefill_local", streams=True) == pytest.approx(2.0 / 2.0)


def test_another_worker_is_no_neighbour() -> None:
    works = [work("encode", 0.0, 1.0), work("prefill_local", 0.0, 2.0, worker=1)]
    assert ratio(works, "encode") == pytest.approx(1.0)


def test_standing_still_is_no_progress() -> None:
    works = [work("encode", 0.0, 2.0, share=100.0), work("prefill_local", 0.0, 4.0)]
    assert ratio(works, "prefill_local") == pytest.approx(2.0 / 2.0)

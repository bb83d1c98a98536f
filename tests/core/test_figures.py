"""Figures from records made by hand: every definition, and what happens where there is nothing to average."""

from __future__ import annotations

import numpy as np
import pytest

from has.core.figures import check_warmup, figures, met
from has.core.records import COMPLETED, FAILED, REFUSED, Records, StageLoad
from has.core.requests import Requests
from has.core.slo import Slo
from has.errors import InputError

MS = 1_000_000
SLO = Slo(ttft_ms=100.0, tpot_ms=10.0)


def _records(rows, **stages):
    """rows: (arrival ms, first token ms, finish ms, output tokens, status)."""
    requests = Requests.from_rows(
        {
            "arrival_s": arrival / 1e3,
            "modality": "image",
            "media_tokens": 10,
            "prompt_tokens": 5,
            "output_tokens": output,
        }
        for arrival, _, _, output, _ in rows
    )
    records = Records.empty(requests)
    for i, (_, first, finish, _, status) in enumerate(rows):
        records.status[i] = status
        if first is not None:
            records.first_token_ns[i] = first * MS
        if finish is not None:
            records.finish_ns[i] = finish * MS
    records.stages = stages
    return records


def test_an_slo_is_met_at_its_bound():
    records = _records(
        [
            (0, 100, 200, 11, COMPLETED),  # exactly both
            (0, 101, 102, 2, COMPLETED),  # TTFT late by 1 ms
            (0, 50, 151, 11, COMPLETED),  # TPOT 10.1 ms
            (0, 100, 100, 1, COMPLETED),  # one token needs only TTFT
            (0, None, None, 5, FAILED),
            (0, None, None, 5, REFUSED),
        ]
    )
    assert met(records, SLO).tolist() == [True, False, False, True, False, False]


@pytest.mark.parametrize("ttft_ms", [0.1, 0.3, 1.1, 2.3, 4.7, 33.3, 2793.147181])
def test_a_decimal_bound_is_met_by_its_own_decimal(ttft_ms):
    records = _records([(0, 0, 0, 1, COMPLETED)])
    records.first_token_ns[0] = round(ttft_ms * 1e6)
    assert met(records, Slo(ttft_ms=ttft_ms, tpot_ms=1.0)).all()
    records.first_token_ns[0] += 1
    assert not met(records, Slo(ttft_ms=ttft_ms, tpot_ms=1.0)).any()


def test_a_request_may_carry_its_own_slo():
    records = _records([(0, 150, 150, 1, COMPLETED), (0, 150, 150, 1, COMPLETED)])
    records.requests.ttft_slo_s[1] = 0.2
    assert met(records, SLO).tolist() == [False, True]


def test_counts_rates_and_percentiles():
    f = figures(
        _records(
            [
                (0, 40, 140, 11, COMPLETED),
                (500, 560, 560, 1, COMPLETED),
                (1000, 1500, 1600, 11, COMPLETED),
                (1500, None, None, 3, FAILED),
                (2000, None, None, 3, REFUSED),
            ]
        ),
        SLO,
    )
    assert (f["requests"], f["completed"], f["failed"], f["refused"]) == (5, 3, 2, 1)
    assert f["duration_s"] == pytest.approx(1.6)
    assert f["offered_rps"] == pytest.approx(4 / 2)
    assert f["throughput_rps"] == pytest.approx(3 / 1.6)
    assert f["goodput_rps"] == pytest.approx(2 / 1.6)
    assert f["attainment"] == pytest.approx(2 / 5)
    assert f["ttft_ms"] == pytest.approx({"mean": 200.0, "p50": 60.0, "p90": 412.0, "p99": 491.2})
    assert f["tpot_ms"] == pytest.approx({"mean": 10.0, "p50": 10.0, "p90": 10.0, "p99": 10.0})
    assert f["e2e_ms"]["mean"] == pytest.approx(800 / 3)
    assert f["stages"] == {}
    assert "routed" not in f


def test_warm_up_cuts_requests_span_and_stage_work():
    rows = [(t, t + 10, t + 10, 1, COMPLETED) for t in range(0, 1000, 100)]
    load = StageLoad(
        workers=1,
        start_ns=np.array([0, 480, 700]) * MS,
        end_ns=np.array([100, 580, 800]) * MS,
        size=np.array([1, 2, 4]),
        full=np.array([True, False, True]),
    )
    f = figures(_records(rows, encode=load), SLO, warmup_s=0.5)
    assert f["requests"] == 5
    assert f["duration_s"] == pytest.approx(0.41)
    assert f["offered_rps"] == pytest.approx(10.0)
    encode = f["stages"]["encode"]
    # 80 ms of the second batch lie in the window, and all of the third; batches count by their start.
    assert encode["utilisation"] == pytest.approx(0.180 / 0.410)
    assert (encode["batches"], encode["mean_batch"], encode["full_share"]) == (1, 4.0, 1.0)


def test_a_warm_up_that_leaves_nothing_is_refused():
    requests = _records([(t, t + 10, t + 10, 1, COMPLETED) for t in (0, 100, 250)]).requests
    check_warmup(requests, 0.25)  # the last request is left
    check_warmup(requests[:0], 5.0)
    for far in (1.0, 1e300, np.float64(1e300)):
        with pytest.raises(InputError, match=r"all 3 arrive within 0\.25 s"):
            check_warmup(requests, far)
    with pytest.raises(InputError, match=r"all 3 arrive within 0\.25 s") as caught:
        check_warmup(requests, 0.251)
    assert (caught.value.field, caught.value.value) == ("warmup_s", 0.251)
    assert caught.value.mend


@pytest.mark.parametrize("warmup_s", [float("nan"), float("inf"), -0.5])
def test_a_warm_up_that_is_no_length_of_time_is_refused(warmup_s: float) -> None:
    requests = _records([(0, 10, 10, 1, COMPLETED)]).requests
    for some in (requests, requests[:0]):
        with pytest.raises(InputError, match="not a length of time") as caught:
            check_warmup(some, warmup_s)
        assert caught.value.field == "warmup_s"


def test_the_longest_warm_up_that_is_named_is_taken():
    requests = _records([(t, t + 10, t + 10, 1, COMPLETED) for t in (0, 100, 250.678)]).requests
    with pytest.raises(InputError) as caught:
        check_warmup(requests, 1.0)
    check_warmup(requests, float(caught.value.allowed.removeprefix("at most ").partition(",")[0]))


def test_nothing_to_average_is_null():
    f = figures(_records([(0, None, None, 5, FAILED)], encode=StageLoad(2), decode=StageLoad(1)), SLO)
    assert f["attainment"] == 0.0
    assert f["offered_rps"] is None
    assert f["throughput_rps"] is None
    assert f["goodput_rps"] is None
    assert set(f["ttft_ms"].values()) == {None}
    assert f["stages"]["encode"]["mean_batch"] is None
    assert f["stages"]["decode"]["batches"] == 0
    assert set(f["stages"]["encode"]["wait_ms"]) == {"mean", "p50", "p90", "p99", "max"}
    assert f["stages"]["encode"]["wait_ms"]["max"] is None


def test_decode_weights_steps_equally():
    load = StageLoad(
        workers=2,
        start_ns=np.array([0, 100]) * MS,
        end_ns=np.array([100, 400]) * MS,
        size=np.array([1, 4]),
        repeats=np.array([10, 5]),
    )
    f = figures(_records([(0, 10, 400, 5, COMPLETED)], decode=load), SLO)
    assert f["stages"]["decode"]["batches"] == 15
    assert f["stages"]["decode"]["mean_batch"] == pytest.approx(2.0)
    assert f["stages"]["decode"]["utilisation"] == pytest.approx(0.4 / (2 * 0.4))


def test_decode_known_only_in_sum():
    load = StageLoad(workers=1, busy_ns=200 * MS, steps=4, step_seqs=10)
    f = figures(_records([(0, 10, 400, 5, COMPLETED)], decode=load), SLO)
    assert f["stages"]["decode"]["mean_batch"] == pytest.approx(2.5)
    assert f["stages"]["decode"]["utilisation"] == pytest.approx(0.5)

"""Records of a trial on engines, whose requests overlap on a worker and end each by itself."""

from __future__ import annotations

import numpy as np
import pytest

from has.core.deployment import Deployment
from has.core.figures import figures
from has.core.requests import Requests
from has.gateway.port import Encode, Encoded
from has.trial.live_records import Answer, LiveRecords

PLAN = Deployment.model_validate(
    {
        "version": 1,
        "model": "m",
        "topology": "disaggregated",
        "gpus": 4,
        "alloc": {"encode": 2, "prefill": 1, "decode": 1},
        "encode_batch": 4,
        "prefill_offload": 1.0,
        "slo": {"ttft_ms": 10_000, "tpot_ms": 1000},
    }
)
ROW = {"modality": "image", "media_tokens": 64, "prompt_tokens": 10, "output_tokens": 1}


def launch(worker: int, requests: tuple[int, ...], start_s: float) -> tuple[Encode, float]:
    return Encode(worker, requests, (False,) * len(requests), 100.0, "full", start_s), start_s


def end(worker: int, requests: tuple[int, ...], start_s: float, end_s: float) -> tuple[Encoded, float]:
    return Encoded(worker, start_s, end_s, 1.0, requests=requests, media=len(requests)), end_s


def read(log: list) -> LiveRecords:
    requests = Requests.from_rows([{"arrival_s": 0.0, **ROW} for _ in range(4)])
    answers = [Answer(request=i, sent_s=0.0, first_s=9.0, last_s=10.0, tokens=[1]) for i in range(4)]
    return LiveRecords(PLAN, requests, answers, log, 0.0)


def test_each_request_ends_with_its_own_answer() -> None:
    log = [launch(0, (0, 1), 0.0), launch(0, (2,), 1.0), launch(1, (3,), 1.0)]
    log += [end(0, (1,), 0.0, 2.0), end(0, (2,), 1.0, 3.0), end(1, (3,), 1.0, 2.0), end(0, (0,), 0.0, 4.0)]
    records = read(log).records
    assert [int(ns) / 1e9 for ns in records.encode_end_ns] == [4.0, 2.0, 3.0, 2.0]
    assert list(records.encode_worker) == [0, 0, 0, 1]
    assert list(records.batch) == [2, 2, 1, 1], "what was launched together"


def test_a_worker_is_busy_once_and_its_service_belongs_to_the_number_it_had() -> None:
    """Worker 0: two requests from 0 to 2, a third from 1 to 3. So two, three, one: three seconds of work."""
    log = [launch(0, (0, 1), 0.0), launch(0, (2,), 1.0)]
    log += [end(0, (0,), 0.0, 2.0), end(0, (1,), 0.0, 2.0), end(0, (2,), 1.0, 3.0)]
    live = read(log)
    encode = live.records.stages["encode"]
    np.testing.assert_allclose(encode.together, [2.5, 2.5, 2.0])
    np.testing.assert_allclose(encode.part, [(1 / 2 + 1 / 3) / 2] * 2 + [(1 / 3 + 1) / 2])
    assert encode.busy_ns == 3_000_000_000
    assert [work.batch for work in live.works] == [2.5, 2.5, 2.0]
    stage = figures(live.records, PLAN.slo)["stages"]["encode"]
    assert stage["mean_batch"] == pytest.approx(7 / 3)
    assert stage["service_ms"]["mean"] == pytest.approx(2000.0)
    assert stage["utilisation"] == pytest.approx(3 / (2 * 10))


def test_a_batch_that_ends_as_one_is_listed_as_one() -> None:
    log = [launch(0, (0, 1, 2), 0.0), (Encoded(0, 0.0, 2.0, 1.0), 2.0)]
    live = read(log)
    assert list(live.records.stages["encode"].size) == [3]
    assert len(live.records.stages["encode"].together) == 0
    assert [work.batch for work in live.works] == [3]

"""Live trials: records that hang together, early ends, refusals, and a host that is too busy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.records import COMPLETED, NEVER
from has.core.requests import Requests
from has.core.slo import Slo
from has.core.trial import Outcome, Progress, TrialPlan, TrialState
from has.device import gate
from has.trial import local
from has.trial.local import LocalExecutor
from tests.runtime.live import deployment, table, warm_pool

pytestmark = pytest.mark.live
MODEL = "tiny-image"
SLO = Slo(ttft_ms=20_000, tpot_ms=5_000)


def flat_profile() -> Profile:
    stages = {"encode": 0.02, "prefill": 0.02, "decode": 0.005}
    return Profile.model_validate(
        {
            "metadata": {"version": 1, "device": "hand", "model": MODEL, "source": "measured"},
            "rows": [
                {"stage": s, "sm_percent": sm, "batch": 1, "tokens": 1, "latency_s": v * 100 / sm}
                for s, v in stages.items()
                for sm in (50, 100)
            ],
        }
    )


@pytest.fixture(scope="module")
def executor() -> Iterator[LocalExecutor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "WarmPool", lambda model, gpus, nominal: warm_pool(model))
        yield LocalExecutor(MODEL, 4, profile=flat_profile(), nominal=table(MODEL), gated=False)


def requests(n: int = 14, kind: str = "image", outputs: tuple[int, ...] = (1, 4, 9)) -> Requests:
    rng = np.random.default_rng(5)
    arrivals = 0.5 + np.cumsum(rng.exponential(0.08, n))  # the first request need not come at time 0
    return Requests.from_rows(
        {
            "arrival_s": float(a),
            "modality": "text" if i % 5 == 4 else kind,
            "items": 0 if i % 5 == 4 else 1,
            "media_tokens": 0 if i % 5 == 4 else 64,
            "prompt_tokens": 12 + i,
            "output_tokens": outputs[i % len(outputs)],
        }
        for i, a in enumerate(arrivals)
    )


def run(executor: LocalExecutor, plan: Deployment, sent: Requests, **options) -> Outcome:
    return executor.run(TrialPlan(plan, sent, 12.0, SLO, **options))


@pytest.mark.parametrize("topology", ["disaggregated", "e_pd", "monolithic"])
def test_records_hang_together(executor: LocalExecutor, topology: str) -> None:
    sent = requests()
    outcome = run(executor, deployment(MODEL, topology), sent)
    assert outcome.state == TrialState.COMPLETE, outcome.reason
    figures, records = outcome.figures, outcome.records
    assert figures["completed"] == len(sent)
    assert (records.status == COMPLETED).all()
    np.testing.assert_array_equal(records.requests.arrival_ns, sent.arrival_ns)
    media = sent.is_media
    several = sent.output_tokens > 1
    lag = 50_000_000  # starts may be dated back by up to 30 ms to where they were due

    def ordered(who, *columns: str) -> None:
        instants = [sent.arrival_ns, *(getattr(records, column) for column in columns)]
        for before, after in itertools.pairwise(instants):
            assert (after[who] != NEVER).all(), columns
            assert (after[who] >= before[who] - lag).all(), columns

    ordered(media, "preprocessed_ns", "prefill_start_ns", "first_token_ns", "finish_ns")
    ordered(~media, "prefill_start_ns", "first_token_ns", "finish_ns")
    ordered(several, "decode_ready_ns", "decode_start_ns", "finish_ns")
    if topology != "monolithic":
        ordered(media, "preprocessed_ns", "encode_start_ns", "encode_end_ns", "first_token_ns")
    if topology == "disaggregated":
        assert set(records.route) == {0, 1}
        assert figures["routed"]["local"] + figures["routed"]["remote"] == len(sent)
    steps = records.stages["decode"]
    assert steps.step_seqs == (sent.output_tokens - 1).sum()
    assert figures["stages"]["encode"]["batches"] >= media.sum() / 2
    assert 0 < figures["stages"]["decode"]["utilisation"] <= 1.05
    assert outcome.telemetry["gate"]["p90"]
    assert outcome.telemetry["stages"]


def test_an_early_end_leaves_the_pool_fit_for_the_next(executor: LocalExecutor) -> None:
    seen: list[Progress] = []

    def watch(progress: Progress) -> str | None:
        seen.append(progress)
        return "seen enough" if progress.sent >= 3 else None

    before = dict(executor.pool.pids)
    stopped = run(executor, deployment(MODEL), requests(60), watch=watch)
    assert stopped.state == TrialState.STOPPED
    assert stopped.reason == "seen enough"
    assert stopped.figures["requests"] == 60
    assert seen[-1].finished == seen[-1].met + seen[-1].missed
    after = run(executor, deployment(MODEL), requests(6))
    assert after.state == TrialState.COMPLETE
    assert executor.pool.pids == before


@pytest.mark.parametrize(
    ("plan", "sent", "word"),
    [
        (deployment(MODEL, tensor_parallel={"decode": 2}), requests(3), "tensor parallelism"),
        (deployment(MODEL, gpus=8, alloc={"encode": 4, "prefill": 2, "decode": 2}), requests(3), "8 GPUs"),
        (deployment(MODEL), requests(3, kind="audio"), "audio"),
        (deployment(MODEL, kv_tokens=20), requests(3), "context"),
    ],
)
def test_what_cannot_run_is_a_result_with_a_reason(executor, plan, sent, word: str) -> None:
    outcome = run(executor, plan, sent)
    assert outcome.state == TrialState.FAILED
    assert outcome.figures is None
    assert word in outcome.reason


def test_beyond_max_queue_requests_are_refused_and_counted(executor: LocalExecutor) -> None:
    outcome = run(executor, deployment(MODEL, max_queue=1), requests(12))
    assert outcome.state == TrialState.COMPLETE
    assert outcome.figures["refused"] > 0
    assert outcome.figures["refused"] + outcome.figures["completed"] == 12


def test_a_host_that_is_too_busy_is_no_result(executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "gated", True)
    monkeypatch.setattr(gate, "LOAD_LATE_BOUND_S", 0.0)  # no host is quiet enough for this
    outcome = run(executor, deployment(MODEL), requests(3))
    assert outcome.state == TrialState.FAILED
    assert outcome.reason.startswith("host too busy: ")
    assert outcome.telemetry["gate"]["reason"] == outcome.reason


def test_the_gateways_own_work_is_in_the_figures(executor: LocalExecutor) -> None:
    """Thirty images and 300 text tokens: taking media apart, hashing and handing them on are part of TTFT."""
    row = {"arrival_s": 0.0, "modality": "image", "items": 30, "media_tokens": 30 * 64, "prompt_tokens": 300}
    outcome = run(executor, deployment(MODEL), Requests.from_rows([{**row, "output_tokens": 2}]))
    assert outcome.state == TrialState.COMPLETE, outcome.reason
    figures, records = outcome.figures, outcome.records
    parts = [figures["stages"][stage] for stage in ("preprocess", "encode", "prefill_local")]
    assert all(part["service_ms"]["mean"] > 0 for part in parts)
    assert records.preprocessed_ns[0] > records.requests.arrival_ns[0]
    whole_ms = sum(part["wait_ms"]["mean"] + part["service_ms"]["mean"] for part in parts)
    assert figures["ttft_ms"]["mean"] >= whole_ms - 0.001, "nothing of a stage is outside of it"
    assert figures["stages"]["preprocess"]["utilisation"] > 0


def test_decoding_hashing_and_moving_many_media_is_in_the_figures(executor: LocalExecutor) -> None:
    """What a gateway does before an engine sees a request is easily left out: thirty images make it most of the time."""
    items = 30
    rows = [
        {
            "arrival_s": 0.1 * i,
            "modality": "image",
            "items": items,
            "media_tokens": 64 * items,
            "prompt_tokens": 30,
            "output_tokens": 2,
        }
        for i in range(2)
    ]
    outcome = run(executor, deployment(MODEL), Requests.from_rows(rows))
    assert outcome.figures is not None, outcome.reason
    records = outcome.records
    assert outcome.figures["stages"]["preprocess"]["service_ms"]["mean"] > 0.3 * items
    before_encode_ns = records.encode_start_ns - records.requests.arrival_ns
    assert (records.preprocessed_ns > records.requests.arrival_ns).all()
    assert (records.encode_start_ns >= records.preprocessed_ns).all()
    assert (records.first_token_ns - records.requests.arrival_ns > before_encode_ns).all()

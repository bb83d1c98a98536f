"""The adapter over tables of measured kernels: alone against recorded answers, and with the library where it is."""

from __future__ import annotations

import json

import pytest

from has.errors import InputError
from has.files import facts
from has.latency import silicon
from has.latency.operations import AllReduce, Attention, Elementwise, Gemm, LanguageModel
from has.latency.roofline import Gpu, Roofline, total

RECORDED_MS = {
    "Gemm": 0.166,
    "ContextAttention": 0.085,
    "GenerationAttention": 0.0148,
    "CustomAllReduce": 0.156,
}
"""Milliseconds that aiconfigurator-core 0.12.0 gives for single kernels on an H100; it knows no others here."""


class RecordedEngine:
    """Answers as the library's engine does, from what was recorded; raises as it does where there is no table."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, int]] = []

    def evaluate_ops_json(self, ops_json, *, is_context, batch_size, s, x):
        (kind,) = json.loads(ops_json)[0]
        self.asked.append((kind, batch_size, s, x))
        if kind not in RECORDED_MS:
            raise ValueError(f"no perf data for {kind}")
        return [(kind, RECORDED_MS[kind], 0.0, "silicon")]


KINDS = {"encoder": "EncoderAttention", "context": "ContextAttention", "decode": "GenerationAttention"}


@pytest.fixture
def tables(monkeypatch):
    engine = RecordedEngine()
    monkeypatch.setattr(silicon, "engine", lambda system, *_: engine)
    monkeypatch.setattr(silicon, "version", lambda _: "0.12.0")

    def spec(operation):
        kind = {Gemm: "Gemm", AllReduce: "CustomAllReduce"}.get(type(operation))
        return json.dumps([{kind or KINDS[operation.kind]: {}}])

    monkeypatch.setattr(silicon, "_spec", spec)
    return engine


def test_a_kernel_of_the_tables_takes_their_time_as_often_as_it_runs(tables):
    kernels = silicon.Silicon(Gpu.from_facts("h100"))
    cost = kernels.cost(Gemm("g", 4096, 4096, 4096, count=3))
    assert cost.seconds == pytest.approx(3 * 0.166e-3)
    assert tables.asked == [("Gemm", 1, 4096, 4096)]
    assert not kernels.missing


def test_what_has_no_table_is_the_rooflines_and_said_so(tables):
    kernels = silicon.Silicon(Gpu.from_facts("h100"))
    attention = Attention("encoder attention", "encoder", 2, 1025, 25, 25, 128, 45)
    assert kernels.cost(attention) == Roofline(Gpu.from_facts("h100")).cost(attention)
    experts = Gemm("gate and up", 64, 1536, 2048, 48, streamed=1e7)
    assert kernels.cost(experts) == Roofline(Gpu.from_facts("h100")).cost(experts)
    assert kernels.missing == {"encoder attention", "gate and up"}
    kernels.cost(Elementwise("normalise", 1e6))
    assert [kind for kind, *_ in tables.asked] == ["EncoderAttention"]


def test_the_tables_are_asked_for_the_shape_once(tables):
    kernels = silicon.Silicon(Gpu.from_facts("h100"))
    for _ in range(2):
        kernels.cost(Attention("attention", "decode", 32, 2048, 8, 2, 128, 80))
        kernels.cost(AllReduce("all-reduce", 2.0 * 64 * 8192, 4, 160))
    assert tables.asked == [("GenerationAttention", 32, 2048, 32), ("CustomAllReduce", 1, 512, 512)]


def test_what_limits_stays_the_rooflines_verdict(tables):
    kernels = silicon.Silicon(Gpu.from_facts("h100"))
    cost = kernels.cost(Attention("attention", "decode", 32, 2048, 8, 2, 128))
    assert cost.stream_s > 0 == cost.compute_s


def test_a_gpu_without_tables_is_refused(tables):
    with pytest.raises(InputError, match="no measured kernel times") as refused:
        silicon.Silicon(Gpu.from_facts("rtx 6000 ada"))
    assert "H100 SXM" in refused.value.allowed
    assert refused.value.mend == "--source roofline"


# With the library itself


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("aiconfigurator_core", reason="the extra silicon is not installed")


def test_our_operations_add_up_to_the_librarys_own_model(library):
    """Its layer lists were written by others: they agree with ours within 2 % at these sizes."""
    lm = LanguageModel.from_facts(facts.model("qwen3-vl-8b"))
    kernels = silicon.Silicon(Gpu.from_facts("h100"))
    whole = silicon.engine("h100_sxm", "Qwen/Qwen3-8B")
    prefill_s = total(kernels, lm.prefill(8, 2048)).seconds
    decode_s = total(kernels, lm.decode(32, 2048)).seconds
    assert prefill_s == pytest.approx(whole.predict_prefill_latency(8, 2048) * 1e-3, rel=0.02)
    assert decode_s == pytest.approx(whole.predict_decode_latency(32, 2048, 2) * 1e-3, rel=0.02)
    assert not kernels.missing


def test_a_silicon_profile_names_what_the_roofline_filled(library):
    from has.latency.estimate import estimate_profile

    profile = estimate_profile("internvl2.5-26b", "h100", source="silicon", batch=[1, 8], tokens=[256, 1024])
    assert profile.metadata.source == "silicon"
    filled = profile.metadata.model_extra["silicon"]["roofline_for"]
    assert "encoder attention" in filled  # 128-wide heads: no table
    assert "gate and up" not in filled
    measured = {row.key: row.latency_s for row in profile.rows}
    roofline = estimate_profile("internvl2.5-26b", "h100", batch=[1, 8], tokens=[256, 1024])
    prefill = [
        (row.latency_s, measured[row.key])
        for row in roofline.rows
        if row.stage == "prefill" and row.sm_percent == 100 and row.beside == "none"
    ]
    assert all(0.8 < estimate / table < 1.25 for estimate, table in prefill)
    assert any(estimate != table for estimate, table in prefill)

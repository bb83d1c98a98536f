"""Text has no media: what a profile says of media at 0 tokens is nobody's business."""

from __future__ import annotations

from has.core.deployment import Deployment
from has.core.workload import Workload
from has.files.profile import profile_from_rows
from has.sim.run import simulate

ROW = {"sm_percent": 100.0, "batch": 1}
PROFILE = profile_from_rows(
    {"version": 1, "device": "hand", "model": "m", "source": "measured"},
    [
        {**ROW, "stage": "encode", "tokens": 100, "latency_s": 0.1},
        {**ROW, "stage": "prefill", "tokens": 100, "latency_s": 0.1},
        {**ROW, "stage": "decode", "tokens": 100, "latency_s": 0.01},
        # Steep enough to be negative at 0 tokens, as a measured line may well be.
        {**ROW, "stage": "preprocess", "tokens": 100, "latency_s": 0.001},
        {**ROW, "stage": "preprocess", "tokens": 200, "latency_s": 0.010},
        {**ROW, "stage": "embedding_transfer", "tokens": 100, "latency_s": 0.001},
        {**ROW, "stage": "embedding_transfer", "tokens": 200, "latency_s": 0.010},
    ],
)
TEXT = {"modality": "text", "prompt_tokens": 50, "output_tokens": 3}
IMAGE = {"modality": "image", "media_tokens": 150, "prompt_tokens": 50, "output_tokens": 1}
DEPLOYMENT = Deployment.model_validate(
    {
        "version": 1,
        "model": "m",
        "topology": "disaggregated",
        "gpus": 3,
        "alloc": {"encode": 1, "prefill": 1, "decode": 1},
        "encode_batch": 1,
        "prefill_offload": 1,
        "slo": {"ttft_ms": 1000, "tpot_ms": 100},
    }
)


def workload(*entries: dict[str, object]) -> Workload:
    return Workload.model_validate(
        {"version": 1, "arrivals": {"process": "constant", "rate": 0.5}, "requests": list(entries)}
    )


def test_a_text_waits_for_no_media_stage() -> None:
    figures = simulate(DEPLOYMENT, PROFILE, workload(TEXT), requests=20)
    assert figures["ttft_ms"]["mean"] == 100.0
    assert figures["stages"]["encode"]["batches"] == 0


def test_text_and_images_mix() -> None:
    figures = simulate(DEPLOYMENT, PROFILE, workload(TEXT, IMAGE), requests=40)
    assert figures["completed"] == 40
    assert figures["ttft_ms"]["p99"] > 200.0

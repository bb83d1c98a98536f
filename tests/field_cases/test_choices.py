"""What to choose: to disaggregate or not, and how many encoders; and how far to trust a prediction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from has.core.deployment import Deployment
from has.core.slo import Slo
from has.core.space import SearchSpace
from has.files.deployment import load_deployment, save_deployment
from has.files.profile import load_profile, save_profile
from has.files.shipped import shipped
from has.files.workload import save_workload
from has.report.answer import answer_lines
from has.search.explain import explain
from has.search.run import search
from tests.cli.conftest import Said
from tests.field_cases.stages import deployment, profile, workload

Has = Callable[..., Said]
SPACE = SearchSpace(version=1, encode_batch=(1, 4), prefill_offload={"step": 0.5})  # type: ignore[arg-type]  # as a file has it


# The share of requests with an image doubles, requests per second stay.


@pytest.mark.parametrize(
    ("encode_s", "rate", "before", "after"),
    [
        (0.4, 8.0, {"media_share": 0.4}, {"media_share": 0.8}),
        pytest.param(0.9, 5.0, {"media_share": 0.25}, {"media_share": 0.5}, marks=pytest.mark.long),
        pytest.param(
            0.2,
            8.0,
            {"items": 2, "media_tokens": 200},
            {"items": 4, "media_tokens": 200},
            marks=pytest.mark.long,
        ),
    ],
)
def test_encoders_follow_media_per_second_not_requests(
    encode_s: float, rate: float, before: dict[str, float], after: dict[str, float]
) -> None:
    """By shares, and by items of a request: `encode_s` per 400 media tokens."""
    heavy = profile(encode=(0.0, encode_s / 0.4), prefill=(0.0, 0.01), decode=(0.01, 0.0001))
    slo = Slo(ttft_ms=2000, tpot_ms=60)
    space = SearchSpace.model_validate(
        {
            "version": 1,
            "alloc": {"prefill": [0, 1], "decode": [1, 2]},
            "encode_batch": [1],
            "prefill_offload": {"step": 1.0},
            "topologies": ["disaggregated"],
        }
    )
    found: list[Deployment] = []
    for traffic in (before, after):
        asked = workload(slo, rate=rate, output_tokens=30, **traffic)  # type: ignore[arg-type]  # by name
        answer = search(
            8, heavy, asked, space=space, rate=rate, objective="cost", requests=150, trials=7, seed=1
        )
        found.append(answer.best)
    few, many = found
    assert many.alloc["encode"] > few.alloc["encode"]
    assert many.alloc["decode"] == few.alloc["decode"]
    loads = [
        explain(few, heavy, workload(slo, **traffic), rate=rate, requests=300)["capacities"]["utilisation"]  # type: ignore[arg-type]  # by name
        for traffic in (before, after)
    ]
    assert loads[1]["encode"] == pytest.approx(2 * loads[0]["encode"], rel=0.15)
    assert loads[1]["decode"] == pytest.approx(loads[0]["decode"], rel=0.15)


# One GPU's worth of load, disaggregated all the same: TTFT 57.0 s against 52.3 s of the monolith.


@pytest.mark.parametrize(
    ("encode_s", "prefill_s", "decode_s", "transfer_s"),
    [(0.02, 0.02, 0.03, 0.05), pytest.param(0.01, 0.03, 0.02, 0.1, marks=pytest.mark.long)],
)
def test_disaggregation_that_loses_is_said_to_lose_on_equal_gpus(
    encode_s: float, prefill_s: float, decode_s: float, transfer_s: float
) -> None:
    """Encode and prefill are little beside decode, so GPUs set apart for them idle."""
    light = profile(
        encode=(encode_s, 0.0), prefill=(prefill_s, 0.0), decode=(decode_s, 0.002), transfer_s=transfer_s
    )
    slo = Slo(ttft_ms=2000, tpot_ms=200)
    asked = workload(slo, media_tokens=200, output_tokens=60)
    free = search(3, light, asked, space=SPACE, requests=150, trials=6, seed=1)
    assert free.best.topology == "monolithic"

    forced = SPACE.model_copy(update={"topologies": ("disaggregated",)})
    answer = search(3, light, asked, space=forced, requests=150, trials=6, seed=1)
    monolith = answer.baselines["monolithic"]
    assert monolith.deployment is not None
    assert monolith.objective is not None
    assert monolith.deployment.gpus == answer.best.gpus == 3
    assert monolith.objective > answer.objective
    (said,) = [line for line in answer_lines(answer.best) if "monolithic" in line]
    assert "on the same GPUs" in said
    assert "better" in said


# Predicted TTFT off by 45 %: how far to trust a prediction.


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("cpu-tiny-image", "measured"),
        ("a100-80-qwen2.5-vl-7b", "roofline"),
        ("l40s-llava-v1.6-34b", "roofline"),
    ],
)
def test_every_prediction_says_its_source_and_its_error(
    has: Has, tmp_path: Path, name: str, source: str
) -> None:
    path = shipped("profiles") / f"{name}.parquet"
    metadata = load_profile(path).metadata
    assert metadata.source == source
    slo = Slo(ttft_ms=20_000, tpot_ms=500)
    tp = metadata.tensor_parallel or 1
    plan = deployment(metadata.model, slo, {"all": tp}, tensor_parallel={"all": tp})
    save_deployment(plan, tmp_path / "d.yaml")
    save_workload(workload(slo, rate=0.2, media_tokens=64, output_tokens=4), tmp_path / "w.yaml")
    files = ("d.yaml", "--profile", path, "--workload", "w.yaml")
    told = has("explain", *files, "--json").json
    assert told["prediction_source"] == source
    assert told["profile_error"] == metadata.stated_error > 0
    if source != "measured":
        for command in ("explain", "simulate"):
            said = has(command, *files)
            assert f"{100 * metadata.stated_error:g} %" in said.out + said.err
            assert source in said.out + said.err


@pytest.mark.parametrize("factor", [pytest.param(0.7, marks=pytest.mark.long), 1.45])
def test_a_prediction_that_proves_wrong_is_told_with_its_error(
    tmp_path: Path, has: Has, factor: float
) -> None:
    """Trials on a truth whose prefill takes `factor` of what the profile says, which is an estimate."""
    line, slow = (0.0, 0.5), (0.0, 0.5 * factor)
    planned = profile(prefill=line, source="roofline", error=0.5)
    save_profile(planned, tmp_path / "p.parquet")
    save_profile(profile(prefill=slow), tmp_path / "truth.parquet")
    slo = Slo(ttft_ms=4000, tpot_ms=100)
    save_workload(workload(slo, rate=1.0, media_tokens=400), tmp_path / "w.yaml")
    (tmp_path / "s.yaml").write_text("version: 1\nencode_batch: [1]\nprefill_offload: {step: 0.5}\n")
    searched = ("--profile", "p.parquet", "--workload", "w.yaml", "--space", "s.yaml")
    found = has(
        "search", "--gpus", 3, *searched, "--trial-profile", "truth.parquet",
        "--rate", 1, "--trials", 4, "--requests", 100, "--run", "run", "--json",
    )  # fmt: skip
    assert found.status == 0
    best = load_deployment(tmp_path / "best.yaml")
    evidence = best.evidence or {}
    assert evidence["profile"] == {"source": "roofline", "error": 0.5}
    shown = evidence["prediction_error_percent"]["ttft_mean"]
    assert (shown > 5) == (factor < 1)
    assert (shown < -5) == (factor > 1)
    assert evidence["stage_factors"]["prefill"]["factor"] == pytest.approx(factor, rel=0.05)
    told = has("explain", "best.yaml", "--json").json
    assert told["prediction_error_percent"]["ttft_mean"] > 5
    assert "off in this run" in has("explain", "best.yaml").out

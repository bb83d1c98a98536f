"""`has export`: files, what changed said aloud, the score of what is emitted."""

from __future__ import annotations

import json
import os
import subprocess

import pytest


@pytest.fixture
def best(tmp_path):
    path = tmp_path / "best.yaml"
    path.write_text(
        "version: 1\nmodel: tiny-image\ntopology: disaggregated\ngpus: 4\n"
        "alloc: {encode: 1, prefill: 1, decode: 2}\nencode_batch: 2\nprefill_offload: 0.5\n"
        "rate: 2.0\nslo: {ttft_ms: 2000, tpot_ms: 200}\n"
    )
    return path


def test_vllm_files_are_written_and_scored(best, tmp_path, has) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "out"
    said = has("export", str(best), "--to", "vllm", "--out", str(out), "--json")
    assert said.status == 0, said.err
    answer = json.loads(said.out)
    assert answer["deployment"]["prefill_offload"] == 1.0
    assert {c["knob"] for c in answer["changes"]} >= {"prefill_offload"}
    assert answer["score"]["emitted"]["requests"] == answer["score"]["asked"]["requests"] > 0
    assert answer["score"]["calibrated"] is False
    assert "uncalibrated" in said.err
    assert "prefill_offload: 0.5 becomes 1" in said.err
    assert os.access(out / "launch.sh", os.X_OK)
    subprocess.run(["bash", "-n", out / "launch.sh"], check=True)


def test_dry_run_shows_and_writes_nothing(best, tmp_path, has) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "out"
    said = has("export", str(best), "--to", "llm-d", "--out", str(out), "--dry-run")
    assert said.status == 0
    assert "EndpointPickerConfig" in said.out
    assert not out.exists()


@pytest.mark.parametrize(
    ("to", "status", "words"),
    [
        ("lmdeploy", 1, "no encode stage"),
        ("tgi", 2, "no such engine"),
        ("sglang", 1, "fixed list of architectures"),
    ],
)
def test_refusals(best, has, to, status, words) -> None:  # type: ignore[no-untyped-def]
    said = has("export", str(best), "--to", to)
    assert said.status == status
    assert words in said.err


@pytest.mark.parametrize("to", ["dynamo", "llm-d"])
def test_a_port_that_would_be_written_nowhere_is_refused(best, has, to) -> None:  # type: ignore[no-untyped-def]
    best.write_text(best.read_text().replace("tiny-image", "qwen2.5-vl-7b"))
    said = has("export", str(best), "--to", to, "--port", "9000", "--dry-run")
    assert said.status == 2
    assert "--port" in said.err
    for other in ("vllm", "sglang"):
        assert "9000" in has("export", str(best), "--to", other, "--port", "9000", "--dry-run").out


@pytest.mark.parametrize("below", ["", "/folder"])
def test_a_file_where_the_folder_is_to_be_is_refused_by_the_options_name(best, tmp_path, has, below) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "taken").write_text("mine")
    said = has("export", str(best), "--to", "vllm", "--out", f"taken{below}")
    assert said.status == 2
    assert "--out" in said.err
    assert f"taken{below}" in said.err
    assert "mend" in said.err
    assert (tmp_path / "taken").read_text() == "mine"


FAST = "stage,sm_percent,batch,tokens,latency_s\nencode,100,1,64,{encode}\nprefill,100,1,64,0.04\ndecode,100,1,64,0.01\n"
TOLD = {"version": 1, "device": "test", "model": "tiny-image", "source": "measured"}
WORKLOAD = (
    "version: 1\nname: w\narrivals: {process: poisson, rate: 1.0}\nrequests:\n"
    "  - {modality: image, media_tokens: 64, prompt_tokens: 16, output_tokens: 4}\n"
    "slo: {ttft_ms: 9000, tpot_ms: 900, attainment: 0.5}\n"
)


def evidence(folder) -> list[str]:  # type: ignore[no-untyped-def]
    for name, encode in (("p", 0.05), ("slow", 0.8)):
        (folder / f"{name}.csv").write_text(FAST.format(encode=encode))
        (folder / f"{name}.json").write_text(json.dumps(TOLD))
    (folder / "w.yaml").write_text(WORKLOAD)
    return ["--profile", "p.csv", "--workload", "w.yaml", "--dry-run"]


def test_the_score_is_at_the_rate_and_slo_of_the_recommendation(best, tmp_path, has) -> None:  # type: ignore[no-untyped-def]
    """Not at those of the workload's file, where a collapse at the recommended rate does not show."""
    given = evidence(tmp_path)
    best.write_text(best.read_text().replace("rate: 2.0", "rate: 60.0"))
    said = has("export", str(best), "--to", "vllm", *given)
    assert "recommended at 60 req/s: attainment" in said.out
    assert "as emitted at 60 req/s: attainment" in said.out
    assert "--rate 60" in said.err
    assert "before the workload's 1" in said.err
    assert "--ttft-ms 2000" in said.err
    answer = has("export", str(best), "--to", "vllm", *given, "--json").json
    assert answer["score"]["rate"] == 60.0
    assert answer["score"]["asked"]["attainment"] < 0.5
    said = has("export", str(best), "--to", "vllm", *given, "--rate", "3", "--json")
    assert said.json["score"]["rate"] == 3.0
    assert said.json["score"]["asked"]["attainment"] == 1.0


def test_pools_of_other_gpus_are_scored_by_their_own_profiles(best, tmp_path, has) -> None:  # type: ignore[no-untyped-def]
    given = evidence(tmp_path)
    alike = has("export", str(best), "--to", "vllm", *given, "--json").json["score"]
    apart = has(
        "export", str(best), "--to", "vllm", *given, "--pool-profile", "encode=slow.csv", "--json"
    ).json["score"]
    for which in ("asked", "emitted"):
        assert apart[which]["ttft_ms"]["p50"] > alike[which]["ttft_ms"]["p50"] + 500


def test_what_was_emitted_is_of_the_profiles_model_under_its_other_name(best, tmp_path, has) -> None:  # type: ignore[no-untyped-def]
    given = ["--profile", "h100-qwen2.5-vl-7b", "--workload", "image"]
    best.write_text(best.read_text().replace("tiny-image", "qwen2.5-vl-7b"))
    said = has("export", str(best), "--to", "vllm", "--out", "out", *given)
    assert "profile is of model" not in said.err
    said = has("simulate", "out/deployment.yaml", *given)
    assert said.status == 0
    assert "Qwen/Qwen2.5-VL-7B-Instruct" in said.out
    assert "profile is of model" not in said.err

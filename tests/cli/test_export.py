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


@pytest.mark.parametrize("below", ["", "/folder"])
def test_a_file_where_the_folder_is_to_be_is_refused_by_the_options_name(best, tmp_path, has, below) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "taken").write_text("mine")
    said = has("export", str(best), "--to", "vllm", "--out", f"taken{below}")
    assert said.status == 2
    assert "--out" in said.err
    assert f"taken{below}" in said.err
    assert "mend" in said.err
    assert (tmp_path / "taken").read_text() == "mine"

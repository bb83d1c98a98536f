"""`has profile --gpu`, and what a search says where no profile fits."""

from __future__ import annotations

import json

import pytest

from has.cli.main import run
from has.files.profile import load_profile


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_an_estimate_is_written_and_called_one(capsys):
    assert run(["profile", "--model", "ultravox-8b", "--gpu", "l40s", "--source", "roofline"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("ESTIMATE (roofline) of ultravox-v0.5-llama-3.1-8b on L40S")
    profile = load_profile("l40s-ultravox-v0.5-llama-3.1-8b.parquet")
    assert profile.metadata.source == "roofline"
    assert profile.metadata.tensor_parallel == 1
    assert "--tensor-parallel 1" in said.err


def test_an_estimate_as_json(capsys):
    line = ["profile", "--model", "Qwen/Qwen2.5-VL-7B-Instruct", "--gpu", "a100-80", "--tp", "2", "--json"]
    assert run([*line, "--out", "p.parquet"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["profile"] == "p.parquet"
    assert answer["metadata"]["device"] == "A100 80GB SXM"
    assert answer["metadata"]["tensor_parallel"] == 2
    assert answer["points"] == len(load_profile("p.parquet").rows)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--model", "qwen2.5-vl-7b", "--source", "roofline"], "--gpu"),
        (["--gpu", "h100"], "--model"),
        (["--model", "qwen2.5-vl-7b", "--gpu", "a100"], "A100 40GB SXM, A100 80GB SXM"),
        (["--model", "no-such-model", "--gpu", "h100"], "no facts are shipped for the model"),
        (["--model", "qwen2.5-vl-7b", "--gpu", "h100", "--full"], "nothing is measured"),
        (["--model", "qwen2.5-vl-7b", "--gpu", "h100", "--quick"], "nothing is measured"),
        (["--model", "qwen2.5-vl-7b", "--gpu", "h100", "--engine", "vllm"], "nothing is measured"),
        (["--model", "qwen2.5-vl-7b", "--gpu", "h100", "--source", "measured"], "nothing is measured"),
        (["--model", "qwen2.5-vl-7b", "--gpu", "a100-80", "--dtype", "fp8"], "has no fp8"),
        (["--model", "qwen2.5-vl-7b", "--gpu", "h100", "--tp", "3"], "cannot share"),
        (["--model", "tiny-image", "--tp", "2"], "is of estimates"),
        (["--model", "qwen2.5-vl-7b", "--gpu", "rtx6000ada", "--source", "silicon"], "no measured kernel"),
    ],
)
def test_what_cannot_be_estimated_is_refused(line, said, capsys):
    assert run(["profile", *line]) == 2
    assert said in capsys.readouterr().err


def test_a_search_without_a_profile_names_the_estimates_that_ship(capsys):
    assert run(["search", "--gpus", "8", "--model", "Qwen/Qwen2.5-VL-7B-Instruct", "--device", "cpu"]) == 3
    said = capsys.readouterr().err
    for gpu in ("a100-80", "h100", "h200", "l40s", "rtx6000ada"):
        assert f"--profile {gpu}-qwen2.5-vl-7b " in said
    assert "has profile --model" in said

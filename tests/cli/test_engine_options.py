"""`--engine vllm` and `--on vllm` where there is no vLLM, or the question makes no sense: one message, the right status."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_vllm(monkeypatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("HAS_VLLM", "/nowhere/vllm")


@pytest.fixture
def best(tmp_path):  # type: ignore[no-untyped-def]
    path = tmp_path / "best.yaml"
    path.write_text(
        "version: 1\nmodel: Qwen/Qwen2.5-VL-7B-Instruct\ntopology: disaggregated\ngpus: 3\n"
        "alloc: {encode: 1, prefill: 1, decode: 1}\nencode_batch: 2\nprefill_offload: 1\n"
        "slo: {ttft_ms: 2000, tpot_ms: 200}\n"
    )
    return path


def test_without_vllm(best, tmp_path, has) -> None:  # type: ignore[no-untyped-def]
    for words in (
        ["deploy", str(best), "--engine", "vllm", "--port", "0"],
        ["profile", "--engine", "vllm", "--model", "m", "--out", str(tmp_path / "p.parquet")],
    ):
        said = has(*words)
        assert (said.status, said.out) == (3, ""), said.err
        assert "HAS_VLLM=" in said.err


def test_an_engine_has_no_default_model(has) -> None:  # type: ignore[no-untyped-def]
    for words in (["profile", "--engine", "vllm"], ["search", "--on", "vllm", "--gpus", "3"]):
        said = has(*words)
        assert said.status == 2
        assert "--model" in said.err


@pytest.mark.parametrize(
    "option",
    [
        ("--full",),
        ("--quick",),
        ("--fresh",),
        ("--sm", "50,100"),
        ("--virtual-gpus", "2"),
        ("--device", "cuda"),
        ("--modality", "image"),
    ],
)
def test_options_that_would_do_nothing_on_vllm_are_refused(option, has) -> None:  # type: ignore[no-untyped-def]
    said = has("profile", "--engine", "vllm", "--model", "m", *option)
    assert (said.status, said.out) == (2, "")
    assert "does nothing with --engine vllm" in said.err
    assert f"leave {option[0]} out" in said.err


def test_dry_run_shows_commands(best, has) -> None:  # type: ignore[no-untyped-def]
    said = has("deploy", str(best), "--engine", "vllm", "--dry-run")
    assert said.status == 0
    assert said.out.count("vllm serve") == 3
    assert "ec_producer" in said.out


def test_attach_is_of_engines(best, has) -> None:  # type: ignore[no-untyped-def]
    said = has("deploy", str(best), "--attach", "encode=http://a:1")
    assert said.status == 2
    assert "--engine vllm" in said.err
    said = has("deploy", str(best), "--engine", "vllm", "--attach", "encode=http://a:1")
    assert said.status == 2
    assert "prefill workers" in said.err

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


@pytest.mark.parametrize(("option", "value"), [("--ec-dir", "."), ("--encoder-budget", "4096")])
def test_what_is_known_of_own_instances_is_of_attached_ones(best, has, option, value) -> None:  # type: ignore[no-untyped-def]
    said = has("deploy", str(best), "--engine", "vllm", option, value)
    assert said.status == 2
    assert option in said.err
    assert "--attach" in said.err


def test_a_folder_of_embeddings_that_is_not_there_is_refused(best, has) -> None:  # type: ignore[no-untyped-def]
    said = has("deploy", str(best), "--engine", "vllm", "--attach", "encode=http://a:1", "--ec-dir", "none")
    assert said.status == 2
    assert "--ec-dir" in said.err


@pytest.mark.parametrize(
    "listed",
    ["http://foo.org/", "foo.org/", "foo.org:443", "a.org,https://user@foo.org", "https://*.foo.org", "*"],
)
def test_what_is_no_domain_would_allow_nothing_and_is_refused(best, has, listed) -> None:  # type: ignore[no-untyped-def]
    said = has("deploy", str(best), "--engine", "vllm", "--dry-run", "--allowed-media-domains", listed)
    assert said.status == 2
    assert "--allowed-media-domains" in said.err
    assert "foo.org\n" in said.err or listed == "*"
    assert "mend" in said.err


@pytest.mark.parametrize(
    "listed", ["foo.org", " foo.org. , *.bar.org", "10.0.0.1", "2001:db8::1", "bücher.example"]
)
def test_domains_are_taken(best, has, listed) -> None:  # type: ignore[no-untyped-def]
    said = has("deploy", str(best), "--engine", "vllm", "--dry-run", "--allowed-media-domains", listed)
    assert said.status == 0, said.err


def without_prefill_pool(best) -> None:  # type: ignore[no-untyped-def]
    text = best.read_text().replace("encode: 1, prefill: 1, decode: 1", "encode: 2, prefill: 0, decode: 1")
    best.write_text(text.replace("prefill_offload: 1", "prefill_offload: 0"))


def test_dry_runs_and_exports_refuse_what_would_not_serve(best, has) -> None:  # type: ignore[no-untyped-def]
    """Encode and prefill in one process: our gateway cannot drive it, so nothing is shown or written that starts it."""
    without_prefill_pool(best)
    for words in (
        ["deploy", str(best), "--engine", "vllm", "--dry-run"],
        ["export", str(best), "--to", "vllm"],
    ):
        said = has(*words)
        assert said.status == 1
        assert "need an SM split" in said.err
        assert "--experimental-sm-split" in said.err
    said = has("export", str(best), "--to", "vllm", "--experimental-sm-split", "--out", "split")
    assert said.status == 0, said.err


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("prefill_offload: 1", "prefill_offload: 0.5", "prefill_offload: 0.5 becomes 1"),
        ("gpus: 3", "gpus: 3\ngpus_per_node: 1", "it needs 3 nodes"),
    ],
)
def test_a_dry_run_refuses_what_a_start_would(best, has, old, new, reason) -> None:  # type: ignore[no-untyped-def]
    best.write_text(best.read_text().replace(old, new))
    said = has("deploy", str(best), "--engine", "vllm", "--dry-run")
    assert said.status == 1
    assert reason in said.err
    assert "has export --to vllm" in said.err


def test_a_name_of_our_facts_is_loaded_by_its_id(best, has) -> None:  # type: ignore[no-untyped-def]
    best.write_text(best.read_text().replace("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b"))
    said = has("deploy", str(best), "--engine", "vllm", "--dry-run")
    assert said.out.count("vllm serve Qwen/Qwen2.5-VL-7B-Instruct") == 3
    assert said.out.count("--served-model-name qwen2.5-vl-7b") == 3, (
        "the name of the deployment, as clients know it"
    )

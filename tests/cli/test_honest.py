"""Commands say what is true: what was estimated or simulated, what cannot be served, what to do instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from has.errors import RunError

SEARCH = (
    "search",
    "--gpus",
    "3",
    "--workload",
    "w.yaml",
    "--space",
    "tiny.yaml",
    "--trials",
    "2",
    "--requests",
    "200",
)


@pytest.fixture
def tiny(inputs: Path) -> Path:
    (inputs / "tiny.yaml").write_text(
        "version: 1\nencode_batch: [1]\nprefill_offload: {min: 0.0, max: 1.0, step: 1.0}\n"
    )
    workload = (inputs / "w.yaml").read_text()
    (inputs / "w.yaml").write_text(workload.replace("ttft_ms: 2000", "ttft_ms: 400"))
    return inputs


def estimated(folder: Path) -> None:
    metadata = json.loads((folder / "p.json").read_text()) | {"source": "roofline", "error": 0.3}
    (folder / "p.json").write_text(json.dumps(metadata))


def test_an_estimated_profile_is_said_by_every_command_that_uses_it(has, tiny) -> None:  # type: ignore[no-untyped-def]
    estimated(tiny)
    words = "ESTIMATE, stated error 30 %"
    files = ("--profile", "p.csv", "--workload", "w.yaml")
    assert words in has("simulate", "d.yaml", *files, "--requests", "50").out
    assert words in has("simulate", "d.yaml", *files, "--requests", "50", "--json").err
    assert words in has("explain", "d.yaml", *files).out
    said = has(*SEARCH, "--profile", "p.csv", "--run", "run")
    assert words in said.out
    assert "measured" not in said.out.replace("nothing of it was measured", "")
    assert words in has("report", "run").out


def test_a_run_and_its_tables_are_shown(has, tiny) -> None:  # type: ignore[no-untyped-def]
    assert has(*SEARCH, "--profile", "p.csv", "--run", "run", "--quiet").status == 0
    folder = has("show", "run")
    assert "Against the baselines" in folder.out
    assert "has report run" in folder.out
    assert has("show", "run", "--json").json["best"]["gpus"] == 3
    for file in ("trials.jsonl", "trials.csv", "trials.parquet"):
        said = has("show", f"run/{file}")
        assert said.status == 0, said.err
        assert "2 trials: 2 complete" in said.out
        assert len(has("show", f"run/{file}", "--json").json["trials"]) == 2
    pruned = has("show", "run/pruned.csv")
    assert pruned.status == 0, pruned.err
    assert pruned.out.startswith("Pruned candidates")
    cut = has("show", "run/pruned.csv", "--json").json["pruned"]
    assert f"{len(cut)} candidate" in pruned.out


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_records_are_not_taken_for_a_trace(ending, has, inputs) -> None:  # type: ignore[no-untyped-def]
    simulate = ("simulate", "d.yaml", "--profile", "p.csv", "--workload", "w.yaml", "--requests", "60")
    figures = has(*simulate, "--records", f"r.{ending}", "--json").json
    said = has("show", f"r.{ending}")
    assert said.status == 0, said.err
    assert said.out.startswith(f"Records r.{ending}")
    assert f"{figures['ttft_ms']['p99']:.4g}" in said.out
    assert len(has("show", f"r.{ending}", "--json").json["records"]) == 60


def test_a_folder_that_is_no_run_is_bad_input(has, inputs) -> None:  # type: ignore[no-untyped-def]
    (inputs / "empty").mkdir()
    said = has("show", "empty")
    assert said.status == 2
    assert "manifest.json" in said.err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("model: tiny-image", "model: qwen2.5-vl-7b", "serves the bundled models"),
        (
            "gpus: 8\nalloc: {encode: 2, prefill: 2, decode: 4}",
            "gpus: 9\nalloc: {encode: 2, prefill: 2, decode: 5}",
            "9 GPUs",
        ),
        ("encode_batch: 4", "encode_batch: 4\ntensor_parallel: {decode: 2}", "no tensor parallelism"),
    ],
    ids=["model", "gpus", "tp"],
)
def test_a_dry_run_refuses_what_cannot_be_served(old, new, words, has, inputs) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("torch")
    text = (inputs / "d.yaml").read_text()
    assert old in text
    (inputs / "d.yaml").write_text(text.replace(old, new))
    said = has("deploy", "d.yaml", "--dry-run")
    assert said.status == 3
    assert words in said.err
    assert "mend:" in said.err


def test_a_search_that_only_simulates_measures_nothing_where_a_profile_ships(has, tiny, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    asked = []

    def measured(*_: object, **__: object) -> None:
        raise AssertionError("a profile was measured")

    def searched(**arguments: Any) -> None:
        asked.append(arguments)
        raise RunError("nothing is searched in this test")

    monkeypatch.setattr("has.cli.profile.measure", measured)
    monkeypatch.setattr("has.search.run.search", searched)
    for arguments in (("--gpus", "4", "--on", "simulated"), ("--gpus", "16")):
        said = has("search", *arguments, "--workload", "w.yaml")
        assert "nothing is searched" in said.err
        assert "shipped, of another machine: none fits, and trials are only simulated" in said.err
        assert "  --profile cpu-tiny-image " in said.err  # by the name that the option takes
    assert "--on simulated" in said.err
    assert all(arguments["profile"].metadata.source == "measured" for arguments in asked)
    assert len(asked) == 2


def test_measuring_without_the_runtime_names_what_to_install(has, inputs, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("has.cli.wiring.can_measure", lambda: False)
    said = has("profile", "--device", "cpu", "--quick")
    assert said.status == 3
    assert (
        "pip install 'has-epd[runtime]'; or estimate: has profile --model qwen2.5-vl-7b --gpu h100"
        in said.err
    )
    assert has("search", "--gpus", "4", "--on", "live").status == 3


@pytest.mark.parametrize(
    ("arguments", "status", "mend"),
    [
        (
            ("search", "--gpus", "4", "--model", "nobody/knows", "--device", "cpu"),
            3,
            "has profile --model qwen2.5-vl-7b --gpu h100",
        ),
        (
            ("search", "--gpus", "4", "--model", "llava-v1.6-34", "--device", "cpu"),
            3,
            "has profile --model llava-v1.6-34b --gpu h100",
        ),
        (
            ("profile", "--device", "cpu", "--model", "Qwen/Qwen2.5-VL-7B-Instruct"),
            2,
            "has profile --model qwen2.5-vl-7b --gpu h100",
        ),
        (("profile", "--device", "cpu", "--model", "nobody/knows"), 2, "has profile --model tiny-image"),
        (("profile", "--model", "qwen2.5-vl-7b", "--gpu", "h300"), 2, "did you mean H100 SXM or H200 SXM?"),
    ],
)
def test_the_mend_names_a_command_that_works(arguments, status, mend, has, inputs) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("torch")
    said = has(*arguments)
    assert said.status == status, said.err
    assert mend in said.err
    if "--gpu" in mend:
        command = mend[mend.index("profile") :].split()
        done = has(*command, "--sm", "50,100", "--batch", "1", "--tokens", "64")
        assert done.status == 0, done.err


def test_an_interrupted_run_says_how_to_do_it_again(has, tiny, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from has.cli import search_view

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(search_view.SearchView, "trial_finished", stop)
        said = has(*SEARCH, "--profile", "p.csv", "--run", "run")
    assert said.status == 130
    assert "1 finished trial kept in run" in said.err
    report = has("report", "run").out
    assert "No answer yet: 1 trial finished." in report
    assert "has search --gpus 3 --profile run/profile.parquet" in report


@pytest.mark.parametrize(
    "command",
    [
        (*SEARCH, "--out", "/dev/stdout"),
        ("profile", "--out", "/dev/fd/1"),
        ("show", "d.yaml", "--html", "-"),
        ("simulate", "d.yaml", "--records", "/proc/self/fd/1"),
        ("trace", "convert", "x.csv", "--format", "azure", "--out", "/dev/stdout"),
        ("report", "run", "--html", "/dev/stdout"),
    ],
    ids=lambda c: c[0],
)
def test_stdout_is_no_place_to_write_files_to(command, has, tiny) -> None:  # type: ignore[no-untyped-def]
    said = has(*command)
    assert said.status == 2
    assert "is where the answer goes; name a file" in said.err
    assert not Path("-").exists()

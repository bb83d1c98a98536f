"""What commands write once their work is done: refused before it where it cannot be, and never instead of the answer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

EVIDENCE = ("--profile", "p.csv", "--workload", "w.yaml")
SEARCH = ("search", "--gpus", "4", *EVIDENCE, "--space", "small.yaml", "--trials", "2", "--requests", "100")
SIMULATE = ("simulate", "d.yaml", *EVIDENCE, "--requests", "50")


@pytest.fixture
def small(inputs: Path) -> Path:
    """With a space of a few candidates, a TTFT that keeps checks short, a folder and a file in the way."""
    (inputs / "small.yaml").write_text(
        "version: 1\nencode_batch: [1, 2]\nprefill_offload: {min: 0.0, max: 1.0, step: 0.5}\n"
    )
    workload = (inputs / "w.yaml").read_text()
    (inputs / "w.yaml").write_text(workload.replace("ttft_ms: 2000", "ttft_ms: 400"))
    (inputs / "folder.csv").mkdir()
    (inputs / "file").write_text("mine")
    return inputs


@pytest.mark.parametrize(
    ("arguments", "option", "value"),
    [
        ((*SEARCH, "--out", "folder.csv"), "--out", "folder.csv"),
        ((*SEARCH, "--out", "file/best.yaml"), "--out", "file/best.yaml"),
        ((*SEARCH, "--out", "/proc/best.yaml"), "--out", "/proc/best.yaml"),
        ((*SEARCH, "--run", "file"), "--run", "file"),
        ((*SEARCH, "--run", "file/run"), "--run", "file/run"),
        ((*SIMULATE, "--records", "folder.csv"), "--records", "folder.csv"),
        ((*SIMULATE, "--records", "file/x.csv"), "--records", "file/x.csv"),
        (
            ("bench", "http://127.0.0.1:9", "--workload", "w.yaml", "--records", "file/x.csv"),
            "--records",
            "file/x.csv",
        ),
        (("show", "d.yaml", "--html", "folder.csv"), "--html", "folder.csv"),
        (
            ("profile", "--model", "qwen2.5-vl-7b", "--gpu", "h100", "--out", "folder.csv"),
            "--out",
            "folder.csv",
        ),
        (
            ("trace", "convert", "w.yaml", "--format", "azure", "--out", "folder.csv"),
            "--out",
            "folder.csv",
        ),
        (("profile", "--device", "cpu", "--out", "file/p.parquet"), "--out", "file/p.parquet"),
        (("profile", "--device", "cpu", "--out", "p.txt"), "--out", "p.txt"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(arguments, option, value, has, small) -> None:  # type: ignore[no-untyped-def]
    before = {path.name for path in small.iterdir()}
    said = has(*arguments, "--json")
    assert said.status == 2, said.err
    error = said.json["error"]
    assert (error["field"], error["value"]) == (option, value)
    assert error["mend"] or error["allowed"]
    assert {path.name for path in small.iterdir()} == before
    assert (small / "file").read_text() == "mine"


def test_an_answer_is_told_though_its_files_could_not_be_written(has, small) -> None:  # type: ignore[no-untyped-def]
    """A full disk shows only in the writing."""
    Path("full.csv").symlink_to("/dev/full")
    said = has(*SIMULATE, "--records", "full.csv", "--json")
    assert said.status == 3
    assert said.json["completed"] == 50
    assert "full.csv: cannot be written: No space left" in said.err

    said = has(*SEARCH, "--out", "full.csv", "--run", "run", "--json")
    assert said.status == 3
    assert said.json["best"]["gpus"] == 4
    assert "full.csv: cannot be written: No space left" in said.err


def test_a_search_whose_page_cannot_be_written_has_its_answer(has, small) -> None:  # type: ignore[no-untyped-def]
    (small / "run" / "report.html").mkdir(parents=True)
    said = has(*SEARCH, "--run", "run", "--json")
    assert said.status == 0, said.err
    assert said.json["best"]["gpus"] == 4
    assert Path("best.yaml").is_file()
    assert "warning: run/report.html was not written" in said.err
    assert "has report run --html run/report.html" in said.err

    shutil.rmtree(small / "run" / "report.html")
    for option in ("--csv", "--parquet"):
        refused = has("report", "run", option, "file", "--json")
        assert refused.status == 2
        assert (refused.json["error"]["field"], refused.json["error"]["value"]) == (option, "file")
    refused = has("report", "run", "--html", "folder.csv", "--json")
    assert (refused.status, refused.json["error"]["field"]) == (2, "--html")
    assert has("report", "run", "--html", "run/report.html").status == 0

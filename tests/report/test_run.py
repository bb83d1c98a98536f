"""A run folder as the search leaves it: read, reported, and its tables written again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from has.core.space import SearchSpace
from has.core.workload import Workload
from has.errors import InputError
from has.files.profile import profile_from_rows
from has.files.validate import validate
from has.report.html import page
from has.report.run import load_run, run_data, save_tables
from has.report.run_document import describe_run
from has.search.run import search


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    rows = [
        {"stage": stage, "sm_percent": 100, "batch": 1, "tokens": 64, "latency_s": seconds}
        for stage, seconds in (("encode", 0.05), ("prefill", 0.04), ("decode", 0.01))
    ]
    metadata = {"version": 1, "device": "cpu (emulated)", "model": "tiny-image", "source": "measured"}
    workload = {
        "version": 1,
        "arrivals": {"process": "poisson", "rate": 6.0},
        "requests": [{"modality": "image", "media_tokens": 64, "prompt_tokens": 20, "output_tokens": 8}],
        "slo": {"ttft_ms": 2000, "tpot_ms": 50},
    }
    space = {"version": 1, "encode_batch": [1, 2], "prefill_offload": {"min": 0.0, "max": 1.0, "step": 0.5}}
    search(
        4,
        profile_from_rows(metadata, rows),
        validate(Workload, workload),
        space=validate(SearchSpace, space),
        trials=3,
        requests=200,
        run_dir=run,
    )
    return run


def test_the_page_begins_with_the_answer(folder: Path) -> None:
    run = load_run(folder)
    assert run.best is not None
    text = page(describe_run(run))
    first = text[: text.index("<h2>")]
    assert run.best.label in first
    assert "on the same GPUs" in first
    assert "with probability" in first
    assert "emulated" in first


def test_every_section_is_backed_by_the_run(folder: Path) -> None:
    run = load_run(folder)
    titles = [section.title for section in describe_run(run).sections]
    for title in (
        *(
            "Against the baselines, on the same GPUs",
            "The configuration",
            "How busy each stage was",
            "Trials",
        ),
        *("What was pruned, and why", "Measured against predicted", "How to reproduce it"),
    ):
        assert title in titles


def test_the_funnel_adds_up(folder: Path) -> None:
    run = load_run(folder)
    section = next(s for s in describe_run(run).sections if s.title.startswith("What was pruned"))
    bars, table = section.parts
    total = run.evidence["candidates"]["kept"] + len(run.pruned)
    assert bars.rows[0][1] == bars.full == total  # type: ignore[union-attr]
    assert bars.rows[-1][1] == run.evidence["candidates"]["kept"]  # type: ignore[union-attr]
    assert sum(row[1] for row in table.rows) == len(run.pruned)  # type: ignore[union-attr]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_are_those_of_the_run(ending: str, folder: Path, tmp_path: Path) -> None:
    written = save_tables(load_run(folder), tmp_path / "tables", ending)
    assert {path.name for path in written} == {f"trials.{ending}", f"pruned.{ending}"}
    if ending == "csv":
        for path in written:
            assert path.read_text() == (folder / path.name).read_text()
    else:
        import pyarrow.parquet as pq

        table = pq.read_table(tmp_path / "tables" / "trials.parquet")
        assert table.to_pylist() == pq.read_table(folder / "trials.parquet").to_pylist()


def test_an_unfinished_run_is_reported_and_left_as_it_is(folder: Path, tmp_path: Path) -> None:
    for name in ("manifest.json", "profile.parquet", "workload.yaml", "space.yaml"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    torn = (folder / "trials.jsonl").read_bytes()[:-20]
    (tmp_path / "trials.jsonl").write_bytes(torn)
    run = load_run(tmp_path)
    assert len(run.trials) == torn.count(b"\n")
    assert describe_run(run).lead[0].startswith("No answer yet")
    assert (tmp_path / "trials.jsonl").read_bytes() == torn
    json.dumps(run_data(run), default=str)


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"manifest\.json"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"monolithic,", "not as many values"),
        (b"c,t,1,1,many,0.5,memory,1,1,1,why", "not one of a pruned.csv"),
    ],
)
def test_a_damaged_table_is_an_input_error(folder: Path, tmp_path: Path, damage: bytes, words: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    with (run / "pruned.csv").open("ab") as file:
        file.write(damage + b"\n")
    with pytest.raises(InputError, match=words) as raised:
        load_run(run)
    assert raised.value.where == str(run / "pruned.csv")

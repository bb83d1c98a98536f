"""A run folder as the search leaves it: read, reported, and its tables written again."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from has.core.trial import TrialState
from has.errors import InputError
from has.report.document import Command, Picture, number
from has.report.html import page
from has.report.run import load_run, run_data, save_tables
from has.report.run_document import describe_run
from has.report.run_pictures import look


def test_the_page_begins_with_the_answer(small_run: Path) -> None:
    run = load_run(small_run)
    assert run.best is not None
    text = page(describe_run(run))
    first = text[: text.index("<h2>")]
    assert run.best.label in first
    assert "on the same GPUs" in first
    assert "with probability" in first
    assert "emulated" in first


def test_the_page_does_not_deny_the_answer(small_run: Path) -> None:
    """The answer's rate lasts, that of its short trial need not: lines are drawn at the one, the trial's marks at the other."""
    run = load_run(small_run)
    assert run.best is not None
    assert run.best.rate is not None
    tried = run.evidence["measured"]["rate"]
    assert tried > 1.02 * run.best.rate
    words, ttft, tpot = look(run).plots["distributions"]
    for rate in (run.best.rate, tried):
        assert f"at {number(rate)} requests/s" in str(words).replace("the answer's ", "")
    for picture in (ttft, tpot):
        assert isinstance(picture, Picture)
        found = re.search(
            rf"at {re.escape(number(run.best.rate))} requests/s: best, [^%]* ([\d.]+) %", picture.words
        )
        assert found is not None, picture.words
        assert float(found[1]) >= 100 * run.best.slo.attainment
        assert f"at {number(tried)} requests/s, simulated" in picture.traces[-1]["name"]


def test_every_section_is_backed_by_the_run(small_run: Path) -> None:
    run = load_run(small_run)
    titles = [section.title for section in describe_run(run).sections]
    for title in (
        *(
            "Against the baselines, on the same GPUs",
            "The configuration",
            "How busy each stage was",
            "Trials",
        ),
        *("What was pruned, and why", "Simulated against predicted", "How to reproduce it"),
    ):
        assert title in titles


def test_what_the_folder_keeps_no_copy_of_is_given_again(small_run: Path) -> None:
    run = load_run(small_run)
    typed = ["/bin/has", "search", "--gpus", "4", "--trial-profile", "my truth.parquet", "--trial-noise=0.04"]
    again = replace(run, manifest={**run.manifest, "command": typed})
    section = describe_run(again).sections[-1]
    assert isinstance(section.parts[0], Command)
    assert section.parts[0].line.startswith("has search --gpus 4 --profile ")
    assert section.parts[0].line.endswith(" --trial-profile 'my truth.parquet' --trial-noise=0.04")
    assert dict(section.parts[1].rows)["command"].startswith("has search --gpus 4 ")  # type: ignore[union-attr]


def test_columns_without_a_price_are_not_drawn(small_run: Path) -> None:
    run = load_run(small_run)
    assert all(row["usd_per_hour"] is None for row in run.pareto)
    text = page(describe_run(run))
    assert "$/h" not in text
    assert "Prices" not in text
    priced = replace(run, pareto=tuple({**row, "usd_per_hour": 2.5} for row in run.pareto))
    assert "$/h" in page(describe_run(priced))


def test_the_funnel_adds_up(small_run: Path) -> None:
    run = load_run(small_run)
    section = next(s for s in describe_run(run).sections if s.title.startswith("What was pruned"))
    bars, table = section.parts
    total = run.evidence["candidates"]["kept"] + len(run.pruned)
    assert bars.rows[0][1] == bars.full == total  # type: ignore[union-attr]
    assert bars.rows[-1][1] == run.evidence["candidates"]["kept"]  # type: ignore[union-attr]
    assert sum(row[1] for row in table.rows) == len(run.pruned)  # type: ignore[union-attr]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_are_those_of_the_run(ending: str, small_run: Path, tmp_path: Path) -> None:
    written = save_tables(load_run(small_run), tmp_path / "tables", ending)
    assert {path.name for path in written} == {f"trials.{ending}", f"pruned.{ending}", f"pareto.{ending}"}
    if ending == "csv":
        for path in written:
            assert path.read_text() == (small_run / path.name).read_text()
    else:
        import pyarrow.parquet as pq

        table = pq.read_table(tmp_path / "tables" / "trials.parquet")
        assert table.to_pylist() == pq.read_table(small_run / "trials.parquet").to_pylist()


def test_an_unfinished_run_is_reported_and_left_as_it_is(small_run: Path, tmp_path: Path) -> None:
    for name in ("manifest.json", "profile.parquet", "workload.yaml", "space.yaml"):
        (tmp_path / name).write_bytes((small_run / name).read_bytes())
    torn = (small_run / "trials.jsonl").read_bytes()[:-20]
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
def test_a_damaged_table_is_an_input_error(
    small_run: Path, tmp_path: Path, damage: bytes, words: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    with (run / "pruned.csv").open("ab") as file:
        file.write(damage + b"\n")
    with pytest.raises(InputError, match=words) as raised:
        load_run(run)
    assert raised.value.where == str(run / "pruned.csv")


def test_the_storage_is_optunas_own(small_run: Path, tmp_path: Path) -> None:
    """What optuna-dashboard does with the file: open it as journal storage, and load the study."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    shutil.copy(small_run / "optuna.log", tmp_path)
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "optuna.log")))
    (name,) = optuna.get_all_study_names(storage)
    study = optuna.load_study(study_name=name, storage=storage)
    run = load_run(small_run)
    assert len(study.trials) == len(run.trials)
    for seen, trial in zip(study.trials, run.trials, strict=True):
        assert seen.user_attrs["deployment"] == trial.deployment.label
        assert seen.user_attrs["kind"] == trial.kind
        assert seen.user_attrs["rate"] == trial.rate
        assert seen.user_attrs["attainment"] == (trial.figures or {})["attainment"]
        assert seen.params["topology"] == trial.deployment.topology
        whole = trial.state is TrialState.COMPLETE
        assert seen.state.name == ("COMPLETE" if whole else "PRUNED")
        assert seen.value == (trial.objective if whole else None)
    assert study.best_value == max(t.objective for t in run.trials if t.state is TrialState.COMPLETE)
    assert "topology" in study.trials_dataframe()["params_topology"].name


def test_columns_are_documented_and_in_their_order(small_run: Path) -> None:
    """`docs/tables.md` lists every column of every table, in the order of the files."""
    text = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")
    for name in ("trials", "pruned", "pareto"):
        section = text.split(f"## `{name}.csv`")[1].split("\n## ")[0]
        documented = [
            line.split("|")[1].strip(" `") for line in section.splitlines() if line.startswith("| `")
        ]
        header = (small_run / f"{name}.csv").read_text().splitlines()[0].split(",")
        assert documented == header, name

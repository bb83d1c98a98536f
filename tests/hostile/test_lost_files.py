"""What a command is working with goes away meanwhile: one message, and nothing half-done in its place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from has.cli.main import run
from tests.hostile.test_library import PROFILE, WORKLOAD


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from has.files.profile import save_profile
    from has.files.workload import save_workload

    monkeypatch.chdir(tmp_path)
    save_profile(PROFILE, tmp_path / "p.parquet")
    save_workload(WORKLOAD, tmp_path / "w.yaml")
    (tmp_path / "s.yaml").write_text("version: 1\nencode_batch: [1]\nprefill_offload: {min: 0.0, max: 0.0}\n")
    return tmp_path


SEARCH = (
    *("search", "--gpus", "3", "--profile", "p.parquet", "--workload", "w.yaml", "--space", "s.yaml"),
    *("--trials", "3", "--requests", "60", "--run", "run", "--quiet"),
)


def gone() -> None:
    shutil.rmtree("run")


def became_a_file() -> None:
    shutil.rmtree("run")
    Path("run").write_text("not a folder")


def journal_is_a_folder() -> None:
    Path("run/trials.jsonl").unlink()
    Path("run/trials.jsonl").mkdir()


@pytest.mark.parametrize("fault", [gone, became_a_file, journal_is_a_folder])
def test_a_run_folder_lost_during_trials(
    fault: Callable[[], None],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from has.cli.search_view import SearchView

    seen = []

    def finished(self: Any, trial: Any, *_: object, **__: object) -> None:
        seen.append(trial.number)
        if len(seen) == 1:
            fault()

    monkeypatch.setattr(SearchView, "trial_finished", finished)
    status = run(list(SEARCH))
    said = capsys.readouterr().err
    assert status == 3, said
    assert said.count("error: ") == 1
    assert "run" in said
    assert "nobody foresaw" not in said
    assert "mend:" in said
    assert len(seen) < 3  # it stops at once: what follows could not be kept
    if fault is gone:
        assert not Path("run").exists()


def test_inputs_lost_once_they_are_read_are_missed_by_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from has.cli.search_view import SearchView

    def stage(self: Any, name: str, *_: object) -> None:
        if name == "predicting":
            for file in ("p.parquet", "w.yaml", "s.yaml"):
                Path(file).unlink()

    monkeypatch.setattr(SearchView, "stage", stage)
    assert run(list(SEARCH)) in (0, 1)
    assert Path("run/best.yaml").exists()

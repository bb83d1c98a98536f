"""Every command of the tutorials is run as it stands, in the order in which a reader types them."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from has.cli.main import run

from .tutorial import FOLDER, continues, pages, steps

FIRST = "first-answer.md"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reader")


SLOW = ("how-wrong.md",)
"""Pages that search again and again."""


def in_order() -> list[object]:
    """The first page, then those that go on in its folder."""
    rest = [name for name in pages() if name != FIRST]
    return [FIRST, *(pytest.param(name, marks=pytest.mark.long) if name in SLOW else name for name in rest)]


@pytest.mark.parametrize("name", in_order())
def test_every_command_of_a_tutorial_runs(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert name == FIRST or continues(name) == FIRST
    monkeypatch.chdir(folder)
    done = 0
    before = [] if name == FIRST or Path("best.yaml").exists() else list(steps(FIRST))
    for step in [*before, *steps(name)]:
        if step.file:
            Path(step.file).write_text(step.text, encoding="utf-8")
            continue
        status = run(list(step.command))
        said = capsys.readouterr()
        assert status == 0, f"has {' '.join(step.command)}\n{said.err}"
        assert "Traceback" not in said.err
        done += 1
    assert done >= 2


def test_the_first_answer_is_of_another_question_than_the_example(folder: Path) -> None:
    """The tutorial asks for other GPUs and bounds than the shipped workloads and README do."""
    (search,) = [s.command for s in steps(FIRST) if s.command and s.command[0] == "search"]
    asked = dict(pairwise(search))
    assert asked["--gpus"] not in ("4", "8")
    image = (ROOT / "examples/workloads/image.yaml").read_text()
    assert f"ttft_ms: {asked['--ttft-ms']}" not in image


@pytest.mark.parametrize("name", pages())
def test_links_lead_somewhere(name: str) -> None:
    import re

    text = (FOLDER / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            assert (FOLDER / target).exists(), target


@pytest.mark.long
def test_the_first_tutorial_runs_from_a_clean_install(tmp_path: Path) -> None:
    """As a new user: an empty virtual environment, the package installed into it, the base extras only."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/pip", "install", "-q", "-c", ROOT / "constraints.txt", ROOT], check=True)
    reader = tmp_path / "reader"
    reader.mkdir()
    environment = {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path), "NO_COLOR": "1"}
    for step in steps(FIRST):
        if step.file:
            (reader / step.file).write_text(step.text, encoding="utf-8")
            continue
        done = subprocess.run(
            ["has", *step.command], cwd=reader, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"has {' '.join(step.command)}\n{done.stderr}"

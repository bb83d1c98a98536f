"""`--help`: its text is kept in golden/, and showing it loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from has.cli.main import COMMANDS, GROUPS

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("command", ["", *COMMANDS, *GROUPS])
def test_help_is_as_kept(command: str, has, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("COLUMNS", "80")
    said = has(*command.split(), "--help")
    kept = (GOLDEN / f"{command.replace(' ', '-') or 'has'}.txt").read_text()
    assert (said.status, said.err) == (0, "")
    assert said.out == kept, (
        "the text has changed; if that is wanted: scripts/update_help.py, and read the diff"
    )


@pytest.mark.parametrize("command", [[], *(name.split() for name in (*COMMANDS, *GROUPS))])
def test_h_is_help(command: list[str], has) -> None:  # type: ignore[no-untyped-def]
    assert has(*command, "-h").out == has(*command, "--help").out


def test_has_alone_helps(has) -> None:  # type: ignore[no-untyped-def]
    said = has()
    assert said.status == 0
    assert said.out == has("--help").out


def test_version(has) -> None:  # type: ignore[no-untyped-def]
    import has as package

    assert has("--version").out == f"has {package.__version__}\n"


HEAVY = {
    "torch",
    "transformers",
    "numba",
    "numpy",
    "scipy",
    "pandas",
    "pyarrow",
    "optuna",
    "starlette",
    "httpx",
}


@pytest.mark.parametrize("arguments", [["--help"], ["search", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from has.cli.main import run; run(sys.argv[1:]);"
        "print(*sorted(name.partition('.')[0] for name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    loaded = set(done.stderr.split())
    assert not HEAVY & loaded
    # typer itself reads the options of one command with pydantic; the overview needs none of them
    assert arguments[0] == "search" or "pydantic" not in loaded


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "has.cli.main"],
        env={"_HAS_COMPLETE": f"source_{shell}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "_HAS_COMPLETE" in done.stdout

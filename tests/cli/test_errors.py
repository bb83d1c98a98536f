"""How commands end when something is wrong: statuses, one message, never a traceback."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import has.cli.show
from has.cli.doctor import EXTRAS
from has.cli.failure import Interrupted, as_has_error
from has.errors import InfeasibleError, InputError, MissingError, RunError
from has.files.shipped import shipped


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("shw",), "No such command 'shw'"),
        (("show",), "FILE"),
        (("show", "d.yaml", "more"), "more"),
        (("show", "d.yaml", "--jsn"), "--json"),
        (("simulate", "d.yaml", "--requests", "0"), "--requests"),
        (("simulate", "d.yaml", "--requests", "2.5"), "--requests"),
        (("simulate", "d.yaml", "--warmup-s", "inf"), "--warmup-s"),
        (("simulate", "d.yaml", "--seed", "-1"), "--seed"),
        (("profile", "--sm", "10,200"), "--sm"),
        (("profile", "--sm", "10,10"), "--sm"),
        (("profile", "--batch", "1,x"), "--batch"),
        (("profile", "--modality", "smell"), "--modality"),
        (("profile", "--modality", "video", "--model", "tiny-image", "--device", "cpu"), "--modality"),
        (("profile", "--device", "cpu", "--model", "nobody/knows"), "tiny-image"),
        (("deploy", "d.yaml", "--port", "70000"), "--port"),
        (("deploy", "d.yaml", "--engine", "moon"), "--engine"),
        (("deploy", "d.yaml", "--dry-run", "--api-key", ""), "--api-key"),
        (("deploy", "d.yaml", "--dry-run", "--api-key", " "), "--api-key"),
        (("bench", "http://127.0.0.1:9", "--workload", "w.yaml", "--goodput", "ttft"), "--goodput"),
        (("bench", "http://127.0.0.1:9", "--workload", "w.yaml", "--goodput", "ttft:1,ttft:2"), "--goodput"),
        (("bench", "ftp://host", "--workload", "w.yaml"), "URL"),
        (("bench", "http://127.0.0.1:99999", "--workload", "w.yaml"), "a port from 1 to 65535"),
        (("bench", "http://127.0.0.1:9"), "--workload"),
        (("report", "nowhere"), "nowhere"),
        (("report", "."), "manifest.json"),
    ],
)
def test_bad_usage_is_status_2_and_names_the_place(arguments, words, has, inputs) -> None:  # type: ignore[no-untyped-def]
    said = has(*arguments)
    assert said.status == 2, said.err
    assert words in said.err
    assert said.err.startswith("error: ") or "defaults taken:" in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("arguments", "mend"),
    [
        (("explain", "best.yaml"), "has search writes one"),
        (("explain", "d.yml"), "did you mean d.yaml?"),
        (("simulate", "d.yaml", "--profile", "p.csv", "--workload", "imgae"), "did you mean image?"),
        (("simulate", "d.yaml", "--profile", "p.csvv", "--workload", "w.yaml"), "did you mean p.csv?"),
        (("report", "results/shp"), "did you mean results/shop?"),
        (("simulate", "w.yaml"), "it goes after --workload"),
        (("simulate", "s.yaml"), "it goes after --space"),
        (("simulate", "d.yaml", "--profile", "p.csv", "--workload", "d.yaml"), "has simulate, explain, deploy and export take one"),
        (("search", "--gpus", "4", "--profile", "p.csv", "--space", "w.yaml"), "it goes after --workload"),
        (("explain", "results/done"), "name the deployment in it: results/done/best.yaml"),
        (("report", "nowhere"), "look for it: ls results"),
        (("search", "--resume", "results/shp"), "did you mean results/shop?"),
        (("search", "--resume", "results/shop"), "look for it: ls results"),
        (("search", "--gpus", "4", "--model", "qwen2.5-vl-7b", "--on", "simulated"), "--profile mine.parquet    H100 SXM, here"),
    ],
)  # fmt: skip
def test_a_first_mistake_is_answered_with_its_mend(arguments, mend, has, inputs) -> None:  # type: ignore[no-untyped-def]
    (inputs / "results" / "shop").mkdir(parents=True)
    (inputs / "results" / "done").mkdir()
    shutil.copy(inputs / "d.yaml", inputs / "results" / "done" / "best.yaml")
    (inputs / "s.yaml").write_text("version: 1\ntopologies: [monolithic]\n")
    shutil.copy(shipped("profiles") / "h100-qwen2.5-vl-7b.parquet", inputs / "mine.parquet")
    said = has(*arguments)
    assert said.status in (2, 3), said.err
    assert mend in said.err.split("mend:")[1]
    assert "Errno" not in said.err


def test_a_server_that_is_not_there_is_status_3_with_a_mend(has, inputs) -> None:  # type: ignore[no-untyped-def]
    said = has("bench", "http://127.0.0.1:9", "--workload", "w.yaml")
    assert said.status == 3
    assert "mend:" in said.err


def test_whatever_the_runtime_needs_is_named_when_it_is_missing() -> None:
    """By `has doctor`, and by any command that finds it missing, with the extra that brings it."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    needed = {re.split("[<>=]", need)[0].lower() for need in project["optional-dependencies"]["runtime"]}
    brings = packages_distributions()
    assert {brings[module][0].lower().replace("_", "-") for module in EXTRAS["runtime"]} == needed
    for module in EXTRAS["runtime"]:
        missing = as_has_error(ModuleNotFoundError(f"No module named '{module}'", name=module))
        assert missing.mend == "pip install 'has-epd[runtime]'", module


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        (InputError("bad", where="f", field="x", value=1), 2, "f: x: bad"),
        (InfeasibleError("nothing meets it"), 1, "nothing meets it"),
        (MissingError("no GPU", mend="buy one"), 3, "mend: buy one"),
        (RunError("it broke"), 3, "it broke"),
        (KeyError("surprise"), 3, "a fault of HAS: KeyError: 'surprise'"),
        (RecursionError(), 3, "HAS_DEBUG=1"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 3, "pip install 'has-epd[runtime]'"),
        (
            ModuleNotFoundError("No module named 'cuda'", name="cuda.bindings"),
            3,
            "pip install 'has-epd[cuda]'",
        ),
        (OSError(28, "No space left on device"), 3, "cannot be written: No space left on device"),
        (OSError(28, "No space left on device", "x.parquet"), 3, "x.parquet: No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Interrupted("3 points are kept", "has more"), 130, "go on: has more"),
        (SystemExit(3), 3, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
@pytest.mark.parametrize("as_json", [False, True], ids=["words", "json"])
def test_each_kind_of_end(fault, status, words, as_json, has, inputs, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def fail(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(has_show, "read", fail)
    said = has("show", "d.yaml", *(["--json"] if as_json else []))
    assert said.status == status
    assert words in said.err
    if as_json and not isinstance(fault, SystemExit):
        assert json.loads(said.out)["error"]["status"] == status
    else:
        assert said.out == ""


has_show = has.cli.show


def test_a_reader_that_leaves_early_is_no_error(inputs: Path) -> None:
    command = f"{sys.executable} -m has.cli.main show p.csv --json | head -c 10"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=inputs, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_stray_prints_go_to_stderr_even_those_of_children(inputs: Path) -> None:
    code = (
        "import os, subprocess, sys; from has.cli import show; from has.cli.main import main; read = show.read\n"
        "def noisy(*a, **k):\n"
        "    print('a print'); os.write(1, b'a write\\n'); subprocess.run(['echo', 'a child']); return read(*a, **k)\n"
        "show.read = noisy; sys.argv = ['has', 'show', 'p.csv', '--json']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=inputs, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["metadata"]["device"] == "test"
    for stray in ("a print", "a write", "a child"):
        assert stray in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_status_130(number: signal.Signals, inputs: Path) -> None:
    code = (
        "import os, signal, sys, threading; from has.cli import show; from has.cli.main import main\n"
        # of a job in the background the shell has SIGINT ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def wait(*_, **__):\n"
        "    print('waiting', file=sys.stderr, flush=True); threading.Event().wait()\n"
        "show.read = wait; sys.argv = ['has', 'show', 'p.csv']; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=inputs, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stderr is not None
        assert child.stderr.readline() == "waiting\n"
        child.send_signal(number)
        rest = child.stderr.read()
    assert child.returncode == 130
    assert rest == "interrupted\n"


def test_a_terminal_gets_bold_type_and_a_pipe_plain_text(inputs: Path) -> None:
    command = [sys.executable, "-m", "has.cli.main", "show", "p.csv"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, cwd=inputs, stdout=theirs, stderr=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"}
    ):
        os.close(theirs)
        on_terminal = b""
        with contextlib.suppress(OSError):  # Linux says EIO when the other end is closed
            while piece := os.read(ours, 4096):
                on_terminal += piece
        os.close(ours)
    piped = subprocess.run(command, cwd=inputs, capture_output=True, check=True)
    assert b"\x1b[1m" in on_terminal
    assert b"\x1b" not in piped.stdout + piped.stderr


@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-", "0<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_error(closed: str, inputs: Path) -> None:
    for arguments, status in (("show d.yaml --json", 0), ("show nowhere", 2)):
        command = f"{sys.executable} -m has.cli.main {arguments} {closed}"
        done = subprocess.run(
            ["bash", "-c", command], cwd=inputs, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        assert "nobody foresaw" not in done.stderr + done.stdout
        if status == 0 and ">&-" not in closed.split():
            assert done.stdout


@pytest.mark.parametrize("arguments", ["show p.csv --json", "--help"])
def test_a_full_stdout_is_status_3_and_one_message(arguments: str, inputs: Path) -> None:
    command = f"{sys.executable} -m has.cli.main {arguments} > /dev/full"
    done = subprocess.run(["bash", "-c", command], cwd=inputs, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("error: ") == 1
    assert "cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_sampler_that_is_none_is_refused_before_anything_is_measured(has, inputs, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def measured(*_: object, **__: object) -> None:
        raise AssertionError("a profile was measured")

    monkeypatch.setattr("has.cli.search_plan._profile", measured)
    said = has("search", "--gpus", "3", "--sampler", "zz")
    assert said.status == 2
    assert "no such sampler" in said.err


@pytest.mark.parametrize("run", ["x" * 5000, "a/" * 3000], ids=["name", "path"])
def test_a_run_that_no_folder_can_be_is_none(run: str, has, inputs) -> None:  # type: ignore[no-untyped-def]
    with (inputs / "d.yaml").open("a") as file:
        file.write(f"evidence: {{run: '{run}'}}\n")
    said = has("simulate", "d.yaml", "--profile", "p.csv", "--workload", "w.yaml", "--requests", "50")
    assert said.status == 0, said.err

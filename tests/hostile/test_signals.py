"""A command told to end, at any instant, ends: status 130, what is finished kept, nothing left behind."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from has.files.profile import save_profile
from has.files.workload import save_workload
from tests.hostile.test_library import PROFILE, WORKLOAD

HAS = [sys.executable, "-m", "has"]
DEPLOYMENT = """version: 1
model: m
topology: disaggregated
gpus: 3
alloc: {encode: 1, prefill: 1, decode: 1}
encode_batch: 2
prefill_offload: 0.5
slo: {ttft_ms: 1000, tpot_ms: 50}
"""
FILES = ("--profile", "p.parquet", "--workload", "w.yaml")
COMMANDS = {
    "simulate": ("simulate", "d.yaml", *FILES, "--requests", "400000", "--records", "out.csv"),
    "explain": ("explain", "d.yaml", *FILES),
    "search": ("search", "--gpus", "3", *FILES, "--run", "run", "--out", "out.yaml"),
    "profile": ("profile", "--gpu", "h100", "--model", "qwen2.5-vl-7b", "--out", "out.parquet"),
    "convert": ("trace", "convert", "t.csv", "--format", "burstgpt", "--out", "out.parquet"),
    "show": ("show", "p.parquet", "--html", "out.html"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_profile(PROFILE, tmp_path / "p.parquet")
    save_workload(WORKLOAD, tmp_path / "w.yaml")
    (tmp_path / "d.yaml").write_text(DEPLOYMENT)
    rows = "".join(f"{n},gpt,{100 + n % 7},{5 + n % 11},x,API log\n" for n in range(200_000))
    (tmp_path / "t.csv").write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + rows.replace(",x,", ",0,")
    )
    return tmp_path


def takes_signals(pid: int) -> bool:
    """Whether the process has a handler of its own for SIGTERM: Python has none."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def interrupted(folder: Path, command: str, number: signal.Signals, after_s: float) -> None:
    """Run it, send the signal, and look at how it ended and what is there."""
    given = {path.name for path in folder.iterdir()}
    with subprocess.Popen(
        [*HAS, *COMMANDS[command]],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Started in the background, a process may have been handed SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as child:
        while not takes_signals(child.pid) and child.poll() is None:
            time.sleep(0.002)  # until then Python itself would answer them
        time.sleep(after_s)
        ours = psutil.Process(child.pid).children(recursive=True) if child.poll() is None else []
        child.send_signal(number)
        out, err = child.communicate(timeout=60)
    assert not [process for process in ours if process.is_running()]
    assert "Traceback" not in err + out
    assert "nobody foresaw" not in err
    assert child.returncode in (0, 130, 1), err  # 0 and 1: it had its answer
    new = {path.name for path in folder.rglob("*")} - given
    assert not [name for name in new if name.endswith(".tmp")], new
    if child.returncode == 130:
        assert err.splitlines()[-1].startswith(("interrupted", "  go on: "))
    if (folder / "run" / "trials.jsonl").exists():
        for line in (folder / "run" / "trials.jsonl").read_text().splitlines():
            json.loads(line)


def test_a_search_told_to_end_in_its_trials(folder: Path) -> None:
    with subprocess.Popen(
        [*HAS, *COMMANDS["search"]], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stderr is not None
        said = []
        for line in child.stderr:
            said.append(line)
            if " trial 1 " in line:
                child.send_signal(signal.SIGTERM)
                break
        said += child.stderr.readlines()
    assert child.returncode == 130, said
    assert said[-1] == "  go on: has search --resume run --out out.yaml\n"
    assert not (folder / "out.yaml").exists()
    assert len((folder / "run" / "trials.jsonl").read_text().splitlines()) >= 2


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", COMMANDS)
def test_any_command_at_any_instant(command: str, number: signal.Signals, folder: Path) -> None:
    chance = random.Random(f"{command} {number}")
    for _ in range(4):
        interrupted(folder, command, number, chance.uniform(0.05, 4.0))

"""optuna-dashboard opens the storage of a run: the real program, asked over its own HTTP interface."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from has.report.run import load_run

PATIENCE_S = 60.0
STATES = {"complete": "Complete", "stopped": "Pruned", "failed": "Fail"}


@pytest.fixture(scope="module")
def dashboard(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where it answers, on a copy of the run's storage. Skips aloud where it is not installed."""
    beside = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    command = shutil.which("optuna-dashboard", path=beside)
    if command is None:
        pytest.skip("no optuna-dashboard here: pip install optuna-dashboard")
    storage = tmp_path_factory.mktemp("dashboard") / "optuna.log"
    shutil.copy(small_run / "optuna.log", storage)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [command, str(storage), "--host", "127.0.0.1", "--port", str(port), "--server", "wsgiref"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE_S
        while not _answers(url):
            assert server.poll() is None, "it ended"
            assert time.monotonic() < end, "it never answered"
            time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        server.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(url + "/api/meta", timeout=PATIENCE_S):
            return True
    except (URLError, ConnectionError):
        return False


def _get(url: str) -> Any:
    with urlopen(url, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def test_it_lists_the_study_and_every_trial(dashboard: str, small_run: Path) -> None:
    (study,) = _get(dashboard + "/api/studies")["study_summaries"]
    assert study["study_name"] == small_run.name
    assert study["directions"] == ["maximize"]
    shown = _get(f"{dashboard}/api/studies/{study['study_id']}?after=0")["trials"]
    trials = load_run(small_run).trials
    assert len(shown) == len(trials) > 0
    for seen, trial in zip(shown, trials, strict=True):
        assert seen["state"] == STATES[trial.state.value]
        if seen["state"] == "Complete":
            assert float(seen["values"][0]) == pytest.approx(trial.objective)
        told = {item["key"]: item["value"] for item in seen["user_attrs"]}
        assert trial.deployment.label in told["deployment"]
        assert trial.kind in told["kind"]
        params = {item["name"]: item["param_external_value"] for item in seen["params"]}
        assert params["topology"].strip("'\"") == trial.deployment.topology

"""SIGKILL at any instant: the search that goes on ends as one that was never killed."""

from __future__ import annotations

import json
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from has.core.profile import Profile
from has.core.space import SearchSpace
from has.core.workload import Workload
from has.errors import InputError
from has.search.journal import MANIFEST, RunFolder
from has.search.run import resume_inputs, search

SPACE = SearchSpace(version=1, encode_batch=[1, 4], prefill_offload={"step": 0.5})
TIMES_AND_PLACES = ("run", "date", "reproduce")


def run(profile: Profile, workload: Workload, folder: Path) -> Any:
    """A small search, begun in `folder` or gone on with there, as a person would."""
    if (folder / MANIFEST).exists():
        return search(**resume_inputs(folder))
    return search(3, profile, workload, space=SPACE, rate=6.0, requests=150, trials=7, seed=1, run_dir=folder)


def essence(outcome: Any) -> Any:
    """Everything but times and places, of the outcome and of the journal on disk."""
    said = outcome.as_json()
    folder = Path(said.pop("run"))
    for key in TIMES_AND_PLACES:
        said["best"]["evidence"].pop(key, None)
    journals = {}
    for name in ("trials", "confirmations", "baselines"):
        path = folder / f"{name}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for line in lines:
            del line["started_at"], line["duration_s"]
        journals[name] = lines
    tables = [
        (folder / name).read_text() for name in ("pruned.csv", "pareto.csv") if (folder / name).exists()
    ]
    return json.loads(json.dumps(said, default=str)), journals, tables


def killed_after(seconds: float, work: Callable[[], object]) -> None:
    """`work` in a process of its own that is killed after so long, wherever it is then."""
    begin = time.monotonic()
    _killed(work, lambda: time.monotonic() - begin >= seconds)


def killed_at(lines: int, folder: Path, work: Callable[[], object]) -> None:
    """The same, as soon as its journals hold so many runs."""
    _killed(work, lambda: sum(p.read_bytes().count(b"\n") for p in folder.glob("*.jsonl")) >= lines)


def _killed(work: Callable[[], object], due: Callable[[], bool]) -> None:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    while not due():
        if os.waitpid(child, os.WNOHANG)[0]:
            return  # it was quicker
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def finished(folder: Path) -> bytes:
    """The trials that the disk holds whole."""
    path = folder / "trials.jsonl"
    raw = path.read_bytes() if path.exists() else b""
    return raw[: raw.rfind(b"\n") + 1]


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.long)])
def test_a_search_killed_at_random_instants_ends_as_if_never_killed(
    profile: Profile, workload: Workload, tmp_path: Path, kills: int
) -> None:
    run(profile, workload, tmp_path / "warm")  # loads the compiled kernel, which children then share
    begin = time.monotonic()
    whole = essence(run(profile, workload, tmp_path / "whole"))
    lasts = time.monotonic() - begin
    runs = sum(map(len, whole[1].values()))
    draws = np.random.default_rng(kills)
    for number in range(kills):
        folder = tmp_path / f"run-{number}"
        share = (number + draws.random()) / kills
        if number % 2:
            killed_at(max(1, round(share * runs)), folder, lambda f=folder: run(profile, workload, f))
        else:
            killed_after(share * lasts, lambda f=folder: run(profile, workload, f))
        kept = finished(folder)
        assert essence(run(profile, workload, folder)) == whole, f"killed at {share:.0%}"
        assert finished(folder).startswith(kept)  # nothing finished was lost, or run again
        assert not list(folder.glob("*.tmp*"))


def test_a_search_killed_again_and_again_ends_as_if_never_killed(
    profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    begin = time.monotonic()
    whole = essence(run(profile, workload, tmp_path / "whole"))
    lasts = time.monotonic() - begin
    folder, kept = tmp_path / "run", b""
    for number in range(3):
        killed_after(lasts * (0.4 + 0.2 * number), lambda: run(profile, workload, folder))
        assert finished(folder).startswith(kept)
        kept = finished(folder)
    assert essence(run(profile, workload, folder)) == whole


def test_what_a_kill_leaves_half_done_is_cleared_away(
    profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    """A torn line in each journal, a temporary file, and optuna's lock on its log, which outlives a kill."""
    folder = tmp_path / "run"
    whole = essence(run(profile, workload, folder))
    for name in ("trials", "confirmations"):
        path = folder / f"{name}.jsonl"
        raw = path.read_bytes()
        path.write_bytes(raw[: raw.rfind(b"\n", 0, -1) + 30])
    (folder / "best.yaml").unlink()
    (folder / "optuna.log.lock").symlink_to(folder / "optuna.log")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # optuna warns when it has waited for a lock that nobody holds
        assert essence(run(profile, workload, folder)) == whole
    assert not (folder / "optuna.log.lock").is_symlink()


def test_one_search_at_a_time_works_in_a_folder(profile: Profile, workload: Workload, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(profile, workload, folder)
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        RunFolder(folder)._take("run")
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    with pytest.raises(InputError, match="another search is at work") as refused:
        run(profile, workload, folder)
    assert refused.value.field == "resume"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    run(profile, workload, folder)  # the kernel has let go of the lock
    run(profile, workload, folder)  # and so does a search that has ended

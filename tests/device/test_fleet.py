"""Worker processes for measuring: they answer, their faults are told, and nothing outlives the maker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import psutil
import pytest

from has.device import fleet
from has.device.fleet import Fleet
from has.device.patience import Patience
from has.errors import RunError

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def toys(size: int, patience: Patience | None = None) -> Fleet:
    return Fleet("bench_toy:open_toy", "toy", "bench_toy:worker", size, patience=patience)


def until_gone(pids: list[int]) -> None:
    give_up = time.monotonic() + 20
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
        assert time.monotonic() < give_up, f"still there: {pids}"
        time.sleep(0.02)


def test_workers_answer_and_end_with_the_fleet():
    with toys(3) as fleet:
        for index in range(3):
            fleet.send(index, {"say": f"hello {index}"})
        replies = {}
        while len(replies) < 3:
            replies.update(fleet.replies())
    assert [replies[i]["said"] for i in range(3)] == ["hello 0", "hello 1", "hello 2"]
    assert len({reply["pid"] for reply in replies.values()}) == 3
    assert len({reply["loader"] for reply in replies.values()}) == 1
    until_gone([reply["pid"] for reply in replies.values()])
    assert not psutil.Process().children(recursive=True)


def test_a_failure_in_a_worker_is_raised_here():
    with toys(1) as fleet, pytest.raises(RunError, match="as asked"):
        fleet.ask(0, {"fail": True})


def test_a_dead_worker_is_an_error():
    with toys(1) as fleet, pytest.raises(RunError, match="ended unexpectedly"):
        fleet.ask(0, {"die": True})


def test_answers_that_do_not_come_are_not_waited_for_for_ever(monkeypatch):
    """Twenty seconds pass between two looks; what is heard from before the end is an answer."""
    monkeypatch.setattr(fleet, "WAKE_S", 0.01)
    patience = Patience("measuring", 10.0, clock=count(0.0, 20.0).__next__)
    with toys(2, patience) as made:
        made.send(0, {"hang": True})
        with pytest.raises(RunError, match=r"too \w+ to measure on: measuring has taken 120 s"):
            list(made.replies())
        pid = made.pid
    until_gone([pid])


def test_what_cannot_load_says_why():
    with (
        Fleet("bench_toy:nothing_such", "toy", "bench_toy:worker", 1) as fleet,
        pytest.raises(RunError, match="nothing_such"),
    ):
        fleet.ask(0, {})


def test_nothing_outlives_a_maker_that_is_killed():
    script = (
        "import sys\n"
        "from has.device.fleet import Fleet\n"
        "f = Fleet('bench_toy:open_toy', 'toy', 'bench_toy:worker', 2)\n"
        "r = [f.ask(i, {}) for i in range(2)]\n"
        "print(r[0]['loader'], *(x['pid'] for x in r), flush=True)\n"
        "sys.stdin.read()\n"
    )
    maker = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pids = [int(pid) for pid in maker.stdout.readline().split()]
    assert len(pids) == 3
    os.kill(maker.pid, signal.SIGKILL)
    maker.wait()
    maker.stdin.close()
    maker.stdout.close()
    until_gone(pids)

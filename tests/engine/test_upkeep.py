"""Instances that are lost while a deployment serves are started anew, each once at a time, and not for ever."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from has.engine.vllm import upkeep as upkeep_module
from has.engine.vllm.fleet import Fleet
from has.engine.vllm.launch import Launcher
from has.engine.vllm.upkeep import PAUSES_S, SERVED_S, SETTLED_S, upkeep
from has.errors import RunError
from has.gateway.port import Lost

URL = "http://l0"
LOST = Lost("encode", 0, f"ConnectError at {URL}")


class OneFleet:
    """One instance, which is not there again before `ready` is set, nor where a start of it fails.

    ends      what the next starts come to: an error, or None where it comes up
    now_s     its time, which pauses pass
    """

    url = URL
    launcher = property(lambda self: self)
    closed = False

    def __init__(self, ends: list[Exception | None] | None = None) -> None:
        self.begun, self.ready = threading.Semaphore(0), threading.Event()
        self.ready.set()
        self.up = False
        self.ends = ends or []
        self.revivals = self.noted = 0
        self.now_s = 0.0
        self.pauses: list[float] = []
        self.said: list[str] = []
        self.hear = upkeep(
            cast(Fleet, self), self.said.append, clock=lambda: self.now_s, wait=lambda s: self.wait(s)
        )

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now_s += seconds
        return False

    def lose(self) -> None:
        """And wait until all that is done about it is done."""
        self.up = False
        self.hear(LOST, self.now_s)
        for thread in revivals():
            thread.join(20)

    def engine_at(self, url: str) -> Any:
        return self if url == URL else None

    def usable(self) -> bool:
        return self.up

    def note_ready(self, _: Any) -> None:
        self.noted += 1

    def why(self) -> str:
        return "killed"

    def where_log(self, _: Any) -> str:
        return "its log is here"

    def revive(self, _: Any) -> None:
        self.revivals += 1
        self.begun.release()
        assert self.ready.wait(20)
        if self.ends and (error := self.ends.pop(0)) is not None:
            raise error
        self.up = True


def revivals() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.endswith("(revive)")]


def test_an_instance_that_two_workers_share_is_started_anew_once() -> None:
    fleet = OneFleet()
    fleet.ready.clear()
    for worker in (0, 1):
        fleet.hear(Lost("encode", worker, f"ConnectError at {URL}"), 0.0)
    assert fleet.begun.acquire(timeout=20)
    (revival,) = revivals()
    fleet.ready.set()
    revival.join(20)
    assert (fleet.revivals, fleet.said) == (
        1,
        ["encode 0 is lost: killed; its log is here; starting it anew"],
    )
    fleet.lose()
    assert fleet.revivals == 2, "and again when it is lost again"


def test_one_start_that_fails_is_not_the_last() -> None:
    """A loss is said once: whoever is not started again now never is."""
    fleet = OneFleet(
        [RunError("l0 ended while it started: out of memory", mend="its log is there"), OSError("no fork")]
    )
    fleet.lose()
    assert fleet.up
    assert fleet.pauses == [*PAUSES_S, SETTLED_S], "growing"
    assert fleet.said == [
        "encode 0 is lost: killed; its log is here; starting it anew",
        "encode 0 does not come back: l0 ended while it started: out of memory; its log is there;"
        " starting it anew in 15 s",
        "encode 0 does not come back: no fork; starting it anew in 120 s",
    ]


def test_what_never_comes_up_is_given_up() -> None:
    fleet = OneFleet([RunError("out of memory")] * 9)
    fleet.lose()
    assert fleet.revivals == 3
    assert fleet.said[-1] == (
        "encode 0 does not come back: out of memory; it was started anew 3 times, and is given up"
    )


@pytest.mark.parametrize(("served_s", "started"), [(SERVED_S - SETTLED_S, 8), (1.0, 3)])
def test_starts_count_from_zero_once_it_has_served(served_s, started) -> None:
    fleet = OneFleet()
    for _ in range(8):
        fleet.lose()
        fleet.now_s += served_s
    assert fleet.revivals == started
    assert fleet.said[-1].endswith("given up") == (started == 3)


def test_one_that_dies_before_the_gateway_saw_it_serve_is_started_again() -> None:
    """Nobody says of it that it is lost, as to the gateway it was never back."""
    fleet = OneFleet()

    def wait(seconds: float) -> bool:
        if seconds == SETTLED_S and fleet.revivals == 1:
            fleet.up = False
        return False

    fleet.wait = wait  # type: ignore[method-assign]
    fleet.lose()
    assert (fleet.up, fleet.revivals) == (True, 2)
    assert fleet.said[1] == "encode 0 is lost: killed; its log is here; starting it anew in 15 s"


def test_one_that_came_up_late_is_left_alone() -> None:
    """It was slow to start, and serves by the time that it would be started again: from then on it counts as up."""
    fleet = OneFleet([RunError("l0 not ready after 900 s")])

    def wait(seconds: float) -> bool:
        fleet.up = seconds == PAUSES_S[1]
        return False

    fleet.wait = wait  # type: ignore[method-assign]
    fleet.lose()
    assert (fleet.up, fleet.revivals, fleet.noted) == (True, 1, 1)
    del fleet.wait
    fleet.now_s += SERVED_S
    fleet.ends = [RunError("out of memory")] * 9
    fleet.lose()
    assert fleet.revivals == 1 + len(PAUSES_S)


def test_a_pause_ends_when_everything_is_being_ended(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(upkeep_module, "PAUSES_S", (0.0, 600.0, 600.0))
    launcher = Launcher(tmp_path)
    monkeypatch.setattr(OneFleet, "launcher", launcher)
    monkeypatch.setattr(launcher, "where_log", lambda _: "its log is here")
    fleet = OneFleet([RunError("out of memory")] * 9)
    paused = threading.Event()
    hear = upkeep(cast(Fleet, fleet), lambda line: paused.set() if "in 600 s" in line else None)
    hear(LOST, 0.0)
    (revival,) = revivals()
    assert paused.wait(20)
    launcher.close()
    revival.join(20)
    assert not revival.is_alive()
    assert fleet.revivals == 1

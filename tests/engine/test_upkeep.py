"""Instances that are lost while a deployment serves are started anew, each once at a time."""

from __future__ import annotations

import threading
from typing import Any, cast

from has.engine.vllm.fleet import Fleet
from has.engine.vllm.upkeep import upkeep
from has.gateway.port import Lost

URL = "http://l0"


class SlowFleet:
    """One instance, which is not there again before `ready` is set."""

    url = URL
    launcher = property(lambda self: self)

    def __init__(self) -> None:
        self.begun, self.ready = threading.Semaphore(0), threading.Event()
        self.revivals = 0

    def engine_at(self, url: str) -> Any:
        return self if url == URL else None

    def usable(self) -> bool:
        return False

    def why(self) -> str:
        return "killed"

    def where_log(self, _: Any) -> str:
        return "its log is here"

    def revive(self, _: Any) -> None:
        self.revivals += 1
        self.begun.release()
        self.ready.wait(20)


def test_an_instance_that_two_workers_share_is_started_anew_once() -> None:
    fleet = SlowFleet()
    said: list[str] = []
    hear = upkeep(cast(Fleet, fleet), said.append)
    for worker in (0, 1):
        hear(Lost("encode", worker, f"ConnectError at {URL}"), 0.0)
    assert fleet.begun.acquire(timeout=20)
    (revival,) = [thread for thread in threading.enumerate() if thread.name.endswith("(revive)")]
    fleet.ready.set()
    revival.join(20)
    assert (fleet.revivals, said) == (1, ["encode 0 is lost: killed; its log is here; starting it anew"])
    hear(Lost("encode", 0, f"ConnectError at {URL}"), 1.0)
    assert fleet.begun.acquire(timeout=20), "and again when it is lost again"

"""What a command has started, and what is left of it."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path

from has.engine.vllm.reaper import alive

SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Child:
    """A child process that leads a group of its own; `port` of those that serve."""

    group: int
    words: tuple[str, ...]

    @property
    def port(self) -> int | None:
        return int(self.words[self.words.index("--port") + 1]) if "--port" in self.words else None


def children(parent: int) -> list[Child]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(Child(int(entry.name), tuple((entry / "cmdline").read_text().split("\0"))))
        except OSError:
            continue
    return found


def left(groups: list[int], within_s: float = 10.0) -> list[int]:
    """Those of the process groups that are still there after a while."""
    until = time.monotonic() + within_s
    while any(map(alive, groups)) and time.monotonic() < until:
        time.sleep(0.05)
    return [group for group in groups if alive(group)]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0

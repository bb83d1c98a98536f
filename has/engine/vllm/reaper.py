"""Ends engine processes when whoever started them is gone, however that happened.

Run as a process of its own: reads process group ids from stdin, one a line; at the end of input it
ends the groups that are left. A leading `-` takes a group off the list; a path is a folder to be
removed then.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

GRACE_S = 10.0
SHARED = Path("/dev/shm")


def members(group: int) -> Iterator[tuple[Path, str]]:
    """/proc folder and state of the group's processes."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, _, member_of = entry.read_text().rpartition(")")[2].split()[:3]
            if int(member_of) == group:
                yield entry.parent, state


def alive(group: int) -> bool:
    """Whether a process of the group still runs; what is dead and only waits to be counted does not."""
    return any(state not in "ZX" for _, state in members(group))


def segments(group: int) -> set[Path]:
    """Shared-memory files that processes of the group have mapped.

    An engine's queues between its processes are such files. Python's resource tracker unlinks them when
    their owner is killed, but it is of the same group and dies by the same signal.
    """
    found: set[Path] = set()
    for process, _ in members(group):
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text().splitlines():
                path = Path("/" + line.partition("/")[2])
                if path.parent == SHARED:
                    found.add(path)
    return found


def end(groups: set[int], grace_s: float = GRACE_S, poll: Callable[[], object] = lambda: None) -> None:
    """SIGTERM to all, and SIGKILL to what is left after `grace_s`. `poll` is called while it waits.

    The shared memory that only they had is removed with them.
    """
    theirs = set().union(*map(segments, groups))
    for group in groups:
        _signal(group, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while time.monotonic() < until and any(map(alive, groups)):
        poll()
        time.sleep(0.1)
    for group in groups:
        if alive(group):
            _signal(group, signal.SIGKILL)
    for path in theirs:
        path.unlink(missing_ok=True)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    groups: set[int] = set()
    folders: list[str] = []
    for line in sys.stdin:
        if line.startswith("/"):
            folders.append(line.rstrip("\n"))
            continue
        number = int(line)
        if number < 0:
            groups.discard(-number)
        else:
            groups.add(number)
    end(groups)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

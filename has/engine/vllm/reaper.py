"""Ends engine processes when whoever started them is gone, however that happened.

Run as a process of its own: reads process group ids from stdin, one a line; at the end of input it
ends the groups that are left. A leading `-` takes a group off the list; a path is a folder, or a file
of shared memory, to be removed then.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
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
    return set().union(*(_mapped(process) for process, _ in members(group)))


def _mapped(process: Path) -> set[Path]:
    """Files of shared memory that the process of this /proc folder has mapped."""
    with contextlib.suppress(OSError):
        lines = (process / "maps").read_text(errors="replace").splitlines()  # names need not be UTF-8
        paths = {Path("/" + line.partition("/")[2]) for line in lines if str(SHARED) in line}
        return {path for path in paths if path.parent == SHARED}
    return set()


def end(
    groups: set[int],
    grace_s: float = GRACE_S,
    poll: Callable[[], object] = lambda: None,
    known: Iterable[Path] = (),
) -> None:
    """SIGTERM to all, and SIGKILL to what is left after `grace_s`. `poll` is called while it waits.

    The shared memory that only they had is removed with them, and so is what is `known` to have been
    theirs: a group that somebody else killed has no maps any more to find it in.
    """
    theirs = set(known).union(*map(segments, groups))
    for group in groups:
        _signal(group, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while time.monotonic() < until and any(map(alive, groups)):
        poll()
        time.sleep(0.1)
    for group in groups:
        if alive(group):
            _signal(group, signal.SIGKILL)
    if left := {path for path in theirs if path.exists()}:
        for path in left - _mapped_beside(groups):
            path.unlink(missing_ok=True)


def _mapped_beside(groups: set[int]) -> set[Path]:
    """Shared memory of every process that is of none of the groups."""
    ours = {process for group in groups for process, _ in members(group)}
    others = {entry.parent for entry in Path("/proc").glob("[0-9]*/stat")} - ours
    return set().union(*map(_mapped, others))


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    groups: set[int] = set()
    folders: list[Path] = []
    shared: set[Path] = set()
    for line in sys.stdin:
        if line.startswith("/"):
            path = Path(line.rstrip("\n"))
            if path.parent == SHARED and not path.is_dir():  # embeddings' folder may lie there too
                shared.add(path)
            else:
                folders.append(path)
            continue
        number = int(line)
        if number < 0:
            groups.discard(-number)
        else:
            groups.add(number)
    end(groups, known=shared)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

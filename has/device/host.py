"""The host under the virtual GPUs: how much of it they may use, and processes that behave."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
from pathlib import Path

from has.errors import InputError, RunError

MAX_VIRTUAL_GPUS = 8
QUIET_SHARE, BUSY_SHARE, LARGEST_SHARE = 0.8, 0.6, 0.9
LARGEST_SLICE = 0.5
"""Cores of one virtual GPU at most: a lane computes on one thread, and must end well before it is due."""

_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def busy_cores(over_s: float = 0.5) -> float:
    """Cores that all processes of the machine together use now (0 where the system does not say)."""
    before = _jiffies()
    if before is None:
        return 0.0
    time.sleep(over_s)
    after = _jiffies()
    if after is None:
        return 0.0
    total, idle = after[0] - before[0], after[1] - before[1]
    return (os.cpu_count() or 1) * (1.0 - idle / total) if total > 0 else 0.0


class OthersMeter:
    """Cores that other processes use, from its making on."""

    def __init__(self) -> None:
        self._before = _jiffies()

    def cores(self, own_cpu_s: float) -> float:
        """On average so far, given the CPU seconds that we used ourselves; 0 where the system does not say."""
        after = _jiffies()
        if self._before is None or after is None or after[0] <= self._before[0]:
            return 0.0
        total, idle = after[0] - self._before[0], after[1] - self._before[1]
        per_second = os.sysconf("SC_CLK_TCK")
        elapsed_s = total / per_second / (os.cpu_count() or 1)
        return max(0.0, ((total - idle) / per_second - own_cpu_s) / elapsed_s)


def family_cpu_s(pid: int) -> float:
    """CPU seconds that process `pid` and its children have used so far (0 where the system does not say)."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if pid in (int(stat.parent.name), int(fields[1])):
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _jiffies() -> tuple[int, int] | None:
    try:
        fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(fields), fields[3] + fields[4]


def total_share(asked: float | None = None) -> float:
    """Share of the machine's cores that eight virtual GPUs use together.

    `asked`, else HAS_CPU_SHARE, else 0.8 (0.6 where other processes use more than a fifth of the cores).
    Above 0.9 nothing is left for gateway and load, and paced stages miss their ends: refused.
    """
    value: object = asked if asked is not None else os.environ.get("HAS_CPU_SHARE")
    if value is None:
        return BUSY_SHARE if busy_cores() > 0.2 * cores() else QUIET_SHARE
    try:
        share = float(value)  # type: ignore[arg-type]  # anything else is what the except is for
    except (TypeError, ValueError):
        share = -1.0
    if not 0.05 <= share <= LARGEST_SHARE:
        raise InputError(
            "not a share of the machine's cores",
            where="argument" if asked is not None else "environment",
            field="total_share" if asked is not None else "HAS_CPU_SHARE",
            value=value,
            allowed=f"0.05 to {LARGEST_SHARE}",
            mend=f"HAS_CPU_SHARE={QUIET_SHARE}",
        )
    return share


def slice_cores(share: float) -> float:
    """Cores of one virtual GPU: an eighth of the total, however many are used.

    So a profile measured with eight of them holds for a search on four, and one on four for eight.
    """
    return min(LARGEST_SLICE, share * cores() / MAX_VIRTUAL_GPUS)


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return os.uname().machine


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def precise_sleep() -> None:
    """Let this thread's sleeps end within microseconds (Linux timer slack 1 µs; 50 by default)."""
    _prctl(_PR_SET_TIMERSLACK, 1000)


def die_with_parent(parent: int) -> None:
    """Kill this process when its parent ends, however it ends. `parent`: the pid it had at the fork."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def one_thread() -> None:
    """Let torch, where it is loaded, compute on the calling thread alone."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def settle() -> None:
    """Ready a worker process for paced work: one compute thread, no collector pauses, precise sleeps."""
    one_thread()
    gc.collect()
    gc.freeze()
    gc.disable()
    precise_sleep()


def cache_folder() -> Path:
    """Where HAS keeps what it measured about this machine."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "has"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot make the cache folder {folder}: {error.strerror}",
            mend="set XDG_CACHE_HOME to a folder you own",
        ) from None
    return folder

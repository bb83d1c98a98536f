"""Who used the CPU during a trial: the trial's own processes, or others (Linux; elsewhere nobody knows)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Busy:
    """CPU seconds so far: of the whole machine, and of some processes; and when this was."""

    machine_s: float
    own_s: dict[int, float]
    at_s: float


def busy(pids: Iterable[int]) -> Busy | None:
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields)
    own = {pid: seconds for pid in pids if (seconds := _cpu_s(pid)) is not None}
    return Busy((user + nice + system + irq + softirq + steal) * TICK_S, own, time.monotonic())


def _cpu_s(pid: int) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) * TICK_S


def cores_used(before: Busy | None, after: Busy | None) -> dict[str, float] | None:
    """Mean cores used between two looks, by the trial (`own`) and by everything else (`others`)."""
    if before is None or after is None or after.at_s <= before.at_s:
        return None
    seconds = after.at_s - before.at_s
    own = sum(cpu_s - before.own_s.get(pid, 0.0) for pid, cpu_s in after.own_s.items())
    machine = after.machine_s - before.machine_s
    return {"own": own / seconds, "others": max(0.0, machine - own) / seconds}

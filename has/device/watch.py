"""A measurement's view of its GPU: which of NVML's devices it is, which processes are its own, whether the clock is up.

Not run on a GPU yet: held to a recorded fake.

NVML in a container names processes by the host's pids (NVIDIA/nvidia-docker#1483), so our own are none that we know. But what
a GPU is used by once we have opened it, and was not just before, is us; what was there before, or joins later, is another's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from has.device import nvml
from has.device.nvml import CLOCK_DRIFT_BOUND, Snapshot
from has.errors import MissingError

T = TypeVar("T")


class Watch:
    """Of the device that CUDA knows by the UUID `device`. blind: why NVML says nothing of it (empty: it does).
    part: the MIG slice that the device is. own: pids of the measurement, as NVML has them; one set for all watches, as a
    process that has opened a GPU for one is there before the next begins."""

    own: ClassVar[set[int]] = set()

    def __init__(self, device: str, load: Callable[[], Any] | None = None) -> None:
        self.blind, self.part = "", None
        self.own.add(os.getpid())
        try:
            self._nvml = (load or nvml.load_nvml)()
        except MissingError as error:
            self.blind = error.message
            return
        found = nvml.find(self._nvml, device)
        if found is None:
            self.blind = "NVML does not know this device"
            return
        self._uuid, self.part = found

    def snapshot(self) -> Snapshot | None:
        """The GPU as it is now; None where NVML says nothing of it."""
        return None if self.blind else nvml.snapshot(self._nvml, self._uuid, self.part)

    def opening(self, make: Callable[[], T], pid: Callable[[T], int] = lambda _: os.getpid()) -> T:
        """What `make` makes, which opens the GPU; whose process that is (`pid`) is noted as the measurement's own."""
        before = self._processes()
        made = make()
        came = self._processes() - before
        known = pid(made)
        self.own.update({known} if known in came else {known, *came})
        return made

    def _processes(self) -> set[int]:
        seen = self.snapshot()
        return set(seen.processes) if seen else set()


class Waker:
    """Sees to it that a measurement begins at the clock of a GPU that works: one that rests is clocked down, and the rise
    from there is neither drift nor a time to measure in."""

    def __init__(self) -> None:
        self._busy_mhz: int | None = None
        self._woken = False

    def before(self, look: Callable[[], Snapshot | None], work: Callable[[], object]) -> Snapshot | None:
        """What `look` sees before a measurement, after `work` where the GPU rested."""
        seen = look() if self._woken else None
        if not self._woken or self._rests(seen):
            work()
            self._woken = True
            seen = look()
        return seen

    def after(self, seen: Snapshot | None) -> None:
        """Note what was seen right after one."""
        self._busy_mhz = seen.sm_mhz if seen else None

    def _rests(self, seen: Snapshot | None) -> bool:
        if seen is None or not seen.sm_mhz or not self._busy_mhz:
            return False
        return seen.sm_mhz < (1 - CLOCK_DRIFT_BOUND) * self._busy_mhz

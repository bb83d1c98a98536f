"""Waiting for a measurement on a machine that others use: told after a while, given up after a longer one."""

from __future__ import annotations

import time
from collections.abc import Callable

from has.device import host
from has.device.nominal import OTHERS_BOUND
from has.errors import RunError

LOOK_S = 5.0
"""How often it is looked at who computes."""
SAY_S = 15.0
"""After others have used more for so long without a break it is said, and again when the time that has passed has doubled."""
STOPPED_S = 30.0
"""Nobody who waits goes so long without a look: the command was stopped itself (Ctrl-Z), and its workers with it."""
GRACE_S, PATIENCE = 60.0, 5.0
"""Given up after `GRACE_S` and `PATIENCE` times what it takes on a quiet machine: of works that are as late as that no
figure is to be believed."""


class Patience:
    """Of one measurement, begun now. `look` is to be called while it is waited for.

    doing: in words that go before "has taken 40 s". usual_s: how long it takes on a quiet machine. kept: what of it is not lost.
    """

    def __init__(
        self,
        doing: str,
        usual_s: float,
        say: Callable[[str], None] = lambda _: None,
        *,
        kept: str = "",
        clock: Callable[[], float] = time.monotonic,
        meter: Callable[[], host.OthersMeter] = host.OthersMeter,
    ) -> None:
        self._doing, self._usual_s, self._say, self._kept = doing, usual_s, say, kept
        self._clock, self._meter = clock, meter
        self._begun = self._looked = clock()
        self._window, self._own_s = meter(), 0.0
        self._busy_s = self._said_s = 0.0

    @property
    def most_s(self) -> float:
        """After how long it is given up."""
        return GRACE_S + PATIENCE * self._usual_s

    def look(self, own_cpu_s: Callable[[], float]) -> None:
        """own_cpu_s: CPU seconds that the measurement has used itself since it began. RunError if it is to be given up."""
        now = self._clock()
        if now - self._looked < LOOK_S:
            return
        own_s = own_cpu_s()
        if now - self._looked > STOPPED_S:
            self._begun += now - self._looked
            self._looked, self._window, self._own_s, self._busy_s = now, self._meter(), own_s, 0.0
            return
        others = self._window.cores(max(0.0, own_s - self._own_s))
        busy = others > OTHERS_BOUND * host.cores()
        self._busy_s = self._busy_s + now - self._looked if busy else 0.0
        self._looked, self._window, self._own_s = now, self._meter(), own_s
        taken_s = now - self._begun
        taken = f"{self._doing} has taken {taken_s:.0f} s (about {self._usual_s:.0f} s on a quiet machine)"
        who = f"other processes use {others:.1f} of {host.cores()} cores"
        if taken_s >= self.most_s:
            raise RunError(
                f"this machine is too {'busy' if busy else 'slow'} to measure on: {taken}, {who}",
                mend=f"{'end them' if busy else 'leave it alone'}, and give the same command again{self._kept}",
            )
        if (self._busy_s >= SAY_S or taken_s >= 2 * self._usual_s) and taken_s >= 2 * self._said_s:
            self._said_s = taken_s
            spoils = "; they spoil what is measured: end them, or wait" if busy else ""
            self._say(f"{taken}, {who}{spoils}; given up after {self.most_s:.0f} s{self._kept}")

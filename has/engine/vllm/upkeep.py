"""What is done about an instance that is lost while it serves: its own reason is said, and it is started anew."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from has.core.words import plural
from has.engine.vllm.fleet import Fleet
from has.engine.vllm.launch import Engine
from has.errors import RunError
from has.gateway.port import Command, Event, Lost
from has.gateway.service import Tap

PAUSES_S = (0.0, 15.0, 120.0)
"""Before each time that one instance is started anew: a GPU's memory is free after seconds, a hub is back after
minutes, and what dies again and again has a cause that no start removes."""
SERVED_S = 600.0
"""Who served for this long dies of something new: its starts count from zero."""
SETTLED_S = 5.0
"""From a start until it is looked at again: who dies before the gateway has seen it serve is not lost once more."""


def upkeep(
    fleet: Fleet,
    say: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], bool] | None = None,
) -> Tap:
    """Hears of losses. The gateway finds out by itself when an instance serves again.

    wait  for so many seconds, or until everything is being ended, which it answers with True
    """
    return _Upkeep(fleet, say, clock, wait or fleet.launcher.closing.wait).hear


class _Upkeep:
    """By URL, as an instance that is started anew is another one.

    starts  times it was started anew since it last served for SERVED_S
    up_s    when it last came up
    """

    def __init__(
        self,
        fleet: Fleet,
        say: Callable[[str], None],
        clock: Callable[[], float],
        wait: Callable[[float], bool],
    ) -> None:
        self._fleet, self._say, self._clock, self._wait = fleet, say, clock, wait
        self._starts: Counter[str] = Counter()
        self._up_s: dict[str, float] = {}
        self._reviving: set[str] = set()

    def hear(self, entry: Command | Event, _: float) -> None:
        if not isinstance(entry, Lost):
            return
        url = entry.reason.rpartition(" at ")[2]
        # Workers that share it each lose it.
        if self._fleet.engine_at(url) is None or url in self._reviving:
            return
        self._reviving.add(url)
        # Minutes, and the gateway serves on meanwhile; a thread that nobody waits for when it is told to end.
        threading.Thread(target=self.revive, args=(url, f"{entry.pool} {entry.worker}"), daemon=True).start()

    def revive(self, url: str, name: str) -> None:
        try:
            self._revive(url, name)
        finally:
            self._reviving.discard(url)

    def _revive(self, url: str, name: str) -> None:
        """Until it serves, is given up or everything is being ended: a loss is said once, so nobody asks again."""
        now_s = self._clock()
        if now_s - self._up_s.get(url, now_s) >= SERVED_S:
            self._starts[url] = 0
        failed = ""
        while (engine := self._fleet.engine_at(url)) is not None:
            if engine.usable():  # it was only too busy to answer, or came up late
                if failed:
                    self._came_up(url, engine)
                return
            lost = failed or f"{name} is lost: {engine.why()}; {self._fleet.launcher.where_log(engine)}"
            if self._starts[url] == len(PAUSES_S):
                self._say(f"{lost}; it was started anew {plural(len(PAUSES_S), 'time')}, and is given up")
                return
            pause_s = PAUSES_S[self._starts[url]]
            self._say(f"{lost}; starting it anew" + (f" in {pause_s:.0f} s" if pause_s else ""))
            if self._wait(pause_s):
                return
            if engine.usable():
                continue
            self._starts[url] += 1
            try:
                self._fleet.revive(engine)
            except (RunError, OSError) as error:
                if self._fleet.launcher.closed:
                    return
                why = (error.message, error.mend) if isinstance(error, RunError) else (str(error),)
                failed = f"{name} does not come back: {'; '.join(filter(None, why))}"
                continue
            failed = ""
            self._up_s[url] = self._clock()
            if self._wait(SETTLED_S):
                return

    def _came_up(self, url: str, engine: Engine) -> None:
        """What a start gave up waiting for is there after all."""
        self._fleet.launcher.note_ready(engine)
        self._up_s[url] = self._clock()

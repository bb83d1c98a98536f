"""What is done about an instance that is lost while it serves: its own reason is said, and it is started anew."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from has.core.words import plural
from has.engine.vllm.fleet import Fleet
from has.engine.vllm.launch import Engine
from has.errors import RunError
from has.gateway.port import Command, Event, Lost
from has.gateway.service import Tap

MOST_REVIVALS = 3
"""Times one instance is started anew: what dies again and again has a cause that no start removes."""


def upkeep(fleet: Fleet, say: Callable[[str], None]) -> Tap:
    """Hears of losses. The gateway finds out by itself when an instance serves again."""
    revivals: Counter[str] = Counter()
    reviving: set[str] = set()

    def hear(entry: Command | Event, _: float) -> None:
        if not isinstance(entry, Lost):
            return
        engine = fleet.engine_at(entry.reason.rpartition(" at ")[2])
        if engine is None or engine.url in reviving:  # workers that share it each lose it
            return
        reviving.add(engine.url)
        revivals[engine.url] += 1
        again = revivals[engine.url] <= MOST_REVIVALS
        # Minutes, and the gateway serves on meanwhile; a thread that nobody waits for when it is told to end.
        work = threading.Thread(target=revive, args=(engine, f"{entry.pool} {entry.worker}", again))
        work.daemon = True
        work.start()

    def revive(engine: Engine, name: str, again: bool) -> None:
        try:
            _revive(fleet, engine, name, again, say)
        finally:
            reviving.discard(engine.url)

    return hear


def _revive(fleet: Fleet, engine: Engine, name: str, again: bool, say: Callable[[str], None]) -> None:
    if engine.usable():
        return  # it was only too busy to answer
    where = fleet.launcher.where_log(engine)
    lost = f"{name} is lost: {engine.why()}; {where}"
    if not again:
        say(f"{lost}; it was started anew {plural(MOST_REVIVALS, 'time')}, and is given up")
        return
    say(f"{lost}; starting it anew")
    try:
        fleet.revive(engine)
    except RunError as error:
        if not fleet.launcher.closed:
            say(f"{name} does not come back: {error}")

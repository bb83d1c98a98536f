"""Defaults, taken aloud: a bare command says what it assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from has.cli.console import Talk
from has.files.shipped import called

T = TypeVar("T")


class Defaults:
    """Collects what was not said and had to be assumed; `tell` lists it once, on stderr."""

    def __init__(self) -> None:
        self._taken: list[tuple[str, str, str]] = []

    def pick(self, option: str, given: T | None, default: T, why: str = "") -> T:
        """`given` if the user gave it, else `default`, noted."""
        if given is not None:
            return given
        self.note(option, default, why)
        return default

    def note(self, option: str, value: Any, why: str = "") -> None:
        if isinstance(value, Path):
            shown = called(value)
        else:
            shown = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        self._taken.append((option, shown, why))

    def tell(self, talk: Talk) -> None:
        """List what was taken since the last time, and forget it."""
        if self._taken:
            taken = [(f"{option} {value}".rstrip(), why) for option, value, why in self._taken]
            width = min(max(len(what) for what, _ in taken), 72)
            talk.say("defaults taken:")
            for what, why in taken:
                talk.say(f"  {what.ljust(width)}  {why}".rstrip())
        self._taken.clear()

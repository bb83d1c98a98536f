"""Defaults, taken aloud: a bare command says what it assumed."""

from __future__ import annotations

from typing import Any, TypeVar

from has.cli.console import Talk

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
        shown = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        self._taken.append((option, shown, why))

    def tell(self, talk: Talk) -> None:
        """List what was taken since the last time, and forget it."""
        if self._taken:
            width = max(len(f"{option} {value}") for option, value, _ in self._taken)
            talk.say("defaults taken:")
            for option, value, why in self._taken:
                talk.say(f"  {f'{option} {value}'.ljust(min(width, 72))}  {why}".rstrip())
        self._taken.clear()

"""Every error HAS raises, and the exit status each one ends a command with.

    HasError                     3   root; nothing else leaves the library
    ├── InputError               2   something a person wrote is wrong: file, field, value, what is allowed, the mend
    ├── InfeasibleError          1   the question was sound and the answer is no (carries the least bad answer, if any)
    ├── MissingError             3   something needed is not here: device, engine, weights, an extra
    └── RunError                 3   something needed failed while running: a worker, a host too busy, every trial

Lower-level errors (pydantic, YAML, Arrow, CUDA) are translated where they enter, never shown raw.
"""

from __future__ import annotations

from typing import Any


class HasError(Exception):
    """Root of the tree. `mend` is one line a person can act on, or empty."""

    exit_status = 3

    def __init__(self, message: str, *, mend: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.mend = mend

    def __str__(self) -> str:
        return f"{self.message}\n  mend: {self.mend}" if self.mend else self.message


_ABSENT: Any = object()


MOST_SHOWN = 120
"""Characters of a value that a message shows."""


def shown(value: Any) -> str:
    """`value` as a message shows it: its beginning, and of what cannot be written out what it is."""
    try:
        text = repr(value)
    except Exception as error:  # an object's own repr, or an int of more digits than Python prints
        long = isinstance(value, int)
        return f"an integer of {value.bit_length()} bits" if long else f"{type(value).__name__} ({error})"
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."


class InputError(HasError, ValueError):
    """Bad input or usage.

    `where` is the file (or "argument"), `field` the dotted path inside it, `value` what stood
    there, `allowed` what may stand there.
    """

    exit_status = 2

    def __init__(
        self,
        message: str,
        *,
        where: str = "",
        field: str = "",
        value: Any = _ABSENT,
        allowed: str = "",
        mend: str = "",
    ) -> None:
        super().__init__(message, mend=mend)
        self.where = where
        self.field = field
        self.has_value = value is not _ABSENT
        self.value = None if value is _ABSENT else value
        self.allowed = allowed

    def at(self, where: str) -> InputError:
        """The same error, said to be in file `where`."""
        if not self.where:
            self.where = where
        return self

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.where, self.field) if part)
        lines = [f"{place}: {self.message}" if place else self.message]
        if self.has_value:
            lines.append(f"  value: {shown(self.value)}")
        if self.allowed:
            lines.append(f"  allowed: {self.allowed}")
        if self.mend:
            lines.append(f"  mend: {self.mend}")
        return "\n".join(lines)


class InfeasibleError(HasError):
    """Nothing meets the request; `least_bad` holds what comes closest, where there is such a thing."""

    exit_status = 1

    def __init__(self, message: str, *, mend: str = "", least_bad: Any = None) -> None:
        super().__init__(message, mend=mend)
        self.least_bad = least_bad


class MissingError(HasError):
    """A device, engine, checkpoint or optional package is not here; `mend` is the line that brings it."""


class RunError(HasError):
    """Something that was here failed while running."""

"""What a command says and where: results to stdout, everything else to stderr.

While a command runs, anything that *other* code prints to stdout (a library's banner, a worker's
stray line) lands on stderr, so stdout holds the result and nothing else.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from has.errors import RunError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PLAIN_WIDTH = 160
"""Columns of tables that go to a pipe or file, where no terminal says how wide it is."""


def complain(text: str) -> None:
    """A line to stderr, whoever still listens there."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: nouns, numpy scalars and arrays unpacked, what is not finite as null."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json", exclude_none=True))
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def write_json(document: Any) -> None:
    """One JSON document to stdout, if there is room for it."""
    with suppress(OSError):
        print(json.dumps(plain(document), ensure_ascii=False, allow_nan=False), flush=True)


def unwritten(error: OSError) -> RunError:
    """stdout took no more: the disk it goes to is full."""
    return RunError(
        f"stdout: cannot be written: {error.strerror or error}", mend="make room there, or send it elsewhere"
    )


@contextmanager
def _stdout_kept_for_results() -> Iterator[IO[str]]:
    """Yields the real stdout; until the end, prints by anyone else (also by child processes) go to stderr."""
    results = sys.stdout
    results.flush()
    real_fd = None
    try:
        if results.fileno() == 1:
            real_fd = os.dup(1)
    except (OSError, ValueError):  # not a file: captured by a test or a notebook
        real_fd = None
    if real_fd is None:
        sys.stdout = sys.stderr
        try:
            yield results
        finally:
            sys.stdout = results
        return
    stream = os.fdopen(real_fd, "w", encoding=results.encoding or "utf-8", errors=results.errors)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield stream
    finally:
        sys.stdout = results
        # What failed to be written was said by `Talk.result`.
        with suppress(OSError):
            stream.flush()
        os.dup2(real_fd, 1)
        with suppress(OSError):
            stream.close()


class Talk:
    """The two voices of one command. Made by `talk()`."""

    def __init__(self, results: IO[str], *, json: bool, quiet: bool) -> None:
        self.json = json
        self.quiet = quiet
        self._results = results
        self._said: Console | None = None

    @property
    def console(self) -> Console:
        """Rich console on stderr: colour and motion on a terminal only."""
        if self._said is None:
            self._said = _console(sys.stderr, quiet=self.quiet)
        return self._said

    @property
    def live(self) -> bool:
        """Whether tables may redraw themselves: stderr is a terminal that can."""
        return not self.quiet and self.console.is_terminal and not self.console.is_dumb_terminal

    def say(self, *lines: RenderableType) -> None:
        """Progress or comment, to stderr."""
        if self.quiet:
            return
        with suppress(BrokenPipeError):
            for line in lines:
                self.console.print(line, highlight=False, soft_wrap=isinstance(line, str), markup=False)

    def warn(self, text: str) -> None:
        """A warning, to stderr, also under --quiet."""
        complain(f"warning: {text}")

    def result(self, document: Any, human: Callable[[], RenderableType] | RenderableType) -> None:
        """The answer: `document` as JSON if asked for, else `human`, to stdout. RunError where that is full."""
        shown = None if self.json else human() if callable(human) else human
        try:
            if shown is None:
                self._results.write(json.dumps(plain(document), ensure_ascii=False, allow_nan=False) + "\n")
            else:
                self._show(shown)
            self._results.flush()
        except BrokenPipeError:
            pass
        except OSError as error:
            raise unwritten(error) from error

    def _show(self, shown: RenderableType) -> None:
        out = _console(self._results, quiet=False)
        # What is wider than the screen is a command to copy: not cut off.
        style: dict[str, Any] = {
            "highlight": False,
            "soft_wrap": isinstance(shown, str),
            "markup": False,
            "crop": False,
        }
        if out.is_terminal:
            out.print(shown, **style)
            return
        with out.capture() as captured:
            out.print(shown, **style)
        # Tables are padded to their width; a file wants no blanks at the ends of lines.
        self._results.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _console(stream: IO[str], *, quiet: bool) -> Console:
    from rich.console import Console

    terminal = stream.isatty()
    return Console(
        file=stream,
        quiet=quiet,
        width=None if terminal or os.environ.get("COLUMNS") else PLAIN_WIDTH,
        force_terminal=None if terminal else False,
        emoji=False,
    )


@contextmanager
def talk(*, json: bool = False, quiet: bool = False) -> Iterator[Talk]:
    """For the length of a command: results to stdout, all else to stderr."""
    with _stdout_kept_for_results() as results:
        yield Talk(results, json=json, quiet=quiet)

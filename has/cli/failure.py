"""How a command ends when it does not end well: one message, an exit status, never a traceback.

With `--json` the failure is one JSON document on stdout too, `{"error": {...}}`, so that a script
that reads stdout always finds one document there.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from has.cli.console import complain, unwritten, write_json
from has.errors import HasError, InputError, MissingError, RunError, shown

INTERRUPTED = 130

# typer brings its own copy of click in some versions and depends on it in others; its public
# BadParameter derives from that click's exceptions either way.
ClickException = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

_EXTRA_OF_MODULE = {
    **dict.fromkeys(
        (
            "torch",
            "transformers",
            "PIL",
            "av",
            "soundfile",
            "starlette",
            "uvicorn",
            "httptools",
            "uvloop",
            "httpx",
            "aiohttp",
            "prometheus_client",
        ),
        "runtime",
    ),
    **dict.fromkeys(("pynvml", "cuda"), "cuda"),
    "aiconfigurator_core": "silicon",
    "skopt": "skopt",
}


class Interrupted(Exception):
    """An interruption that knows what was kept and how to go on; `resume` is the command line for it.

    It is no KeyboardInterrupt, for typer would end those itself.
    """

    def __init__(self, kept: str, resume: str = "") -> None:
        super().__init__(kept)
        self.kept = kept
        self.resume = resume


def show_failure(failure: BaseException, arguments: list[str]) -> int:
    """Say what went wrong on stderr (and on stdout as JSON, if asked) and return the exit status."""
    if isinstance(failure, SystemExit):
        return failure.code if isinstance(failure.code, int) else 3
    if isinstance(failure, BrokenPipeError):
        return 0  # whoever read us has all they wanted
    if isinstance(failure, typer.Abort):
        failure = KeyboardInterrupt()
    if isinstance(failure, KeyboardInterrupt | Interrupted):
        return _interrupted(failure, arguments)
    error = as_has_error(failure)
    if os.environ.get("HAS_DEBUG"):
        complain("".join(traceback.format_exception(failure)).rstrip())
    complain(f"error: {error}")
    if "--json" in arguments:
        write_json({"error": describe(error)})
    return error.exit_status


@contextmanager
def once_answered() -> Iterator[None]:
    """What follows the answer, such as files that were asked for too: a failure is told on stderr and by the status.

    stdout has the answer already, and with `--json` no room for a second document.
    """
    try:
        yield
    except HasError as error:
        complain(f"error: {error}")
        raise typer.Exit(error.exit_status) from None


def _interrupted(failure: BaseException, arguments: list[str]) -> int:
    kept = failure.kept if isinstance(failure, Interrupted) else ""
    resume = failure.resume if isinstance(failure, Interrupted) else ""
    complain(f"interrupted{'; ' + kept if kept else ''}")
    if resume:
        complain(f"  go on: {resume}")
    if "--json" in arguments:
        write_json({"error": {"status": INTERRUPTED, "kind": "Interrupted", "message": kept, "mend": resume}})
    return INTERRUPTED


def as_has_error(failure: BaseException) -> HasError:
    """The failure as one of ours: usage errors and missing packages get their place and mend."""
    if isinstance(failure, HasError):
        return failure
    if isinstance(failure, ClickException):
        return _usage_error(failure)
    if isinstance(failure, ModuleNotFoundError) and failure.name:
        extra = _EXTRA_OF_MODULE.get(failure.name.partition(".")[0])
        if extra:
            return MissingError(
                f"the Python package {failure.name} is needed and not installed",
                mend=f"pip install 'has-epd[{extra}]'",
            )
    if isinstance(failure, OSError) and failure.filename is not None:
        return RunError(f"{failure.filename}: {failure.strerror or failure}")
    if isinstance(failure, OSError) and failure.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(f"output cannot be written: {failure.strerror}", mend="make room on that disk")
    return RunError(
        f"an error nobody foresaw, and a fault of HAS: {type(failure).__name__}: {_one_line(failure)}",
        mend="run it again with HAS_DEBUG=1 and report the traceback with the command line and `has doctor --json`",
    )


def _usage_error(failure: Any) -> InputError:
    context = getattr(failure, "ctx", None)
    path = context.command_path if context else "has"
    parameter = getattr(failure, "param", None)
    if parameter is not None:
        field = (
            parameter.opts[0] if parameter.opts[0].startswith("-") else (parameter.metavar or parameter.name)
        )
    else:
        field = getattr(failure, "option_name", "") or ""
    message = str(failure.message or "") or f"missing {'option' if field.startswith('-') else 'argument'}"
    suggestions = getattr(failure, "possibilities", None)
    return InputError(
        message.rstrip("."),
        where=path,
        field=field,
        mend=f"did you mean {' or '.join(suggestions)}?" if suggestions else f"{path} --help",
    )


def describe(error: HasError) -> dict[str, Any]:
    """The error as a JSON object: status, kind, message, mend and, of bad input, where, field, value, allowed."""
    told: dict[str, Any] = {
        "status": error.exit_status,
        "kind": type(error).__name__,
        "message": error.message,
        "mend": error.mend,
    }
    if isinstance(error, InputError):
        told |= {"where": error.where, "field": error.field, "allowed": error.allowed}
        if error.has_value:
            told["value"] = _json_value(error.value)
    return told


def _json_value(value: Any) -> Any:
    """A plain number or text as it is, if JSON can hold it; else as a message shows it."""
    small = not isinstance(value, int) or value.bit_length() <= 1024
    return value if isinstance(value, str | int | float) and small else shown(value)


def _one_line(failure: BaseException) -> str:
    text = " ".join(str(failure).split())
    return text if len(text) <= 300 else text[:297] + "..."


def begin_output() -> None:
    """Give a command that was started with streams closed (`>&-`) the null device in their place.

    In ascending order, so that each takes the descriptor of its own number and no file later does.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115  # for the life of the process
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def end_output(status: int) -> int:
    """Flush stdout and return the exit status, 3 where the flush fails for want of room.

    Where nobody reads stdout any more, or it is full, the interpreter is kept from complaining as it ends.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            if status == 0:
                complain(f"error: {unwritten(error)}")
            return status or RunError.exit_status
    return status

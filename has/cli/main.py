"""Entry point of the `has` command: the list of commands, and the one place where errors become exit statuses.

Importing this module loads typer and nothing heavier, so that `has --help` answers at once.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Annotated, NoReturn

import typer

from has.cli import bench, deploy, doctor, explain, export, profile, report, search, show, simulate, trace
from has.cli.failure import INTERRUPTED, begin_output, end_output, show_failure
from has.version import __version__

HELP = """Find the best deployment of a multimodal LLM over encode, prefill and decode GPUs.

A first run on any machine:  has search --gpus 8  then  has deploy best.yaml

Results go to stdout, everything else to stderr. Exit status: 0 done; 1 the answer is no;
2 bad input or usage; 3 something needed is missing or failed; 130 interrupted, finished work kept.
"""

app = typer.Typer(
    name="has",
    help=HELP,
    rich_markup_mode=None,  # plain help: loads nothing, and reads the same in a terminal, a pipe and a golden file
    pretty_exceptions_enable=False,  # failures are shown by `has.cli.failure` alone
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "doctor": (doctor.command, "What this machine offers, and what is missing"),
    "profile": (profile.command, "Measure stage latencies against SM share"),
    "search": (search.command, "Prune, then optimise with trials"),
    "simulate": (simulate.command, "One what-if: percentiles and per-stage figures"),
    "explain": (explain.command, "Why this deployment, and what else would do"),
    "deploy": (deploy.command, "Serve it behind an OpenAI-compatible API"),
    "export": (export.command, "Launch artefacts for vLLM, SGLang, Dynamo, llm-d"),
    "bench": (bench.command, "Open-loop load on any OpenAI-compatible URL"),
    "report": (report.command, "Tables and pictures of a run"),
    "show": (show.command, "A file of any of the kinds, readable"),
    "trace convert": (trace.convert, "Another project's trace to a workload"),
}
GROUPS: dict[str, str] = {"trace": "Other people's traces to workloads"}


def _group_alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_groups: dict[str, typer.Typer] = {}
for _name, _does in GROUPS.items():
    _groups[_name] = typer.Typer(rich_markup_mode=None, invoke_without_command=True, callback=_group_alone)
    app.add_typer(_groups[_name], name=_name, help=_does)
for _name, (_command, _does) in COMMANDS.items():
    _group, _, _last = _name.rpartition(" ")
    (_groups[_group] if _group else app).command(name=_last, short_help=_does)(_command)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"has {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True, help=HELP)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit status; no exception leaves."""
    try:
        status = app(args=arguments, prog_name="has", standalone_mode=False)
    except BaseException as failure:
        return show_failure(failure, arguments)
    if status == INTERRUPTED:  # typer has caught a KeyboardInterrupt
        return show_failure(KeyboardInterrupt(), arguments)
    return status if isinstance(status, int) else 0


def _terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main() -> NoReturn:
    """Console script. A termination request is an interruption: workers are ended, finished work is kept."""
    begin_output()
    signal.signal(signal.SIGTERM, _terminated)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = run(sys.argv[1:])
    except KeyboardInterrupt:  # once more, while the first was being told
        status = INTERRUPTED
    status = end_output(status)
    if status == INTERRUPTED:
        # An interruption that passed through C code makes Python end of SIGINT, whatever status is asked for.
        atexit._run_exitfuncs()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()

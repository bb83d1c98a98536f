"""`has report`: tables and pictures of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from has.cli import options
from has.cli.console import talk


def command(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Run folder, as has search writes it.")],
    html: options.Html = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="DIR", help="Write the tables there as CSV.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="DIR", help="Write the tables there as Parquet.")
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Report a run: the answer, the baselines, the trials, what was pruned and why.

    Without --html, --csv or --parquet the report is printed. A run that was interrupted, or still
    goes on, can be reported too.
    """
    with talk(json=json, quiet=quiet) as t:
        from has.files.atomic import write_atomic
        from has.files.folders import make_folder
        from has.report.run import load_run, run_data, save_tables
        from has.report.run_document import describe_run, run_page
        from has.report.terminal import draw

        run = load_run(run_dir)
        options.target(html, "--html")
        for folder, option in ((csv, "--csv"), (parquet, "--parquet")):
            if folder is not None:
                make_folder(folder, option)
        written: list[Path] = []
        if html is not None:
            write_atomic(html, run_page(run))
            written.append(html)
        if csv is not None:
            written += save_tables(run, csv, "csv")
        if parquet is not None:
            written += save_tables(run, parquet, "parquet")
        for path in written:
            t.say(f"written: {path}")
        if json:
            t.result(run_data(run) | {"written": written}, "")
        elif not written:
            t.result(None, lambda: draw(describe_run(run)))

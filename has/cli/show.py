"""`has show`: a file of any of the kinds that HAS reads or writes, readable; of a run folder its answer."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from has.cli import options
from has.cli.console import talk
from has.errors import InputError
from has.files.reading import existing
from has.files.shipped import KINDS, named

if TYPE_CHECKING:
    from has.core.workload import Workload
    from has.report.document import Document, Section


def command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Profile, workload, trace, deployment, space; records, trials, a run's folder.",
        ),
    ],
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show a profile, workload, trace, deployment or search space in readable form; a run's tables too.

    What the file is follows from its content. With --json a profile is {metadata, rows}, a trace
    {requests}, a table of a run {records}, {trials} or {pruned}, and anything else its own fields
    with the defaults filled in.
    """
    with talk(json=json, quiet=quiet) as t:
        options.target(html, "--html")
        document, data = read(file, rows=json)
        if html is not None:
            from has.files.atomic import write_atomic
            from has.report.html import page

            write_atomic(html, page(document, footer=f"has show {shlex.quote(str(file))}"))
            t.say(f"page written to {html}")
            if not json:
                return
        from has.report.terminal import draw

        t.result(data, lambda: draw(document))


def read(file: Path, *, rows: bool = True) -> tuple[Document, Any]:
    """The file as a document and as data, whatever kind it is of; of a trace the data only with `rows`."""
    if file.is_dir():
        from has.report.run_files import describe_run_shortly

        return describe_run_shortly(file)
    file = named(file, *KINDS)
    if file.suffix.lower() in (".yaml", ".yml"):
        return _read_yaml(file)
    if file.suffix.lower() in (".parquet", ".csv", ".jsonl"):
        return _read_table(file, rows)
    raise InputError(
        "is of no kind that has show knows",
        where=str(file),
        allowed=".yaml (deployment, workload, space), .parquet or .csv (profile, trace, records, trials),"
        " .jsonl (trace, trials), or the folder of a run",
    )


def _read_yaml(file: Path) -> tuple[Document, Any]:
    from has.files.kinds import kind_of
    from has.files.yaml import load_yaml
    from has.report import nouns

    fields = load_yaml(file)
    if not isinstance(fields, dict):
        raise InputError("holds no mapping", where=str(file), allowed="a deployment, workload or space")
    kind = kind_of(fields)
    if kind == "deployment":
        from has.files.deployment import load_deployment

        deployment = load_deployment(file)
        return nouns.describe_deployment(deployment), deployment
    if kind == "workload":
        from has.files.workload import load_workload

        workload = load_workload(file)
        document = nouns.describe_workload(workload)
        if workload.arrivals.process == "trace":
            document = replace(document, sections=[*document.sections, *_replayed(workload)])
        return document, workload
    from has.files.space import load_space

    space = load_space(file)
    return nouns.describe_space(space), space


def _replayed(workload: Workload) -> list[Section]:
    """What the trace of a workload is like at its time scale; a trace that needs a model is not read."""
    from has.files.formats.statistics import Statistics
    from has.report.document import Section
    from has.report.traffic import traffic_sections
    from has.sim.draw import draw_requests

    try:
        requests = draw_requests(workload)
    except InputError as error:
        if "needs a model" in error.message:
            return [Section("Arrivals", [f"not shown: {error.field} {error.message}"])]
        raise
    return traffic_sections(Statistics.of(requests))


def _read_table(file: Path, rows: bool) -> tuple[Document, Any]:
    from has.files.trace import REQUIRED, refuse_foreign
    from has.report import nouns, run_files, traffic

    existing(file)
    columns = _columns(file) if file.suffix.lower() != ".jsonl" else []
    refuse_foreign(file, columns)
    if file.suffix.lower() == ".jsonl" and run_files.is_journal(file):
        return run_files.describe_journal(file)
    if file.suffix.lower() != ".jsonl" and (kind := run_files.kind_of(_columns(file))):
        return run_files.describe_table(file, kind)
    if file.suffix.lower() != ".jsonl" and "arrival_s" not in columns:
        from has.files.profile import load_profile

        if columns and not {"stage", "latency_s"} & set(columns):
            raise InputError(
                "is no table that has show knows, by its columns",
                where=str(file),
                field="header",
                value=", ".join(columns),
                allowed=f"of a trace: {', '.join(REQUIRED)}, media_tokens; of a profile: stage, sm_percent, batch, tokens, latency_s",
                mend="give the columns these names (docs/files.md); times in seconds, sizes in tokens",
            )

        profile = load_profile(file)
        return nouns.describe_profile(profile), profile
    from has.files.formats.statistics import Statistics
    from has.files.trace import trace_blocks

    statistics, data = Statistics(), []
    for block in trace_blocks(file):
        statistics.take(block)
        if rows:
            data += _trace_rows(block)
    return traffic.describe_trace(statistics, file.name), {"requests": data}


def _columns(file: Path) -> list[str]:
    """Names of a table's columns, or none where it cannot be read: its loader then says why."""
    existing(file)
    try:
        if file.suffix.lower() == ".parquet":
            import pyarrow.parquet

            return list(pyarrow.parquet.read_schema(file).names)
        with file.open(encoding="utf-8-sig", errors="replace") as lines:
            return [name.strip() for name in lines.readline().split(",")]
    except (OSError, ValueError):  # Arrow's own errors are both
        return []


def _trace_rows(requests: Any) -> list[dict[str, Any]]:
    from has.core.stage import MODALITIES

    return [
        {
            "arrival_s": arrival_ns / 1e9,
            "modality": MODALITIES[modality],
            "items": items,
            "media_tokens": media,
            "prompt_tokens": prompt,
            "output_tokens": output,
        }
        for arrival_ns, modality, items, media, prompt, output in zip(
            requests.arrival_ns.tolist(),
            requests.modality.tolist(),
            requests.items.tolist(),
            requests.media_tokens.tolist(),
            requests.prompt_tokens.tolist(),
            requests.output_tokens.tolist(),
            strict=True,
        )
    ]

"""The tables that runs leave behind, each alone: records, trials, what was pruned; and a run in short."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from has.core.words import percent, plural
from has.files.jsonl import read_lines
from has.files.tables import read_table
from has.report.document import Document, Section, Table, number, two_columns
from has.search.journal import trial_from_line, trial_rows

KINDS = {
    "records": {"request", "first_token_s", "met"},
    "trials": {"number", "state", "candidate", "objective"},
    "pruned": {"candidate", "rule", "bound", "value"},
}
"""Columns by which a table of a run is known."""
TEXTS = (
    *("route", "met", "kind", "state", "candidate", "topology", "alloc", "tensor_parallel", "rule"),
    *("reason", "started_at"),
)
MOST_ROWS = 200
"""A table on a terminal ends there; --json has all."""
Row = Mapping[str, Any]


def kind_of(columns: Sequence[str]) -> str:
    """records, trials, pruned, or empty where the columns are those of none."""
    return next((kind for kind, known in KINDS.items() if known <= set(columns)), "")


def is_journal(file: Path) -> bool:
    """Whether a file of JSON lines begins with a trial."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        first = lines.readline()
    return '"deployment"' in first and '"state"' in first and '"objective"' in first


def describe_table(file: Path, kind: str) -> tuple[Document, Any]:
    """A table of that kind as a document and as data."""
    rows = read_table(file, TEXTS).rows
    describe = {"records": _records, "trials": _trials, "pruned": _pruned}[kind]
    return describe(file.name, rows), {kind: rows}


def describe_journal(file: Path) -> tuple[Document, Any]:
    """`trials.jsonl` and its like: a row for each trial. InputError where a line is none."""
    trials = [trial_from_line(line, str(file)) for line in read_lines(file)]
    rows = trial_rows(trials)
    return _trials(file.name, rows), {"trials": rows}


def describe_run_shortly(folder: Path) -> tuple[Document, Any]:
    """The answer of a run, and where the rest is. InputError where the folder holds none."""
    from has.report.run import load_run, run_data
    from has.report.run_document import describe_run

    run = load_run(folder)
    whole = describe_run(run)
    named = shlex.quote(str(folder))
    more = Section(
        "More", [f"all of it: has report {named}    as a page: has report {named} --html report.html"]
    )
    return replace(whole, sections=[*whole.sections[:1], more]), run_data(run)


def _records(name: str, rows: Sequence[Row]) -> Document:
    done = [row for row in rows if row.get("finish_s") is not None]
    first = np.array(
        [row["first_token_s"] - row["arrival_s"] for row in rows if row.get("first_token_s") is not None]
    )
    whole = np.array([row["finish_s"] - row["arrival_s"] for row in done])
    batches = [row["batch"] for row in rows if row.get("batch") is not None]
    met = [str(row["met"]).lower() == "true" for row in rows if row.get("met") is not None]
    routes = Counter(str(row["route"]) for row in rows if row.get("route"))
    facts = two_columns(
        [
            ("requests", len(rows)),
            ("completed", len(done)),
            ("met their SLO", percent(sum(met) / len(met)) if met else None),
            ("requests of an encode batch, mean over requests", float(np.mean(batches)) if batches else None),
            ("prefills " + " / ".join(routes), " / ".join(map(str, routes.values())) if routes else None),
        ]
    )
    times = [_spread("TTFT", first), _spread("end to end", whole)]
    spread = Table(("ms", "mean", "p50", "p90", "p99"), [row for row in times if row])
    return Document(f"Records {name}", (), [Section("Outcome", [facts]), Section("Latencies", [spread])])


def _spread(name: str, seconds: Any) -> tuple[Any, ...]:
    if not len(seconds):
        return ()
    return (
        name,
        float(seconds.mean()) * 1e3,
        *(float(v) * 1e3 for v in np.percentile(seconds, (50, 90, 99))),
    )


def _trials(name: str, rows: Sequence[Row]) -> Document:
    columns = {
        "#": "number",
        "for": "kind",
        "configuration": "candidate",
        "rate/s": "rate",
        "objective": "objective",
        "attainment": "attainment",
        "TTFT p99 ms": "ttft_p99_ms",
        "TPOT p99 ms": "tpot_p99_ms",
        "s": "duration_s",
        "state": "state",
        "reason": "reason",
    }
    table = Table(
        tuple(columns),
        [tuple(_cell(key, row.get(key)) for key in columns.values()) for row in rows[:MOST_ROWS]],
    )
    states = Counter(str(row.get("state")) for row in rows)
    words = ", ".join(f"{count} {state}" for state, count in states.items())
    return Document(
        f"Trials {name}", [f"{plural(len(rows), 'trial')}: {words}"], [Section("Trials", [table])]
    )


def _cell(name: str, value: Any) -> Any:
    if name == "reason":
        return value or ""
    return percent(value) if name == "attainment" and isinstance(value, float) else value


def _pruned(name: str, rows: Sequence[Row]) -> Document:
    examples: dict[str, Row] = {}
    for row in rows:
        examples.setdefault(str(row.get("rule")), row)
    counts = Counter(str(row.get("rule")) for row in rows)
    table = Table(
        ("rule", "cut", "for example", "value", "bound", "because"),
        [
            (rule, count, *(examples[rule].get(key) for key in ("candidate", "value", "bound", "reason")))
            for rule, count in counts.most_common()
        ],
    )
    return Document(
        f"Pruned candidates {name}",
        [f"{plural(len(rows), 'candidate')} cut: {', '.join(f'{r} {number(c)}' for r, c in counts.items())}"],
        [Section("By rule", [table])],
    )

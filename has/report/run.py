"""A run folder as a document, and its tables as CSV or Parquet.

Needs no more than `manifest.json` and `trials.jsonl`, so a run that was interrupted, or still goes
on, can be looked at too; nothing in the folder is changed by reading it.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from has.core.deployment import Deployment
from has.core.trial import Trial
from has.errors import InputError
from has.files.deployment import load_deployment
from has.files.folders import make_folder
from has.files.jsonl import read_lines
from has.files.reading import read_text
from has.files.tables import save_table
from has.search.journal import no_run, read_manifest, trial_from_line, trial_rows

_WHOLE = ("encode_batch", "gpus")
_NUMBERS = (
    *("encode_batch", "prefill_offload", "bound", "value", "margin"),
    *("gpus", "usd_per_hour", "carried_rps", "usd_per_million_output_tokens", "attainment", "ttft_p99_ms"),
)
"""Columns of pruned.csv and pareto.csv that are numbers, or empty where there is none."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run folder holds. `best` is None while no answer was written."""

    folder: Path
    manifest: Mapping[str, Any]
    trials: tuple[Trial, ...]
    pruned: tuple[Mapping[str, Any], ...]
    pareto: tuple[Mapping[str, Any], ...]
    best: Deployment | None

    @property
    def evidence(self) -> Mapping[str, Any]:
        return (self.best.evidence if self.best else None) or {}


def load_run(folder: Path) -> Run:
    """Read a run folder. InputError where it is none, or a file in it is damaged."""
    if not folder.is_dir():
        raise no_run(folder, "no such folder")
    manifest = read_manifest(folder)
    journal, best = folder / "trials.jsonl", folder / "best.yaml"
    lines = read_lines(journal) if journal.is_file() else []
    return Run(
        folder=folder,
        manifest=manifest,
        trials=tuple(trial_from_line(line, str(journal)) for line in lines),
        pruned=_csv_rows(folder / "pruned.csv"),
        pareto=_csv_rows(folder / "pareto.csv"),
        best=load_deployment(best) if best.is_file() else None,
    )


def _csv_rows(path: Path) -> tuple[Mapping[str, Any], ...]:
    if not path.is_file():
        return ()
    rows = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        return tuple(_cells(row) for row in rows)
    except (csv.Error, ValueError) as error:
        raise InputError(
            f"line {rows.line_num} is not one of a {path.name}: {error}",
            where=str(path),
            mend=f"it can be made again: has search --resume {shlex.quote(str(path.parent))}",
        ) from None


def _cells(row: Mapping[str, str]) -> Mapping[str, Any]:
    # DictReader puts cells too many under None, and None where cells are too few.
    if None in row or None in row.values():
        raise ValueError("it has not as many values as there are columns")
    return {name: _cell(name, cell) for name, cell in row.items()}


def _cell(name: str, cell: str) -> Any:
    if name == "on_front":
        return cell == "true"
    if name not in _NUMBERS:
        return cell
    if not cell:
        return None
    return int(cell) if name in _WHOLE else float(cell)


def save_tables(run: Run, folder: Path, ending: str) -> list[Path]:
    """Write the run's tables as `ending` ("csv" or "parquet") into `folder`; returns their paths."""
    make_folder(folder, f"--{ending}")
    written = []
    tables = {"trials": trial_rows(run.trials), "pruned": list(run.pruned), "pareto": list(run.pareto)}
    for name, rows in tables.items():
        if rows:
            path = folder / f"{name}.{ending}"
            save_table(rows, path)
            written.append(path)
    return written


def run_data(run: Run) -> dict[str, Any]:
    """The run as `has report --json` gives it."""
    return {
        "run": str(run.folder),
        "manifest": run.manifest,
        "best": run.best,
        "trials": trial_rows(run.trials),
        "pruned": list(run.pruned),
        "pareto": list(run.pareto),
    }

"""Workloads: what users send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from has.core.workload import Arrivals, Workload
from has.errors import InputError
from has.files.atomic import write_atomic
from has.files.kinds import refuse_other
from has.files.plain import prune, short
from has.files.shipped import named
from has.files.validate import validate
from has.files.yaml import dump_yaml, load_yaml

TABLES = (".csv", ".jsonl", ".parquet")
"""Endings of traces."""


def load_workload(path: str | Path) -> Workload:
    """The workload in a file, or the shipped one of that name. A trace's path, written relative to the workload's folder, comes back absolute. Raises InputError.

    A trace table (.csv, .jsonl, .parquet) is a workload too: its replay, with no SLO of its own.
    """
    given = named(path, "workloads")
    if given.suffix.lower() in TABLES:
        file = given.resolve()
        arrivals = Arrivals(process="trace", file=str(file))
        return Workload(version=1, name=file.stem, description=f"Replay of {file.name}", arrivals=arrivals)
    fields = load_yaml(given)
    refuse_other(fields, "workload", given)
    workload = validate(Workload, fields, str(given))
    name = workload.arrivals.file
    if name is None:
        return workload
    trace = (given.absolute().parent / Path(name).expanduser()).resolve()
    if not trace.is_file():
        raise InputError(
            "no such trace file",
            where=str(given),
            field="arrivals.file",
            value=name,
            allowed="a path, relative to the workload's folder",
            mend=f"put the trace at {trace}, or correct the path",
        )
    return workload.model_copy(update={"arrivals": workload.arrivals.model_copy(update={"file": str(trace)})})


def save_workload(workload: Workload, path: str | Path) -> None:
    """Write it; atomic. A trace's path is written as it stands."""
    write_atomic(path, workload_yaml(workload))


def workload_yaml(workload: Workload) -> str:
    """The text of its file. Loading it gives an equal workload."""
    data = prune(workload.model_dump(mode="python"))
    if workload.arrivals.process != "trace":
        data["arrivals"].pop("time_scale", None)
    data["requests"] = [
        {name: _distribution(value) for name, value in entry.items()} for entry in data["requests"]
    ]
    if not data["requests"]:
        del data["requests"]
    return dump_yaml(short(data))


def _distribution(value: Any) -> Any:
    """A constant is written as the bare number."""
    return value["constant"] if isinstance(value, dict) and set(value) == {"constant"} else value

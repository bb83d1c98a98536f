"""The table of `--records`: one row a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from has.core.records import NEVER, ROUTES, Records
from has.errors import InputError
from has.files.atomic import write_atomic
from has.files.tables import csv_text, save_parquet

COLUMNS = (
    "request",
    "arrival_s",
    "preprocessed_s",
    "encode_worker",
    "encode_start_s",
    "encode_end_s",
    "batch",
    "route",
    "prefill_ready_s",
    "prefill_worker",
    "prefill_start_s",
    "first_token_s",
    "decode_ready_s",
    "decode_worker",
    "decode_start_s",
    "finish_s",
    "met",
)
"""In this order. Times are seconds, exact to 1 ns; empty where a stage does not apply."""


def save_records(records: Records, path: str | Path, met: NDArray[np.bool_] | None = None) -> None:
    """Write `records` as CSV or Parquet, by the ending of `path`; atomic.

    `met`, bool[N], says which requests met their SLO; without it that column is empty.
    Raises InputError for other endings.
    """
    path = Path(path)
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(
            f"unknown kind of table: {path.suffix or 'no ending'}",
            where=str(path),
            field="--records",
            allowed="a file ending in .csv or .parquet",
        )
    columns = record_columns(records, met)
    if path.suffix.lower() == ".csv":
        write_atomic(path, csv_text(COLUMNS, zip(*columns.values(), strict=True)))
    else:
        save_parquet(path, columns, kinds={name: _kind(name) for name in COLUMNS})


def _kind(name: str) -> str:
    """Arrow's name of a column's type."""
    return "float64" if name.endswith("_s") else {"route": "string", "met": "bool"}.get(name, "int64")


def record_columns(records: Records, met: NDArray[np.bool_] | None = None) -> dict[str, list[Any]]:
    """Column name → values, None where a stage does not apply."""
    columns: dict[str, list[Any]] = {"request": list(range(len(records.requests)))}
    for name in COLUMNS[1:-1]:
        if name == "arrival_s":
            columns[name] = (records.requests.arrival_ns / 1e9).tolist()
        elif name.endswith("_s"):
            columns[name] = _seconds(getattr(records, f"{name[:-2]}_ns"))
        elif name == "route":
            columns[name] = [None if r == NEVER else ROUTES[r] for r in records.route.tolist()]
        else:
            columns[name] = [None if v == NEVER else v for v in getattr(records, name).tolist()]
    columns["met"] = [None] * len(records.requests) if met is None else met.astype(bool).tolist()
    return columns


def _seconds(ns: NDArray[np.int64]) -> list[float | None]:
    return [None if t == NEVER else t / 1e9 for t in ns.tolist()]

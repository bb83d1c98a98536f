"""Tables: CSV, JSON lines and Parquet in, CSV and Parquet out.

Reading is strict. Every row has every column of the header, a header names no column twice, and a
number is a number: `nan`, `inf`, ` 12 `, `1_000` and `0x10` are errors that name line and column.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from has.errors import InputError
from has.files.atomic import replace_atomic, write_atomic
from has.files.jsonl import parse_json
from has.files.reading import existing, read_text

Rows = list[dict[str, Any]]
ENDINGS = (".csv", ".jsonl", ".parquet")

_INTEGER = re.compile(r"[-+]?\d{1,300}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Table:
    """Column names and rows; an empty cell is None.

    `lines` says where each row of a text file stands (from 1); `metadata` is that of a Parquet schema.
    """

    columns: list[str]
    rows: Rows
    lines: list[int] | None = None
    metadata: Mapping[bytes, bytes] = field(default_factory=dict)

    def place(self, row: int) -> str:
        """How people find row `row` (from 0)."""
        return f"row {row}, counted from 0" if self.lines is None else f"line {self.lines[row]}"


def read_table(
    path: str | Path,
    text_columns: Sequence[str] = (),
    check_columns: Callable[[list[str]], None] | None = None,
) -> Table:
    """A table, by the ending of its file.

    In a CSV every column but `text_columns` must hold numbers. `check_columns` may refuse the names
    before any row is looked at. Raises InputError with the row (`rows.3` is the fourth; for text
    files the line too).
    """
    path = existing(path)
    check = check_columns or (lambda _: None)
    match path.suffix.lower():
        case ".csv":
            return _read_csv(path, text_columns, check)
        case ".jsonl":
            table = _read_jsonl(path)
        case ".parquet":
            table = _read_parquet(path)
        case _:
            raise InputError(
                f"unknown kind of table: {path.suffix or 'no ending'}",
                where=str(path),
                allowed="a file ending in " + ", ".join(ENDINGS),
            )
    check(table.columns)
    return table


def _read_csv(path: Path, text_columns: Sequence[str], check: Callable[[list[str]], None]) -> Table:
    text = read_text(path)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: list[str] = []
    rows: Rows = []
    lines: list[int] = []
    line = 1
    try:
        for cells in reader:
            if cells and not columns:
                columns = _header(path, cells)
                check(columns)
            elif cells:
                if len(cells) != len(columns):
                    raise _ragged(path, cells, columns, len(rows), line, text)
                rows.append(
                    {
                        name: (cell or None)
                        if name in text_columns
                        else _number(path, cell, name, len(rows), line)
                        for name, cell in zip(columns, cells, strict=True)
                    }
                )
                lines.append(line)
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"line {line} is not CSV: {error}", where=str(path)) from None
    if not columns:
        raise InputError(
            "is empty", where=str(path), mend="write a header line with the names of the columns"
        )
    return Table(columns, rows, lines)


def _ragged(path: Path, cells: list[str], columns: list[str], row: int, line: int, text: str) -> InputError:
    cut = not text.endswith("\n") and line >= text.count("\n") + 1
    return InputError(
        f"line {line} has {len(cells)} values for {len(columns)} columns",
        where=str(path),
        field=f"rows.{row}",
        value=",".join(cells),
        mend="the file may have been cut off; write it anew" if cut else "give every column a value",
    )


def _header(path: Path, cells: list[str]) -> list[str]:
    for name in cells:
        if cells.count(name) > 1:
            raise InputError(
                "the header names a column twice", where=str(path), field=name, value=name, mend="keep one"
            )
    return cells


def _number(path: Path, cell: str, name: str, row: int, line: int) -> int | float | None:
    if cell == "":
        return None
    if _INTEGER.fullmatch(cell):
        return int(cell)
    if _FLOAT.fullmatch(cell) and math.isfinite(value := float(cell)):
        return value
    raise InputError(
        f"must be a finite number (line {line})",
        where=str(path),
        field=f"rows.{row}.{name}",
        value=cell,
        allowed="a finite number",
    )


def _read_jsonl(path: Path) -> Table:
    columns: dict[str, None] = {}
    rows: Rows = []
    lines: list[int] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        row = parse_json(line, f"{path}, line {number}")
        if not isinstance(row, dict):
            raise InputError(
                f"line {number} is no JSON object", where=str(path), field=f"rows.{len(rows)}", value=row
            )
        columns |= dict.fromkeys(row)
        rows.append(row)
        lines.append(number)
    return Table(list(columns), rows, lines)


def _read_parquet(path: Path) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        names: list[str] = table.column_names
        # Rows of a table whose names repeat would lose columns, so they are not made.
        rows: Rows = table.to_pylist() if len(set(names)) == len(names) else []
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"is not a Parquet file that can be read: {(str(error) or type(error).__name__).splitlines()[0][:160]}",
            where=str(path),
            mend="the file may have been cut off, or be of another kind; write it anew",
        ) from None
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError("a column stands twice", where=str(path), field=twice, value=twice)
    return Table(names, rows, metadata=table.schema.metadata or {})


def numbers(rows: Iterable[Mapping[str, Any]], integer_columns: Sequence[str]) -> Rows:
    """Rows without empty cells; 8.0 in a column of integers is 8.

    Tables written by data-frame libraries turn a column of integers into floats as soon as one
    cell is empty, so a whole number counts as an integer there. 8.5 stays 8.5, for validation to refuse.
    """

    def cell(name: str, value: Any) -> Any:
        whole = isinstance(value, float) and name in integer_columns and value.is_integer()
        return int(value) if whole else value

    return [{k: cell(k, v) for k, v in row.items() if v is not None} for row in rows]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every key of the rows, in order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def save_table(table: Any, path: str | Path, columns: Sequence[str] | None = None) -> None:
    """Write rows (mappings) or a data frame as CSV or Parquet, by the ending of `path`; atomic.

    `columns` fixes names and order (needed when there may be no rows). Nested values (mappings,
    lists) become JSON text. None and NaN are empty cells. Raises InputError for other endings.
    """
    path = Path(path)
    rows = table.to_dict("records") if hasattr(table, "to_dict") else list(table)
    names = list(columns) if columns is not None else columns_of(rows) or _frame_columns(table)
    suffix = path.suffix.lower()
    if suffix == ".csv":
        write_atomic(path, csv_text(names, ([_plain(row.get(name)) for name in names] for row in rows)))
    elif suffix == ".parquet":
        save_parquet(path, {name: [_plain(row.get(name)) for row in rows] for name in names})
    else:
        raise InputError(
            f"unknown kind of table: {suffix or 'no ending'}",
            where=str(path),
            allowed="a file ending in .csv or .parquet",
        )


def csv_text(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV with `\\n` line ends; None is empty, truth values as in JSON, floats the shortest decimals that
    read back the same."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([str(v).lower() if isinstance(v, bool) else v for v in row] for row in rows)
    return out.getvalue()


def save_parquet(
    path: Path,
    columns: Mapping[str, Any],
    metadata: Mapping[bytes, bytes] | None = None,
    kinds: Mapping[str, str] | None = None,
) -> None:
    """Write columns (lists or arrays) with `metadata` in the schema; atomic.

    `kinds` names Arrow types (`int64`, …) of columns that may be empty throughout.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = kinds or {}
    arrays = {
        name: pa.array(values, kinds[name]) if name in kinds else _arrow(pa, values)
        for name, values in columns.items()
    }
    table = pa.table(arrays)
    if metadata:
        table = table.replace_schema_metadata(dict(metadata))
    replace_atomic(path, lambda temporary: pq.write_table(table, temporary))


def _arrow(pa: Any, values: Any) -> Any:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        # Mixed kinds in one column: numbers become floats, anything else text.
        if all(v is None or isinstance(v, int | float) for v in values):
            return pa.array([None if v is None else float(v) for v in values])
        return pa.array([None if v is None else str(v) for v in values])


def _frame_columns(table: Any) -> list[str]:
    return [str(name) for name in getattr(table, "columns", ())]


def _plain(value: Any) -> Any:
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False)
    return value

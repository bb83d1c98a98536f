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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from has.errors import InputError
from has.files.atomic import replace_atomic, write_atomic
from has.files.jsonl import parse_json
from has.files.reading import existing, read_text, text_stream

Rows = list[dict[str, Any]]
ENDINGS = (".csv", ".jsonl", ".parquet")

_INTEGER = re.compile(r"[-+]?\d{1,300}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Table:
    """Column names and rows; an empty cell is None.

    `lines` says where each row of a text file stands (from 1); `metadata` is that of a Parquet schema.
    A block of a longer table begins with its row `first`.
    """

    columns: list[str]
    rows: Rows
    lines: list[int] | None = None
    metadata: Mapping[bytes, bytes] = field(default_factory=dict)
    first: int = 0

    def place(self, row: int) -> str:
        """How people find row `row` (from 0) of the whole table."""
        return f"row {row}, counted from 0" if self.lines is None else f"line {self.lines[row - self.first]}"


BLOCK_ROWS = 65_536


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
    # The header of a CSV is looked at before its rows: a name too many makes every row look wrong.
    of_header = check_columns if str(path).lower().endswith(".csv") else None
    blocks = list(table_blocks(path, text_columns, of_header))
    columns = list(dict.fromkeys(name for block in blocks for name in block.columns))
    if check_columns is not None:
        check_columns(columns)
    lines = [line for block in blocks for line in block.lines or ()]
    rows = [row for block in blocks for row in block.rows]
    textual = bool(blocks) and blocks[0].lines is not None
    return Table(columns, rows, lines if textual else None, blocks[0].metadata if blocks else {})


def table_blocks(
    path: str | Path,
    text_columns: Sequence[str] = (),
    check_columns: Callable[[list[str]], None] | None = None,
) -> Iterator[Table]:
    """The same in blocks of at most `BLOCK_ROWS` rows, so that a file of any length can be read; at least one."""
    path = existing(path)
    check = check_columns or (lambda _: None)
    match path.suffix.lower():
        case ".csv":
            yield from _csv_blocks(path, text_columns, check)
        case ".jsonl":
            for block in _jsonl_blocks(path):
                check(block.columns)
                yield block
        case ".parquet":
            for block in _parquet_blocks(path):
                check(block.columns)
                yield block
        case _:
            raise InputError(
                f"unknown kind of table: {path.suffix or 'no ending'}",
                where=str(path),
                allowed="a file ending in " + ", ".join(ENDINGS),
            )


class _Lines:
    """Lines of a text file, each with its end, one at a time; `last` is the one before."""

    def __init__(self, path: Path, stream: TextIO) -> None:
        self.path = path
        self.last = ""
        self._stream = stream

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        try:
            line = next(self._stream)
        except UnicodeDecodeError:
            line = "\0"
        if "\0" in line:
            read_text(self.path)  # reads it whole, and raises with the line and the byte
        self.last = line
        return line


def _csv_blocks(
    path: Path, text_columns: Sequence[str], check: Callable[[list[str]], None]
) -> Iterator[Table]:
    columns: list[str] = []
    rows: Rows = []
    lines: list[int] = []
    first, line = 0, 1
    with text_stream(path) as stream:
        source = _Lines(path, stream)
        reader = csv.reader(source, strict=True)
        try:
            for cells in reader:
                if cells and not columns:
                    columns = _header(path, cells)
                    check(columns)
                elif cells:
                    row = first + len(rows)
                    if len(cells) != len(columns):
                        raise _ragged(path, cells, columns, row, line, cut=not source.last.endswith("\n"))
                    rows.append(_csv_row(path, cells, columns, text_columns, row, line))
                    lines.append(line)
                    if len(rows) == BLOCK_ROWS:
                        yield Table(columns, rows, lines, first=first)
                        first, rows, lines = first + len(rows), [], []
                line = reader.line_num + 1
        except csv.Error as error:
            raise InputError(f"line {line} is not CSV: {error}", where=str(path)) from None
    if not columns:
        raise InputError(
            "is empty", where=str(path), mend="write a header line with the names of the columns"
        )
    if rows or first == 0:
        yield Table(columns, rows, lines, first=first)


def _csv_row(
    path: Path, cells: list[str], columns: list[str], text_columns: Sequence[str], row: int, line: int
) -> dict[str, Any]:
    return {
        name: (cell or None) if name in text_columns else _number(path, cell, name, row, line)
        for name, cell in zip(columns, cells, strict=True)
    }


def _ragged(
    path: Path, cells: list[str], columns: list[str], row: int, line: int, *, cut: bool
) -> InputError:
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


def _jsonl_blocks(path: Path) -> Iterator[Table]:
    columns: dict[str, None] = {}
    rows: Rows = []
    lines: list[int] = []
    first = 0
    with text_stream(path) as stream:
        for number, line in enumerate(_Lines(path, stream), 1):
            if not line.strip():
                continue
            row = parse_json(line.rstrip("\r\n"), f"{path}, line {number}")
            if not isinstance(row, dict):
                raise InputError(
                    f"line {number} is no JSON object",
                    where=str(path),
                    field=f"rows.{first + len(rows)}",
                    value=row,
                )
            columns |= dict.fromkeys(row)
            rows.append(row)
            lines.append(number)
            if len(rows) == BLOCK_ROWS:
                yield Table(list(columns), rows, lines, first=first)
                first, columns, rows, lines = first + len(rows), {}, [], []
    if rows or first == 0:
        yield Table(list(columns), rows, lines, first=first)


def _parquet_blocks(path: Path) -> Iterator[Table]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = 0
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            names: list[str] = schema.names
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise InputError("a column stands twice", where=str(path), field=twice, value=twice)
            for batch in file.iter_batches(BLOCK_ROWS):
                rows: Rows = batch.to_pylist()
                yield Table(names, rows, metadata=schema.metadata or {}, first=first)
                first += len(rows)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"is not a Parquet file that can be read: {(str(error) or type(error).__name__).splitlines()[0][:160]}",
            where=str(path),
            mend="the file may have been cut off, or be of another kind; write it anew",
        ) from None
    if first == 0:
        yield Table(names, [], metadata=schema.metadata or {})


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

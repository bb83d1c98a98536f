"""Every format of trace against every kind of fault that files have: read as if there were none, counted, or refused.

One table, so that a format or a kind that is added has a row or a column to fill. What exactly is said of
single values stands in `test_trace_formats.py` and `test_trace_files.py`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from has.errors import InputError
from has.files.formats.convert import convert
from has.files.trace import COLUMNS, load_trace
from tests.files.foreign import WRITERS, asks, expected, found, servegen

ROWS = asks(120)
FOREIGN = list(WRITERS)
OWN = ["own csv", "own jsonl"]
FORMATS = [*FOREIGN, "servegen", *OWN]
JSON = ("mooncake", "mooncake, delays", "own jsonl")
TIMES = {
    "azure 2023": "TIMESTAMP",
    "azure 2024": "TIMESTAMP",
    "azure-lmm": "TIMESTAMP",
    "mooncake": "timestamp",
    "mooncake, delays": "delay",
    "burstgpt": "Timestamp",
    "own csv": "arrival_s",
    "own jsonl": "arrival_s",
}
COUNTS = {
    "azure 2023": "GeneratedTokens",
    "azure 2024": "GeneratedTokens",
    "azure-lmm": "GeneratedTokens",
    "mooncake": "output_length",
    "mooncake, delays": "output_length",
    "burstgpt": "Response tokens",
    "own csv": "output_tokens",
    "own jsonl": "output_tokens",
}
AT = 60
"""The row that is spoilt."""


def own_rows() -> list[dict[str, object]]:
    of = expected("azure-lmm", ROWS)
    return [
        dict(zip(COLUMNS, (ms / 1e3, ("text", "image")[m], i, media, prompt, out), strict=True))
        for ms, m, i, media, prompt, out in zip(*of.values(), strict=True)
    ]


def text_of(format: str) -> str:
    if format == "own jsonl":
        return "".join(json.dumps(row) + "\n" for row in own_rows())
    if format == "own csv":
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(own_rows())
        return out.getvalue()
    return WRITERS[format][1](ROWS)


def table_of(format: str) -> tuple[list[str], list[dict[str, object]]]:
    text = text_of(format)
    if format in JSON:
        rows = [json.loads(line) for line in text.splitlines()]
        return list(rows[0]), rows
    reader = csv.DictReader(io.StringIO(text))
    return list(reader.fieldnames or []), list(reader)


def written(format: str, names: list[str], rows: list[dict[str, object]]) -> bytes:
    if format in JSON:
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def with_value(format: str, name: str, value: object) -> bytes:
    names, rows = table_of(format)
    rows[AT][name] = value
    return written(format, names, rows)


def truncated(format: str) -> bytes:
    whole = text_of(format).rstrip("\n")
    return whole[: whole.rindex(":" if format in JSON else ",") - 3].encode()


def wrong_columns(format: str) -> bytes:
    """One column under a name that nobody knows."""
    names, rows = table_of(format)
    was = COUNTS[format]
    renamed = [{("tokens out" if k == was else k): v for k, v in row.items()} for row in rows]
    return written(format, ["tokens out" if n == was else n for n in names], renamed)


def wrong_units(format: str) -> bytes:
    """Times a million times too long or short; where they are text, numbers since 1970."""
    names, rows = table_of(format)
    for row, ask in zip(rows, ROWS, strict=True):
        if format.startswith("azure"):
            row[TIMES[format]] = 1_700_000_000 + ask.ms // 1000
        elif format.startswith("own"):
            row[TIMES[format]] = 1_700_000_000_000_000 + ask.ms * 1000
        else:
            row[TIMES[format]] = float(str(row[TIMES[format]])) * (1e6 if format == "burstgpt" else 1e-6)
    return written(format, names, rows)


def unsorted(format: str) -> bytes:
    """One row before the one before it, and not by a tie."""
    names, rows = table_of(format)
    time = TIMES[format]
    place = next(i for i in range(AT, len(rows)) if ROWS[i].ms > ROWS[i - 1].ms > ROWS[0].ms)
    rows[place][time] = rows[0][time]
    return written(format, names, rows)


def same_instant(format: str) -> bytes:
    names, rows = table_of(format)
    time = TIMES[format]
    rows[AT][time] = 0 if format == "mooncake, delays" else rows[AT - 1][time]
    return written(format, names, rows)


SPOIL: dict[str, Callable[[str], bytes]] = {
    "truncated": truncated,
    "wrong columns": wrong_columns,
    "wrong units": wrong_units,
    "NaN": lambda f: with_value(f, COUNTS[f], float("nan")),
    "negative": lambda f: with_value(f, COUNTS[f], -7),
    "unsorted": unsorted,
    "same instant": same_instant,
    "BOM": lambda f: b"\xef\xbb\xbf" + text_of(f).encode(),
    "CRLF": lambda f: text_of(f).replace("\n", "\r\n").encode(),
    "gz": lambda f: gzip.compress(text_of(f).encode()),
}
READ, COUNTED = "read", "counted"
USUAL = {
    "truncated": COUNTED,
    "wrong columns": "tokens out|GeneratedTokens|Response tokens|output_length|output_tokens",
    "wrong units": "unit|instant|range",
    "NaN": COUNTED,
    "negative": COUNTED,
    "unsorted": COUNTED,
    "same instant": READ,
    "BOM": READ,
    "CRLF": READ,
    "gz": READ,
}
"""By kind what comes of it: read whole, one row counted as bad, or an error that says so much."""
OTHERWISE = {
    ("mooncake, delays", "unsorted"): READ,  # a delay is a delay, whatever stood before
    # What people write for HAS is read strictly: no row is skipped.
    **{
        (own, kind): said
        for own in OWN
        for kind, said in {
            "truncated": "values for|not JSON",
            "NaN": "NaN|number|finite",
            "negative": "range",
            "unsorted": "earlier",
            "gz": "unknown kind|not UTF-8|gz",
        }.items()
    },
}


def outcome(format: str, content: bytes, tmp_path: Path) -> str:
    """What came of it; raises InputError."""
    if format in OWN:
        file = tmp_path / f"trace.{format.removeprefix('own ')}"
        if content.startswith(b"\x1f\x8b"):
            file = file.with_name(file.name + ".gz")
        file.write_bytes(content)
        assert len(load_trace(file)) == len(ROWS)
        return READ
    (tmp_path / "source").write_bytes(content)
    account = convert(tmp_path / "source", WRITERS[format][0], tmp_path / "out.csv").account
    assert account.seen == len(ROWS)
    assert len(load_trace(tmp_path / "out.csv")) == len(ROWS) - account.bad
    assert account.bad in (0, 1)
    return COUNTED if account.bad else READ


@pytest.mark.parametrize("kind", list(SPOIL))
@pytest.mark.parametrize("format", [f for f in FORMATS if f != "servegen"])
def test_a_fault_is_read_over_counted_or_refused(format: str, kind: str, tmp_path: Path) -> None:
    content = SPOIL[kind](format)
    assert content != text_of(format).encode()
    due = OTHERWISE.get((format, kind), USUAL[kind])
    if due not in (READ, COUNTED):
        with pytest.raises(InputError, match=due) as refused:
            outcome(format, content, tmp_path)
        assert refused.value.where
        assert not (tmp_path / "out.csv").exists()
        return
    assert outcome(format, content, tmp_path) == due
    if due == READ and kind in ("BOM", "CRLF", "gz"):
        table = (
            tmp_path / "out.csv" if format in FOREIGN else tmp_path / f"trace.{format.removeprefix('own ')}"
        )
        kind_of = WRITERS[format][0] if format in FOREIGN else "azure-lmm"
        assert found(table) == expected(kind_of, ROWS)


# A folder of windows has its own ways to be wrong.

WINDOWS = [[(0.5, "Gamma", 0.5)] * 60]


def _lines(file: Path, change: Callable[[list[str]], None]) -> None:
    lines = file.read_text().splitlines()
    change(lines)
    file.write_text("\n".join(lines) + "\n")


def _cell(lines: list[str], row: int, column: int, value: str) -> None:
    cells = lines[row].split(",")
    cells[column] = value
    lines[row] = ",".join(cells)


def _cut_cells(lines: list[str]) -> None:
    lines[:] = [line.rpartition(",")[0] for line in lines]


def _each(lines: list[str], column: int, change: Callable[[float], float]) -> None:
    for row, line in enumerate(lines):
        _cell(lines, row, column, repr(change(float(line.split(",")[column]))))


def _packed(folder: Path) -> None:
    for file in list(folder.iterdir()):
        file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()


def _bytes(folder: Path, change: Callable[[bytes], bytes]) -> None:
    for file in folder.iterdir():
        file.write_bytes(change(file.read_bytes()))


TRACE, SIZES = "chunk-0-trace.csv", "chunk-0-dataset.json"
SERVEGEN: dict[str, tuple[str, Callable[[Path], None]]] = {
    "truncated": (COUNTED, lambda f: (f / TRACE).write_text((f / TRACE).read_text().rstrip()[:-12])),
    "truncated sizes": ("not JSON", lambda f: (f / SIZES).write_text((f / SIZES).read_text()[:-12])),
    "wrong columns": ("6 values", lambda f: _lines(f / TRACE, _cut_cells)),
    "wrong sizes": ("no sizes", lambda f: (f / SIZES).write_text((f / SIZES).read_text().replace("output_tokens", "out"))),
    "wrong units": ("unit", lambda f: _lines(f / TRACE, lambda rows: _each(rows, 0, lambda x: 1000 * x))),
    "NaN": (COUNTED, lambda f: _lines(f / TRACE, lambda rows: _cell(rows, 30, 1, "nan"))),
    "negative": (COUNTED, lambda f: _lines(f / TRACE, lambda rows: _cell(rows, 30, 1, "-1"))),
    "unsorted": (COUNTED, lambda f: _lines(f / TRACE, lambda rows: _cell(rows, 30, 0, "600"))),
    "same instant": (COUNTED, lambda f: _lines(f / TRACE, lambda rows: _cell(rows, 30, 0, rows[29].split(",")[0]))),
    "BOM": (READ, lambda f: _bytes(f, lambda raw: b"\xef\xbb\xbf" + raw)),
    "CRLF": (READ, lambda f: _bytes(f, lambda raw: raw.replace(b"\n", b"\r\n"))),
    "gz": (READ, _packed),
    "cut gz": ("damaged gzip", lambda f: (_packed(f), (f / f"{SIZES}.gz").write_bytes((f / f"{SIZES}.gz").read_bytes()[:-30]))[0]),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(SERVEGEN))
def test_a_fault_in_a_folder_of_windows(kind: str, tmp_path: Path) -> None:
    due, spoil = SERVEGEN[kind]
    folder = servegen(tmp_path / "in", WINDOWS)
    whole = found_rows(folder, tmp_path / "whole.csv")
    spoil(folder)
    if due not in (READ, COUNTED):
        with pytest.raises(InputError, match=due):
            convert(folder, "servegen", tmp_path / "out.csv")
        return
    account = convert(folder, "servegen", tmp_path / "out.csv").account
    assert account.bad == (due == COUNTED)
    if due == READ:
        assert (tmp_path / "out.csv").read_text() == whole


def found_rows(folder: Path, out: Path) -> str:
    convert(folder, "servegen", out)
    return out.read_text()


def test_no_kind_is_forgotten_for_any_format() -> None:
    assert set(SPOIL) == set(USUAL) <= set(SERVEGEN)
    assert set(TIMES) == set(COUNTS) == set(FORMATS) - {"servegen"}

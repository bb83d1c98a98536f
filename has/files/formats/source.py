"""Text of a foreign trace, line by line: plain or gzip, with or without byte order mark, any line ends."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path

from has.errors import InputError
from has.files.formats.rows import Account, BadRow
from has.files.reading import existing, read_bytes, text_from

LONGEST_LINE = 1 << 24
"""Bytes; a longer line is none of a trace's (a whole file without line ends, a binary)."""
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


def text_lines(path: str | Path, account: Account) -> Iterator[tuple[int, str]]:
    """(line number, text without its end) of every line that is not blank.

    Lines that are no UTF-8 are counted as bad rows. A compressed file that ends early, or is damaged,
    raises InputError, as does one that is not text at all.
    """
    path = existing(path)
    try:
        with _opened(path) as stream:
            number = 0
            while line := stream.readline(LONGEST_LINE):
                number += 1
                if number == 1:
                    line = line.removeprefix(_BOM)
                if len(line) >= LONGEST_LINE or b"\0" in line:
                    raise InputError(
                        f"is not text: line {number}",
                        where=str(path),
                        mend="name a text file, or a .gz of one",
                    )
                try:
                    text = line.decode().rstrip("\r\n")
                except UnicodeDecodeError as error:
                    account.seen += 1
                    account.add(
                        f"line {number}", BadRow("", "is not UTF-8 text", line[error.start : error.end])
                    )
                    continue
                if text.strip():
                    yield number, text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, error) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error


def whole_text(path: Path) -> str:
    """All of a text file, plain or gzip. InputError where it is damaged, or none."""
    raw = read_bytes(path)
    if raw.startswith(_GZIP):
        try:
            raw = gzip.decompress(raw)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _damaged(path, error) from None
    return text_from(raw, path)


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(
        f"is a damaged gzip file: {error}",
        where=str(path),
        mend="it may have been cut off while it was copied; fetch it again",
    )


def _opened(path: Path) -> gzip.GzipFile | BufferedReader:
    with path.open("rb") as stream:
        compressed = stream.read(2) == _GZIP
    return gzip.open(path) if compressed else path.open("rb")


def csv_rows(
    path: str | Path,
    account: Account,
    required: Sequence[str],
    check_header: Callable[[list[str]], None] = lambda _: None,
) -> Iterator[tuple[int, list[str]]]:
    """(line number, the cells of `required`, in that order) of each row; ragged rows are counted as bad.

    Raises InputError where the header lacks a column or names one twice; `check_header` may refuse more.
    """
    pick: list[int] = []
    width = 0
    for number, text in text_lines(path, account):
        cells = _cells(text)
        if not pick:
            pick = _columns(path, [name.strip() for name in cells or []], required, check_header)
            width = len(cells or [])
            continue
        account.seen += 1
        if cells is None:
            account.add(f"line {number}", BadRow("", "is not CSV", text))
        elif len(cells) != width:
            account.add(f"line {number}", BadRow("", f"has not the {width} values of the header", text))
        else:
            yield number, [cells[i] for i in pick]
    if not pick:
        raise InputError(
            "is empty",
            where=str(path),
            allowed="a header line with " + ", ".join(required),
            mend="fetch it again",
        )


def _cells(text: str) -> list[str] | None:
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error:
        return None


def _columns(
    path: str | Path, header: list[str], required: Sequence[str], check: Callable[[list[str]], None]
) -> list[int]:
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise InputError("the header names a column twice", where=str(path), field=twice, value=twice)
    check(header)
    missing = [name for name in required if name not in header]
    if missing:
        raise InputError(
            f"the column {missing[0]} is missing from the header",
            where=str(path),
            field=missing[0],
            value=",".join(header),
            allowed="the columns " + ", ".join(required),
            mend="check that --format names the right one",
        )
    return [header.index(name) for name in required]

"""JSON, strictly; and JSON lines as an append-only log that survives a crash at any instant."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from has.errors import InputError
from has.files.reading import read_bytes


def parse_json(text: str, where: str = "argument") -> Any:
    """One JSON document; a key twice, NaN and infinities are errors."""
    constants: list[str] = []

    def constant(name: str) -> float:
        constants.append(name)
        return float(name)

    try:
        document = json.loads(text, object_pairs_hook=_no_repeats, parse_constant=constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        cut = error.pos >= len(text.rstrip())
        raise InputError(
            f"is not JSON: {place}: {error.msg}",
            where=where,
            mend="the file may have been cut off" if cut else "check quotes, commas and brackets there",
        ) from None
    except RecursionError:
        raise InputError("is nested too deeply", where=where) from None
    except InputError as error:
        raise error.at(where) from None
    except ValueError as error:
        raise InputError(f"holds a number that cannot be read: {error}", where=where) from None
    if constants:
        raise InputError(
            "must be a finite number",
            where=where,
            field=next(iter(not_finite(document)), ""),
            value=float(constants[0]),
            allowed="a finite number",
        )
    return document


def not_finite(data: Any, path: str = "") -> dict[str, float]:
    """Dotted path → value of every NaN and infinity in plain data, keys of mappings included."""
    if isinstance(data, float):
        return {} if math.isfinite(data) else {path: data}
    if isinstance(data, Mapping):
        inside = [(key, value) for key, value in data.items()]
    else:
        inside = list(enumerate(data)) if isinstance(data, list | tuple) else []
    found: dict[str, float] = {}
    for key, value in inside:
        place = f"{path}.{key}" if path else str(key)
        found |= (
            {place: key} if isinstance(key, float) and not math.isfinite(key) else not_finite(value, place)
        )
    return found


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"the key {twice} stands twice", field=twice, mend="keep one of the two")
    return mapping


def append_line(path: str | Path, obj: Any) -> None:
    """Append `obj` as one line of JSON and wait until the disk holds it.

    The line goes out in a single write, so a crash can tear only the last one. numpy's scalars and
    arrays are numbers and lists; NaN is a ValueError.
    """
    path = Path(path)
    line = (
        json.dumps(obj, ensure_ascii=False, allow_nan=False, default=_numpy).encode(errors="backslashreplace")
        + b"\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        while line:
            line = line[os.write(descriptor, line) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _numpy(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def read_lines(path: str | Path, repair: bool = False) -> list[Any]:
    """All objects of a log. A last line that a crash tore is skipped; `repair` also cuts it off the file.

    A damaged line anywhere else raises InputError: no crash of ours leaves one.
    """
    raw = read_bytes(path)
    whole, newline, torn = raw.rpartition(b"\n")
    kept = whole + newline
    objects = []
    for number, line in enumerate(whole.split(b"\n") if kept else [], 1):
        try:
            objects.append(parse_json(line.decode(), f"{path}, line {number}"))
        except UnicodeDecodeError:
            raise InputError("is not UTF-8 text", where=f"{path}, line {number}") from None
    if torn and repair:
        os.truncate(path, len(kept))
    return objects

"""Profiles: one Parquet file with its metadata inside, or a CSV with a JSON of the same name beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from has.core.profile import Profile, ProfileMetadata, ProfilePoint, grid_hole
from has.errors import InputError
from has.files.atomic import write_atomic
from has.files.jsonl import parse_json
from has.files.reading import existing, read_text
from has.files.shipped import named
from has.files.tables import Table, csv_text, numbers, read_table, save_parquet
from has.files.validate import validate

METADATA_KEY = b"has_profile"
"""Key of the JSON metadata in the Parquet schema."""

COLUMNS = tuple(ProfilePoint.model_fields)
REQUIRED = tuple(name for name, field in ProfilePoint.model_fields.items() if field.is_required())
_INTEGERS = ("batch", "tokens", "samples")
_TEXTS = ("stage", "beside")


def load_profile(path: str | Path) -> Profile:
    """The profile in `path` (`.parquet`, or `.csv` with its `.json`), or the shipped one of that name. Raises InputError."""
    path = named(path, "profiles")
    if path.suffix.lower() not in (".parquet", ".csv"):
        raise InputError(
            f"unknown kind of profile: {path.suffix or 'no ending'}",
            where=str(path),
            allowed="a file ending in .parquet, or .csv with a .json beside it",
        )
    if path.suffix.lower() == ".csv":
        table = read_table(path, _TEXTS, lambda columns: _check_columns(path, columns))
        metadata = _beside(path)
    else:
        table = read_table(path)
        metadata = _embedded(path, table.metadata)  # first: it tells a profile from any other table
        _check_columns(path, table.columns)
    if not table.rows:
        raise InputError("has no rows", where=str(path), field="rows", mend="the file may have been cut off")
    try:
        profile = profile_from_rows(metadata, table.rows, where=str(path))
    except InputError as error:
        raise _with_line(error, path, table) from None
    if (hole := grid_hole(profile.rows)) is not None:
        raise InputError(
            hole.words,
            where=str(path),
            field="rows",
            allowed=f"every combination of {hole.axes}",
            mend="the file may have been cut off; or measure the missing point",
        )
    return profile


def profile_from_rows(
    metadata: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], where: str = "argument"
) -> Profile:
    """A profile from plain mappings; a cell that is None counts as absent. Raises InputError."""
    try:
        validate(ProfileMetadata, metadata, where)
    except InputError as error:
        # A wrong version is the only finding, and what is no mapping has none; all else is found again below.
        if error.field in ("version", ""):
            error.field = f"metadata.{error.field}".rstrip(".")
            raise
    return validate(Profile, {"metadata": metadata, "rows": numbers(list(map(dict, rows)), _INTEGERS)}, where)


def save_profile(profile: Profile, path: str | Path, csv_twin: bool = False) -> None:
    """Write `profile` to `path` (`.parquet`, or `.csv` plus `.json`); atomic. `csv_twin` writes both kinds."""
    path = Path(path)
    rows = [row.model_dump(mode="json") for row in profile.rows]
    metadata = json.dumps(profile.metadata.model_dump(mode="json", exclude_none=True), ensure_ascii=False)
    match path.suffix.lower():
        case ".parquet":
            columns = {name: [row[name] for row in rows] for name in COLUMNS}
            filled = {name: cells for name, cells in columns.items() if any(c is not None for c in cells)}
            save_parquet(path, filled, {METADATA_KEY: metadata.encode()})
        case ".csv":
            csv_twin = True
        case _:
            raise InputError("a profile ends in .parquet or .csv", where=str(path))
    if csv_twin:
        pretty = json.dumps(json.loads(metadata), ensure_ascii=False, indent=2)
        write_atomic(path.with_suffix(".json"), pretty + "\n")
        write_atomic(path.with_suffix(".csv"), csv_text(COLUMNS, [[row[c] for c in COLUMNS] for row in rows]))


def metadata_of(path: str | Path) -> ProfileMetadata:
    """The metadata alone, without reading the rows. Raises InputError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = existing(path)
    if path.suffix.lower() == ".csv":
        return validate(ProfileMetadata, _beside(path), str(path.with_suffix(".json")))
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"is not a Parquet file that can be read: {error}", where=str(path)) from None
    return validate(ProfileMetadata, _embedded(path, schema.metadata or {}), str(path))


def _embedded(path: Path, metadata: Mapping[bytes, bytes]) -> Any:
    if METADATA_KEY not in metadata:
        raise InputError(
            f"is a Parquet file, but no profile: its schema holds no {METADATA_KEY.decode()}",
            where=str(path),
            field="metadata",
            mend="take a profile that `has profile` wrote, or give a .csv with its metadata in a .json",
        )
    try:
        return parse_json(metadata[METADATA_KEY].decode(), f"{path}, metadata")
    except UnicodeDecodeError:
        raise InputError("the metadata is not UTF-8 text", where=str(path), field="metadata") from None


def _beside(path: Path) -> Any:
    twin = path.with_suffix(".json")
    if not twin.exists():
        raise InputError(
            f"a CSV profile needs its metadata beside it, in {twin.name}, which is not there",
            where=str(path),
            field="metadata",
            mend=f"write {twin.name} with at least version, device, model, source",
        )
    return parse_json(read_text(twin), str(twin))


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    """Columns are checked once for the table, not once a row."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise InputError(
            "unknown column", where=str(path), field=unknown[0], value=unknown[0], allowed=", ".join(COLUMNS)
        )
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise InputError(
            f"the required column {missing[0]} is missing",
            where=str(path),
            field=missing[0],
            allowed="required: " + ", ".join(REQUIRED),
            mend=f"add the column {missing[0]}; or the file may have been cut off",
        )


def _with_line(error: InputError, path: Path, table: Table) -> InputError:
    parts = error.field.split(".")
    if len(parts) > 1 and parts[0] == "rows" and parts[1].isdigit():
        error.message += f" ({table.place(int(parts[1]))})"
    elif parts[0] == "metadata" and path.suffix.lower() == ".csv":
        error.where = str(path.with_suffix(".json"))
        error.field = ".".join(parts[1:])
    return error

"""A trace table written batch by batch: CSV, JSON lines or Parquet, by the ending."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from has.core.stage import MODALITIES
from has.errors import InputError
from has.files.atomic import replace_atomic
from has.files.formats.rows import ARRIVAL, COLUMNS, MODALITY, Batch
from has.files.trace import COLUMNS as NAMES

ENDINGS = (".csv", ".jsonl", ".parquet")


def save_batches(batches: Iterable[Batch], path: Path) -> None:
    """Write the trace table of `batches`; atomic. Times are seconds, exact to 1 ns."""
    writers = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
    write = writers.get(path.suffix.lower())
    if write is None:
        raise InputError(
            f"unknown kind of table: {path.suffix or 'no ending'}",
            where=str(path),
            allowed="a file ending in " + ", ".join(ENDINGS),
        )
    replace_atomic(path, lambda temporary: write(temporary, batches))


def _rows(batch: Batch) -> Iterator[tuple[Any, ...]]:
    for arrival, modality, *sizes in batch.tolist():
        yield arrival / 1e9, MODALITIES[modality], *sizes


def _csv(path: Path, batches: Iterable[Batch]) -> None:
    with path.open("w", encoding="utf-8", newline="") as out:
        out.write(",".join(NAMES) + "\n")
        for batch in batches:
            out.write("".join("{!r},{},{},{},{},{}\n".format(*row) for row in _rows(batch)))


def _jsonl(path: Path, batches: Iterable[Batch]) -> None:
    with path.open("w", encoding="utf-8", newline="") as out:
        for batch in batches:
            out.write("".join(json.dumps(dict(zip(NAMES, row, strict=True))) + "\n" for row in _rows(batch)))


def _parquet(path: Path, batches: Iterable[Batch]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"arrival_s": pa.float64(), "modality": pa.string()}
    schema = pa.schema([(name, kinds.get(name, pa.int64())) for name in NAMES])
    with pq.ParquetWriter(path, schema) as out:
        for batch in batches:
            columns = [
                batch[:, ARRIVAL] / 1e9,
                [MODALITIES[code] for code in batch[:, MODALITY].tolist()],
                *(batch[:, i] for i in range(MODALITY + 1, len(COLUMNS))),
            ]
            out.write_table(pa.table(dict(zip(NAMES, map(pa.array, columns), strict=True)), schema=schema))

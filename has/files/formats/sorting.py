"""Rows put in order of arrival in bounded memory: sorted runs on disk, then merged."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice

import numpy as np

from has.files.formats.rows import Row

RUN_ROWS = 500_000
_BLOCK_ROWS = 4096
_WIDTH = 7  # the line and the six columns of a row
_ROW_BYTES = 8 * _WIDTH

Placed = tuple[int, Row]


def by_arrival(rows: Iterable[Placed], run_rows: int = RUN_ROWS) -> Iterator[Placed]:
    """(line, row) in order of arrival; equal arrivals keep the order of the file."""
    rows = iter(rows)
    with tempfile.TemporaryFile() as spill:
        runs: list[tuple[int, int]] = []
        while run := list(islice(rows, run_rows)):
            run.sort(key=_arrival)
            runs.append((spill.tell(), len(run)))
            spill.write(np.array([(line, *row) for line, row in run], np.int64).tobytes())
        spill.flush()
        yield from merge(*(_read(spill.fileno(), start, count) for start, count in runs), key=_arrival)


def _arrival(placed: Placed) -> int:
    return placed[1][0]


def _read(file: int, start: int, count: int) -> Iterator[Placed]:
    for first in range(0, count, _BLOCK_ROWS):
        size = min(_BLOCK_ROWS, count - first) * _ROW_BYTES
        block = np.frombuffer(os.pread(file, size, start + first * _ROW_BYTES), np.int64)
        for line, arrival, modality, items, media, prompt, output in block.reshape(-1, _WIDTH).tolist():
            yield line, (arrival, modality, items, media, prompt, output)

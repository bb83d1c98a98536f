"""BurstGPT (HPMLL/BurstGPT): Timestamp in seconds, Request tokens, Response tokens; text only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from has.files.formats.rows import TEXT, Account, BadRow, Batch, Row, count, in_batches, nanoseconds
from has.files.formats.source import csv_rows

TIME, REQUEST, RESPONSE = "Timestamp", "Request tokens", "Response tokens"
FAILED = "Response tokens 0: the request failed"


def read(path: Path, account: Account) -> Iterator[Batch]:
    """Its requests, in batches; those that failed (no response token) are left out and counted."""
    return in_batches(_rows(path, account), account, TIME)


def _rows(path: Path, account: Account) -> Iterator[tuple[int, Row]]:
    for line, (time, request, response) in csv_rows(path, account, (TIME, REQUEST, RESPONSE)):
        try:
            output = count(response, RESPONSE)
            row = (nanoseconds(time, TIME, 1_000_000_000), TEXT, 0, 0, count(request, REQUEST), output)
        except BadRow as bad:
            account.add(f"line {line}", bad)
            continue
        if output == 0:
            account.left_out[FAILED] += 1
        else:
            yield line, row

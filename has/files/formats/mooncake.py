"""Mooncake's traces, and aiperf's `mooncake_trace` after them: JSON lines, text only.

input_length, output_length, and when: `timestamp` in ms, or `delay` in ms after the request before
(of the same `session_id`, where there is one). hash_ids name 512-token blocks of shared prefix; they
are dropped, for HAS models no prefix cache.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from has.files.formats.rows import TEXT, Account, BadRow, Batch, Row, count, in_batches, nanoseconds
from has.files.formats.sorting import by_arrival
from has.files.formats.source import text_lines

TIME, DELAY, SESSION, INPUT, OUTPUT, HASHES = (
    "timestamp", "delay", "session_id", "input_length", "output_length", "hash_ids",
)  # fmt: skip
_MS = 1_000_000


def read(path: Path, account: Account) -> Iterator[Batch]:
    """Its requests, in batches. Sessions may stand one after another: they are then put in order of time."""
    rows = _rows(path, account)
    if _has_sessions(path):
        account.notes.append(
            "turns with a delay are placed that long after the arrival of the turn before: when its answer ended, "
            "no trace can say"
        )
        rows = by_arrival(rows)
    return in_batches(rows, account, TIME)


def _has_sessions(path: Path) -> bool:
    for _, text in text_lines(path, Account(str(path))):
        try:
            return SESSION in _parsed(text)
        except BadRow:
            continue
    return False


def _rows(path: Path, account: Account) -> Iterator[tuple[int, Row]]:
    last: dict[Any, int] = {}
    hashes = False
    for line, text in text_lines(path, account):
        account.seen += 1
        try:
            entry = _parsed(text)
            session = str(entry.get(SESSION))
            arrival = _arrival(entry, last.get(session, 0))
            row = (
                arrival,
                TEXT,
                0,
                0,
                count(entry.get(INPUT), INPUT),
                count(entry.get(OUTPUT), OUTPUT, 1),
            )
        except BadRow as bad:
            account.add(f"line {line}", bad)
            continue
        last[session] = arrival
        hashes = hashes or HASHES in entry
        yield line, row
    if hashes:
        account.notes.append(f"{HASHES} (shared prefixes) are dropped: HAS models no prefix cache")


def _parsed(text: str) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        raise BadRow("", "is not JSON", text) from None
    if not isinstance(entry, dict):
        raise BadRow("", "is no JSON object", text)
    return entry


def _arrival(entry: dict[str, Any], before: int) -> int:
    if entry.get(TIME) is not None:
        return nanoseconds(entry[TIME], TIME, _MS)
    if entry.get(DELAY) is not None:
        return before + nanoseconds(entry[DELAY], DELAY, _MS)
    raise BadRow("", f"has neither {TIME} nor {DELAY}")

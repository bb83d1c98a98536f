"""Azure LLM inference traces of 2023 and 2024 (Azure/AzurePublicDataset): text only.

TIMESTAMP, ContextTokens, GeneratedTokens. 2023 writes `2023-11-16 18:15:46.6805900`, 2024
`2024-05-10 00:00:00.009930+00:00`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from has.errors import InputError
from has.files.formats.instant import instant_ns
from has.files.formats.rows import TEXT, Account, BadRow, Batch, Row, count, in_batches
from has.files.formats.source import csv_rows

TIME, CONTEXT, GENERATED, IMAGES = "TIMESTAMP", "ContextTokens", "GeneratedTokens", "NumImages"


def read(path: Path, account: Account) -> Iterator[Batch]:
    """Its requests, in batches."""
    return in_batches(_rows(path, account), account, TIME)


def _rows(path: Path, account: Account) -> Iterator[tuple[int, Row]]:
    for line, (time, context, generated) in csv_rows(
        path, account, (TIME, CONTEXT, GENERATED), partial(_no_images, path)
    ):
        try:
            row = (
                instant_ns(time, TIME),
                TEXT,
                0,
                0,
                count(context, CONTEXT),
                count(generated, GENERATED, 1),
            )
        except BadRow as bad:
            account.add(f"line {line}", bad)
        else:
            yield line, row


def _no_images(path: Path, header: Sequence[str]) -> None:
    if IMAGES in header:
        raise InputError(
            f"has a column {IMAGES}: it is Azure's multimodal trace",
            where=str(path),
            field=IMAGES,
            mend="--format azure-lmm",
        )

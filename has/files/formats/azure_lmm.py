"""Azure's multimodal inference trace of 2025: TIMESTAMP, NumImages, ContextTokens, GeneratedTokens.

Two things it does not say are inferred, aloud. NumImages takes perfect squares only, and 16 "images"
come with some 4 images' worth of tokens, so it seems to hold the square of the count. ContextTokens
holds text and images together; one image's tokens are estimated as the median context of requests
with one image less that of requests with none.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from pathlib import Path

import numpy as np

from has.errors import InputError
from has.files.formats.azure import CONTEXT, GENERATED, IMAGES, TIME
from has.files.formats.histogram import Histogram
from has.files.formats.instant import instant_ns
from has.files.formats.rows import BATCH_ROWS, IMAGE, TEXT, Account, BadRow, Batch, Row, count, in_batches
from has.files.formats.source import csv_rows

SQUARED = ("auto", "yes", "no")
_COLUMNS = (TIME, IMAGES, CONTEXT, GENERATED)


def read(
    path: Path, account: Account, *, squared: str = "auto", image_tokens: int | None = None
) -> Iterator[Batch]:
    """Its requests, in batches. The file is read once before, unless both answers are given.

    `squared` (auto, yes, no) says whether NumImages is the square of the number of images;
    `image_tokens` how many of the context's tokens one image makes.
    """
    if squared == "auto" or image_tokens is None:
        squared, image_tokens = _inferred(path, account, squared, image_tokens)
    account.notes.append(
        f"{IMAGES} is read as " + ("the square of the number of images" if squared == "yes" else "it stands")
        + f"; one image is taken to make {image_tokens} of the ContextTokens"
    )  # fmt: skip
    return in_batches(_rows(path, account, squared == "yes", image_tokens), account, TIME)


def _rows(path: Path, account: Account, squared: bool, image_tokens: int) -> Iterator[tuple[int, Row]]:
    cut = 0
    for line, (time, images, context, generated) in csv_rows(path, account, _COLUMNS):
        try:
            items = count(images, IMAGES)
            if squared:
                items = _root(items, images)
            total = count(context, CONTEXT)
            media = min(items * image_tokens, total)
            cut += media < items * image_tokens
            row = (
                instant_ns(time, TIME),
                IMAGE if items else TEXT,
                items,
                media,
                total - media,
                count(generated, GENERATED, 1),
            )
        except BadRow as bad:
            account.add(f"line {line}", bad)
        else:
            yield line, row
    if cut:
        account.notes.append(
            f"{cut} requests have a context smaller than their images' tokens by that estimate: "
            "the whole context counts as media"
        )


def _root(value: int, shown: str) -> int:
    root = isqrt(value)
    if root * root != value:
        raise BadRow(IMAGES, "is no perfect square", shown)
    return root


def _inferred(path: Path, account: Account, squared: str, image_tokens: int | None) -> tuple[str, int]:
    """Both answers, from one reading of the file; what the caller has said stands."""
    scratch = Account(account.where)
    contexts = {0: _Contexts(), 1: _Contexts()}
    odd: tuple[int, int] | None = None
    several = False
    for line, (_, images, context, _) in csv_rows(path, scratch, _COLUMNS):
        try:
            number, total = count(images, IMAGES), count(context, CONTEXT)
        except BadRow:
            continue
        several |= number > 1
        if number in contexts:
            contexts[number].add(total)
        elif odd is None and isqrt(number) ** 2 != number:
            odd = (line, number)
    if squared == "auto":
        squared = "no" if odd or not several else "yes"
        why = (
            f"{odd[1]} in line {odd[0]} is no perfect square"
            if odd
            else "every value is a perfect square"
            if several
            else "no request has more than one"
        )
        account.notes.append(f"{IMAGES}: {why}; --squared-images yes|no decides otherwise")
    if image_tokens is None:
        without, one = contexts[0].all(), contexts[1].all()
        estimate = round(one.percentile(50) - without.percentile(50)) if without.total and one.total else 0
        if estimate < 1:
            raise InputError(
                "how many tokens an image makes cannot be estimated: requests with one image have no more context "
                "than those without, or one of the two kinds is missing",
                where=str(path),
                field=CONTEXT,
                mend="--image-tokens N says how many of the context's tokens one image makes",
            )
        image_tokens = estimate
        account.notes.append(
            "an image's tokens are estimated from the median context with one image and without; --image-tokens N sets them"
        )
    return squared, image_tokens


class _Contexts:
    """Context lengths of one kind of request, many at a time: a histogram is quick with arrays only."""

    def __init__(self) -> None:
        self._histogram = Histogram()
        self._waiting: list[int] = []

    def add(self, context: int) -> None:
        self._waiting.append(context)
        if len(self._waiting) == BATCH_ROWS:
            self.all()

    def all(self) -> Histogram:
        self._histogram.add(np.array(self._waiting, np.int64))
        self._waiting = []
        return self._histogram

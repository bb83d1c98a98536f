"""Traces: a table of requests to replay (CSV, JSON lines or Parquet).

Columns: arrival_s (not decreasing), modality, items (may be missing), media_tokens (of all items
together), prompt_tokens, output_tokens. A size of one item may stand in place of media_tokens:
image_px (`1920x1080`), video_s (with fps), audio_s; the model's token rule then says how many
tokens it makes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from has.core.requests import Requests
from has.core.stage import MODALITIES
from has.errors import InputError
from has.files.reading import existing
from has.files.tables import Table, numbers, save_table, table_blocks
from has.files.validate import MOST_LISTED, listed

COLUMNS = ("arrival_s", "modality", "items", "media_tokens", "prompt_tokens", "output_tokens")
SIZES = ("image_px", "video_s", "fps", "audio_s")
REQUIRED = ("arrival_s", "modality", "prompt_tokens", "output_tokens")

MOST_TOKENS = 2**40
LAST_ARRIVAL_S = 9e9
"""Arrivals are kept in 64-bit nanoseconds, which end at 9.2e9 s."""

_INTEGERS = ("items", "media_tokens", "prompt_tokens", "output_tokens")
_SIZE_OF = {"image": "image_px", "video": "video_s", "audio": "audio_s"}
_PIXELS = re.compile(r"\s*(\d{1,6})\s*[x,]\s*(\d{1,6})\s*", re.ASCII)

TokenRule = Callable[..., int]
"""`rule(model, *, image_px=(w, h) | None, video_s=…, fps=…, audio_s=…)` → LM tokens of one item."""


def load_trace(
    path: str | Path, model: str | None = None, *, token_rule: TokenRule | None = None
) -> Requests:
    """The requests of a trace, in order of arrival: 64 bytes each, however long the file.

    `model` and `token_rule` are needed where sizes stand in place of media_tokens. Raises
    InputError naming the row (`rows.3` is the fourth) and, for text files, its line.
    """
    blocks = list(trace_blocks(path, model, token_rule=token_rule))
    return Requests(
        **{f.name: np.concatenate([getattr(block, f.name) for block in blocks]) for f in fields(Requests)}
    )


def trace_blocks(
    path: str | Path, model: str | None = None, *, token_rule: TokenRule | None = None
) -> Iterator[Requests]:
    """The same, a block at a time, for what needs no more than one look at each request."""
    path = existing(path)
    trace = _Trace(path, model, token_rule)
    any_rows = False
    for table in table_blocks(path, ("modality", "image_px"), lambda columns: _check_columns(path, columns)):
        if table.rows:
            any_rows = True
            yield trace.requests(table)
    if not any_rows:
        raise InputError("has no rows", where=str(path), field="rows", mend="the file may have been cut off")


def save_trace(requests: Requests, path: str | Path) -> None:
    """Write a trace table, CSV or Parquet by its ending; atomic. Times to 1 ns."""
    save_table(
        [
            {
                "arrival_s": int(arrival) / 1e9,
                "modality": MODALITIES[modality],
                "items": int(items),
                "media_tokens": int(media),
                "prompt_tokens": int(prompt),
                "output_tokens": int(output),
            }
            for arrival, modality, items, media, prompt, output in zip(
                requests.arrival_ns,
                requests.modality,
                requests.items,
                requests.media_tokens,
                requests.prompt_tokens,
                requests.output_tokens,
                strict=True,
            )
        ],
        path,
        COLUMNS,
    )


_FOREIGN = {
    "azure-lmm": ("TIMESTAMP", "NumImages", "ContextTokens"),
    "azure": ("TIMESTAMP", "ContextTokens"),
    "mooncake": ("input_length", "output_length"),
    "burstgpt": ("Timestamp", "Request tokens"),
}
"""Columns by which traces of others are known, the more of them first."""


def refuse_foreign(path: Path, columns: Sequence[str]) -> None:
    """InputError with the mend, where the columns are those of another project's trace, or not parted by commas."""
    if len(columns) == 1 and (sign := next((s for s in ";\t|" if s in columns[0]), "")):
        raise InputError(
            "columns are not separated by commas",
            where=str(path),
            field="header",
            value=columns[0],
            allowed="commas between values, points in numbers",
            mend=f"save it as CSV with commas in place of {sign!r}",
        )
    for name, known in _FOREIGN.items():
        if set(known) <= set(columns):
            raise InputError(
                f"is a trace as {name} writes it",
                where=str(path),
                field=known[0],
                allowed="the columns " + ", ".join(COLUMNS),
                mend=f"has trace convert {path} --format {name} --out {path.stem}-trace.csv",
            )


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    refuse_foreign(path, columns)
    unknown = [name for name in columns if name not in COLUMNS + SIZES]
    if unknown:
        raise InputError(
            "unknown column",
            where=str(path),
            field=unknown[0],
            value=unknown[0],
            allowed=", ".join(COLUMNS + SIZES),
            mend="remove the column, or give it the name that it has here",
        )
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise InputError(
            f"the required column {missing[0]} is missing" if columns else "is empty",
            where=str(path),
            field=missing[0],
            allowed="required: " + ", ".join(REQUIRED),
        )


class _Trace:
    def __init__(self, path: Path, model: str | None, token_rule: TokenRule | None) -> None:
        self.path = path
        self.table = Table([], [])
        self.model = model
        self.token_rule = token_rule
        self.last_s = 0.0
        self.known_sizes: dict[Any, int] = {}

    def requests(self, table: Table) -> Requests:
        """Those of the next block."""
        self.table = table
        checked, wrong = [], list[InputError]()
        for index, row in enumerate(numbers(table.rows, _INTEGERS), table.first):
            try:
                checked.append(self.row(index, row))
            except InputError as error:
                wrong.append(error)
                if len(wrong) > MOST_LISTED + 1:
                    break
        if wrong:
            raise listed(wrong)
        return Requests.from_rows(checked)

    def row(self, index: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row with every column of COLUMNS, each of its kind and in range."""
        arrival = self._number(index, row, "arrival_s", LAST_ARRIVAL_S)
        if arrival < self.last_s:
            raise self._error(
                index, "arrival_s", f"is earlier than the row before ({self.last_s!r})", arrival,
                "rows in order of arrival", "sort the rows by arrival_s",
            )  # fmt: skip
        self.last_s = arrival
        modality = row.get("modality")
        if modality not in MODALITIES:
            raise self._error(
                index, "modality", "unknown modality", modality, "one of " + ", ".join(MODALITIES)
            )
        text = modality == "text"
        items = self._integer(index, row, "items", 0 if text else 1) if "items" in row else int(not text)
        if text and items:
            raise self._error(index, "items", "a text request has none", items, "0, or nothing")
        return {
            "arrival_s": arrival,
            "modality": modality,
            "items": items,
            "media_tokens": self._media_tokens(index, row, str(modality), items),
            "prompt_tokens": self._integer(index, row, "prompt_tokens", 0),
            "output_tokens": self._integer(index, row, "output_tokens", 1),
        }

    def _media_tokens(self, index: int, row: Mapping[str, Any], modality: str, items: int) -> int:
        size = _SIZE_OF.get(modality)
        for name in SIZES:
            if name in row and name != size and not (name == "fps" and size == "video_s"):
                raise self._error(
                    index, name, f"a request with {modality} has none", row[name], "nothing here"
                )
        if "media_tokens" in row:
            if size is not None and size in row:
                raise self._error(index, size, "stands beside media_tokens", row[size], "one of the two")
            tokens = self._integer(index, row, "media_tokens", 0)
            if tokens and modality == "text":
                raise self._error(index, "media_tokens", "a text request has none", tokens, "0, or nothing")
            return tokens
        if size is None:
            return 0
        if size not in row:
            raise self._error(index, "media_tokens", "is required", None, f"an integer; or a size in {size}")
        return items * self._tokens_of(index, row, size)

    def _tokens_of(self, index: int, row: Mapping[str, Any], size: str) -> int:
        if self.token_rule is None or self.model is None:
            raise self._error(
                index, size, "needs a model, whose token rule says how many tokens it makes", row[size], "media_tokens",
                "name the model, or give media_tokens in place of sizes",
            )  # fmt: skip
        if size == "image_px":
            sizes: dict[str, Any] = {size: self._pixels(index, row[size])}
        else:
            sizes = {size: self._positive(index, row, size)}
            if size == "video_s" and "fps" in row:
                sizes["fps"] = self._positive(index, row, "fps")
        key = tuple(sizes.items())
        if key not in self.known_sizes:
            try:
                self.known_sizes[key] = int(self.token_rule(self.model, **sizes))
            except InputError as error:
                raise self._error(index, size, error.message, row[size], error.allowed, error.mend) from None
        return self.known_sizes[key]

    def _pixels(self, index: int, value: Any) -> tuple[int, int]:
        if isinstance(value, str) and (match := _PIXELS.fullmatch(value)):
            value = [int(match[1]), int(match[2])]
        if (
            isinstance(value, list | tuple)
            and len(value) == 2
            and all(type(side) is int and side >= 1 for side in value)
        ):
            return value[0], value[1]
        raise self._error(index, "image_px", "is no size", value, "width and height: 1920x1080")

    def _positive(self, index: int, row: Mapping[str, Any], name: str) -> float:
        value = self._number(index, row, name, 1e9)
        if value <= 0:
            raise self._error(index, name, "must be above 0", value, "a number above 0")
        return value

    def _number(self, index: int, row: Mapping[str, Any], name: str, most: float) -> float:
        value = row.get(name)
        allowed = f"a number from 0 to {most:g}"
        if value is None:
            raise self._error(index, name, "is required", None, allowed)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._error(index, name, "must be a finite number", value, allowed)
        if not 0 <= value <= most:
            raise self._error(index, name, "is out of range", value, allowed)
        return float(value)

    def _integer(self, index: int, row: Mapping[str, Any], name: str, least: int) -> int:
        value = row.get(name)
        allowed = f"an integer of at least {least}"
        if value is None:
            raise self._error(index, name, "is required", None, allowed)
        if type(value) is not int:
            raise self._error(index, name, "must be an integer", value, allowed)
        if not least <= value <= MOST_TOKENS:
            raise self._error(index, name, "is out of range", value, f"{allowed}, at most {MOST_TOKENS}")
        return value

    def _error(
        self, index: int, name: str, message: str, value: Any, allowed: str, mend: str = ""
    ) -> InputError:
        return InputError(
            f"{message} ({self.table.place(index)})",
            where=str(self.path),
            field=f"rows.{index}.{name}",
            value=value,
            allowed=allowed,
            mend=mend,
        )

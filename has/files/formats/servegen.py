"""ServeGen folders (alibaba/ServeGen): clients as windows of arrivals and sizes, from which requests are drawn.

`chunk-<i>-trace.csv`, without header: window start s, rate, CV, family (Gamma, Weibull, or empty: no
traffic), shape, scale. `chunk-<i>-dataset.json`: window start → distributions of sizes, each a string
holding {value: probability}. A trace window takes the latest sizes at or before its start. Either may
be compressed (.gz).

The rate column rules: gaps have the family's shape, and the mean 1/rate (the scale column disagrees).
Each client is a renewal process in its own operational time, in which its rate is 1: a gap that reaches
into the next window goes on there at that window's rate, and the first gap is the equilibrium process's
remaining life, so that the expected number of requests is the integral of the rate, exactly.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from has.core.stage import MODALITIES
from has.errors import InputError
from has.files.formats.rows import COLUMNS, LATE, TEXT, Account, BadRow, Batch
from has.files.formats.source import text_lines, whole_text

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TRACE = re.compile(r"chunk-(\d+)-trace\.csv(?:\.gz)?")
_KINDS = tuple(kind for kind in MODALITIES if kind != "text")
_MOST_RATE = 1e5
_LONGEST_WINDOW_S = 86_400.0
_DRAWS = 256
_SHAPES = {"Gamma": (1e-4, 1e6), "Weibull": (0.05, 1e4)}
"""Families, and the shapes at which they still make gaps that double precision can hold."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Distributions of one dataset window: name → (values, cumulated probabilities)."""

    tables: Mapping[str, tuple[Ints, Floats]]

    def draw(self, name: str, count: int, generator: np.random.Generator) -> Ints:
        if name not in self.tables:
            return np.zeros(count, np.int64)
        values, cumulated = self.tables[name]
        return values[np.searchsorted(cumulated, generator.random(count), side="right")]


@dataclass(frozen=True, slots=True)
class Window:
    """One window of one client: from `start_s` for `length_s` (that of the client's spacing)."""

    start_s: float
    length_s: float
    rate: float
    family: str
    shape: float
    sizes: Sizes


def read(path: Path, account: Account, *, seed: int = 0) -> Iterator[Batch]:
    """Requests of all clients together, drawn by `seed`, a window at a time."""
    clients = load(path, account)
    account.check()
    account.notes.append(
        f"requests are drawn (seed {seed}) from the distributions of {len(clients)} clients; their rate columns rule"
    )
    return _drawn(clients, seed, account)


def load(path: Path, account: Account) -> list[list[Window]]:
    """The windows with traffic, client by client. A window that cannot be read counts as a bad row."""
    if not path.is_dir():
        raise InputError(
            "is no folder" if path.exists() else "no such folder",
            where=str(path),
            allowed="a folder with chunk-<i>-trace.csv and chunk-<i>-dataset.json",
        )
    # Where a file is there plain and packed, the plain one, which comes later, counts.
    files = sorted(path.iterdir(), reverse=True)
    found = sorted({int(m[1]): file for file in files if (m := TRACE.fullmatch(file.name))}.items())
    if not found:
        raise InputError(
            "holds no chunk-<i>-trace.csv", where=str(path), mend="name the folder of one ServeGen category"
        )
    return [client for number, file in found if (client := _client(number, file, account))]


def _client(number: int, file: Path, account: Account) -> list[Window]:
    dataset = _dataset(_beside(file, f"chunk-{number}-dataset.json"), account)
    lines: list[tuple[str, float, list[str]]] = []
    for line, text in text_lines(file, account):
        account.seen += 1
        place = f"{file.name} line {line}"
        try:
            start, cells = _line(text, after=lines[-1][1] if lines else -1.0)
            lines.append((place, start, cells))
        except BadRow as bad:
            account.add(place, bad)
    starts = [start for _, start, _ in lines]
    length = float(np.median(np.diff(starts))) if len(starts) > 1 else 600.0
    if length > _LONGEST_WINDOW_S:
        raise InputError(
            f"windows are {length:g} s long: their starts are read as seconds; are they in another unit?",
            where=str(file),
            allowed=f"windows of at most a day, {_LONGEST_WINDOW_S:g} s",
            mend="give the window starts in seconds",
        )
    windows = []
    for place, start, cells in lines:
        try:
            window = _window(start, length, cells, dataset)
        except BadRow as bad:
            account.add(place, bad)
            continue
        if window is not None:
            windows.append(window)
    return windows


def _beside(file: Path, name: str) -> Path:
    """The file of that name in `file`'s folder, or its .gz where only that is there."""
    plain = file.with_name(name)
    packed = file.with_name(f"{name}.gz")
    return packed if packed.exists() and not plain.exists() else plain


def _line(text: str, after: float) -> tuple[float, list[str]]:
    cells = text.split(",")
    if len(cells) != 6:
        raise BadRow("", "has not the 6 values of a window", text)
    start = _real(cells[0], "window start")
    if start <= after:
        raise BadRow("window start", LATE, cells[0])
    return start, cells


def _window(start: float, length: float, cells: list[str], dataset: dict[float, Sizes]) -> Window | None:
    rate = _real(cells[1], "rate")
    family = cells[3].strip()
    if rate > _MOST_RATE:
        raise BadRow("rate", f"is above {_MOST_RATE:g} requests/s", cells[1])
    if rate == 0 or not family:
        return None
    if family not in _SHAPES:
        raise BadRow("family", "is neither Gamma nor Weibull", family)
    shape = _real(cells[4], "shape")
    low, high = _SHAPES[family]
    if not low <= shape <= high:
        raise BadRow("shape", f"is not from {low:g} to {high:g}", cells[4])
    keys = [key for key in dataset if key <= start]
    if not keys:
        raise BadRow("window start", "has no sizes at or before it in the dataset", cells[0])
    return Window(start, length, rate, family, shape, dataset[max(keys)])


def _real(text: str, column: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadRow(column, "is no number" if text.strip() else "is empty", text) from None
    if not math.isfinite(value):
        raise BadRow(column, "is not finite", text)
    if value < 0:
        raise BadRow(column, "is negative", text)
    return value


def _dataset(file: Path, account: Account) -> dict[float, Sizes]:
    """Window start → sizes, without the windows that hold none."""
    try:
        document = json.loads(whole_text(file))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"is not JSON: {error}", where=str(file), mend="the file may have been cut off"
        ) from None
    if not isinstance(document, dict):
        raise InputError("holds no mapping of windows", where=str(file))
    windows = {}
    for key, fields in document.items():
        account.seen += 1
        try:
            tables = _tables(fields)
            if tables:
                windows[_real(key, "window start")] = Sizes(tables)
        except BadRow as bad:
            account.add(f"{file.name} window {key}", bad)
    return windows


def _tables(fields: Any) -> dict[str, tuple[Ints, Floats]]:
    """Tables by name; none where the window's lengths are empty."""
    if not isinstance(fields, dict):
        raise BadRow("", "is no mapping of distributions", fields)
    tables: dict[str, tuple[Ints, Floats]] = {}
    for name, text in fields.items():
        table = _literal(name, text)
        if table:
            values = np.array(list(table), np.int64)
            cumulated = np.cumsum(np.array(list(table.values()), np.float64))
            if not 0.99 <= cumulated[-1] <= 1.01:
                raise BadRow(name, "has probabilities that do not sum to 1", float(cumulated[-1]))
            cumulated /= cumulated[-1]
            cumulated[-1] = np.inf  # a draw just below 1 must not fall off the end
            tables[_SAME.get(str(name), str(name))] = values, cumulated
    return tables if {"text_tokens", "output_tokens"} <= tables.keys() else {}


_SAME = {"input_tokens": "text_tokens"}
"""Categories without media name the prompt so."""


def _literal(name: str, text: Any) -> dict[int, float]:
    """{value: probability} from its text, by literals alone: nothing in it is run."""
    if not isinstance(text, str) or len(text) > 1 << 24:
        raise BadRow(name, "is no text with {value: probability}", text)
    if not text.strip():
        return {}
    try:
        table = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise BadRow(name, "is no {value: probability}", text) from None
    if not isinstance(table, dict):
        raise BadRow(name, "is no {value: probability}", text)
    for value, weight in table.items():
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise BadRow(name, "has a value that is no count", value)
        if type(weight) not in (int, float) or not 0 <= weight <= 1.01:
            raise BadRow(name, "has a weight that is no probability", weight)
    return table


def _drawn(clients: list[list[Window]], seed: int, account: Account) -> Iterator[Batch]:
    sources = [
        _Client(np.random.Generator(np.random.PCG64(s)))
        for s in np.random.SeedSequence(seed).spawn(len(clients))
    ]
    by_start: dict[float, list[tuple[int, Window]]] = {}
    for number, windows in enumerate(clients):
        for window in windows:
            by_start.setdefault(window.start_s, []).append((number, window))
    mixed, first = 0, -1
    waiting = np.empty((0, len(COLUMNS)), np.int64)
    starts = sorted(by_start)
    for start, following in zip(starts, [*starts[1:], math.inf], strict=True):
        parts = [waiting]
        for number, window in by_start[start]:
            batch, several = sources[number].requests(window)
            parts.append(batch)
            mixed += several
        waiting = np.concatenate(parts)
        waiting = waiting[np.argsort(waiting[:, 0], kind="stable")]
        due = int(np.searchsorted(waiting[:, 0], following * 1e9))
        if due:
            ready, waiting = waiting[:due].copy(), waiting[due:]
            first = int(ready[0, 0]) if first < 0 else first
            ready[:, 0] -= first
            yield ready
    if mixed:
        account.notes.append(
            f"{mixed} requests carry media of several kinds: all their media count as the kind with most tokens"
        )


class _Client:
    """One client's renewal process, and the sizes of its requests."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._until_next: float | None = None
        """Operational time until the next request."""

    def requests(self, window: Window) -> tuple[Batch, int]:
        """The requests of a window, and how many of them carry several kinds of media."""
        arrivals = self._arrivals(window)
        n = len(arrivals)
        draw = window.sizes.draw
        counts = np.stack([draw(f"{kind}_count", n, self._generator) for kind in _KINDS])
        tokens = np.stack(
            [
                _summed(draw(f"{kind}_tokens", int(items.sum()), self._generator), items)
                for kind, items in zip(_KINDS, counts, strict=True)
            ]
        )
        items = counts.sum(0)
        which = 1 + np.argmax(tokens * 2 + (counts > 0), axis=0)
        columns = (
            arrivals,
            np.where(items > 0, which, TEXT),
            items,
            tokens.sum(0),
            draw("text_tokens", n, self._generator),
            np.maximum(draw("output_tokens", n, self._generator), 1),
        )
        return np.stack(columns, axis=1).astype(np.int64), int(((counts > 0).sum(0) > 1).sum())

    def _arrivals(self, window: Window) -> Ints:
        if self._until_next is None:
            self._until_next = self._remaining_life(window)
        length = window.rate * window.length_s
        times = [self._until_next]
        while times[-1] < length:
            gaps = self._gaps(window, max(_DRAWS, int(0.2 * length)))
            times.extend((times[-1] + np.cumsum(gaps)).tolist())
        within = np.array([t for t in times if t < length])
        self._until_next = times[len(within)] - length
        seconds = window.start_s + within / window.rate
        return np.rint(seconds * 1e9).astype(np.int64)

    def _gaps(self, window: Window, count: int) -> Floats:
        """Gaps of mean 1 with the window's family and shape."""
        k = window.shape
        if window.family == "Gamma":
            return self._generator.standard_gamma(k, count) / k
        return self._generator.weibull(k, count) / math.gamma(1 + 1 / k)

    def _remaining_life(self, window: Window) -> float:
        """Time to the first request of a process that has always been running: a uniform share of a gap
        drawn with a weight by its length. Gamma(k) so weighted is Gamma(k + 1); of Weibull(k), the
        k-th power of the gap is Exp, and so weighted Gamma(1 + 1/k)."""
        k = window.shape
        if window.family == "Gamma":
            gap = self._generator.standard_gamma(k + 1) / k
        else:
            gap = self._generator.standard_gamma(1 + 1 / k) ** (1 / k) / math.gamma(1 + 1 / k)
        return float(self._generator.random() * gap)


def _summed(tokens: Ints, items: Ints) -> Ints:
    """Tokens of all items of each request, where `tokens` holds those of every item in turn."""
    running = np.concatenate([[0], np.cumsum(tokens)])
    ends = np.cumsum(items)
    summed: Ints = running[ends] - running[ends - items]
    return summed

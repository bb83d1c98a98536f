"""What a stream of requests is like, gathered in one pass and bounded memory."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from has.core.requests import Requests
from has.core.stage import MODALITIES
from has.files.formats.histogram import Histogram
from has.files.formats.rows import ARRIVAL, ITEMS, MEDIA, MODALITY, OUTPUT, PROMPT, Batch

Ints = NDArray[np.int64]

SIZES = {"items": ITEMS, "media_tokens": MEDIA, "prompt_tokens": PROMPT, "output_tokens": OUTPUT}
_FIRST_BIN_S = 1.0
_MOST_BINS = 4096


class Timeline:
    """Arrivals per stretch of time. The stretches double as often as their number outgrows 4096."""

    def __init__(self) -> None:
        self.bin_s = _FIRST_BIN_S
        self.counts: Ints = np.zeros(0, np.int64)

    def add(self, arrival_s: NDArray[np.float64]) -> None:
        while arrival_s[-1] >= self.bin_s * _MOST_BINS:
            self._double()
        counts = np.bincount((arrival_s / self.bin_s).astype(np.int64), minlength=len(self.counts))
        counts[: len(self.counts)] += self.counts
        self.counts = counts

    def _double(self) -> None:
        self.bin_s *= 2
        padded = np.concatenate([self.counts, np.zeros(len(self.counts) % 2, np.int64)])
        self.counts = padded.reshape(-1, 2).sum(1)

    def curve(self, points: int) -> tuple[float, NDArray[np.float64]]:
        """(seconds of a stretch, requests per second in each), at most `points` of them.

        The last stretch is left out where the trace ends within it: a part of it would read as a lull.
        """
        together = max(1, math.ceil(len(self.counts) / points))
        whole = len(self.counts) // together * together
        stretches = self.counts[:whole].reshape(-1, together).sum(1)
        stretch_s = self.bin_s * together
        if len(stretches) > 1 and whole == len(self.counts):
            stretches = stretches[:-1]
        return stretch_s, stretches / stretch_s


GROUPS = ("", "with 1 item", "with 2 or 3 items", "with 4 items and more")


class Kind:
    """Sizes of the requests of one modality and group of item counts."""

    def __init__(self) -> None:
        self.count = 0
        self.sizes = {name: Histogram() for name in SIZES}
        self.item_tokens = Histogram()
        """LM tokens of one item, each item of a request taken to have the request's mean."""

    def add(self, batch: Batch) -> None:
        self.count += len(batch)
        for name, column in SIZES.items():
            self.sizes[name].add(batch[:, column])
        items = batch[:, ITEMS]
        some = items > 0
        each, rest = np.divmod(batch[some, MEDIA], items[some])
        self.item_tokens.add(each, items[some] - rest)
        self.item_tokens.add(each[rest > 0] + 1, rest[rest > 0])


class Statistics:
    """Rate, burstiness, rate over time, and sizes by modality, of batches in order of arrival."""

    def __init__(self) -> None:
        self.requests = 0
        self.first_ns = 0
        self.last_ns = 0
        self.same_instant = 0
        self.timeline = Timeline()
        self.kinds: dict[tuple[str, str], Kind] = {}
        """By modality and group of item counts."""
        self.sizes = {name: Histogram() for name in SIZES}
        self._gap_squares = 0.0

    @classmethod
    def of(cls, requests: Requests) -> Statistics:
        """Those of a list of requests."""
        statistics = cls()
        statistics.take(requests)
        return statistics

    def take(self, requests: Requests) -> None:
        """Add a list of requests, none of them earlier than those before."""
        columns = [requests.arrival_ns, requests.modality, *(getattr(requests, name) for name in SIZES)]
        self.add(np.stack(columns, axis=1))

    def add(self, batch: Batch) -> None:
        if len(batch) == 0:
            return
        arrival = batch[:, ARRIVAL]
        if self.requests:
            gaps = np.diff(arrival, prepend=self.last_ns)
        else:
            self.first_ns = int(arrival[0])
            gaps = np.diff(arrival)
        self.same_instant += int((gaps == 0).sum())
        self._gap_squares += float(((gaps / 1e9) ** 2).sum())
        self.last_ns = int(arrival[-1])
        self.requests += len(batch)
        self.timeline.add((arrival - self.first_ns) / 1e9)
        for name, column in SIZES.items():
            self.sizes[name].add(batch[:, column])
        kinds = batch[:, MODALITY] * len(GROUPS) + np.searchsorted([0, 1, 3], batch[:, ITEMS])
        for code in np.unique(kinds).tolist():
            modality, group = divmod(code, len(GROUPS))
            key = MODALITIES[modality], GROUPS[group]
            self.kinds.setdefault(key, Kind()).add(batch[kinds == code])

    @property
    def span_s(self) -> float:
        """First to last arrival."""
        return (self.last_ns - self.first_ns) / 1e9

    @property
    def rate(self) -> float | None:
        """(N-1)/span, requests per second."""
        return (self.requests - 1) / self.span_s if self.requests > 1 and self.span_s > 0 else None

    @property
    def cv(self) -> float | None:
        """Standard deviation of the gaps over their mean."""
        if self.rate is None or self.requests < 3:
            return None
        mean = 1 / self.rate
        return math.sqrt(max(0.0, self._gap_squares / (self.requests - 1) / mean**2 - 1))

    def busiest(self, stretch_s: float = 60.0) -> tuple[float, float] | None:
        """(seconds, rate over that time / mean rate) of the busiest stretch of at least `stretch_s`."""
        together = max(1, math.ceil(stretch_s / self.timeline.bin_s))
        whole = len(self.timeline.counts) // together * together
        if self.rate is None or whole < 2 * together:
            return None
        sums = self.timeline.counts[:whole].reshape(-1, together).sum(1)
        length = together * self.timeline.bin_s
        return length, float(sums.max()) / length / self.rate

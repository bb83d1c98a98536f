"""SM partition: how encode and local prefill share a GPU while an encode batch runs.

    symbol       meaning
    T(b, x)      encode latency of b requests at x percent of the SMs, beside a prefill on the rest where that was measured
    ε            how much slower encode may get for prefill's sake
    x(b)         least share such that T(b, x') <= (1+ε)·T(b, 100, alone) for it and every larger one offered
    x*(b)        largest x(b') over b' <= b: more requests never get fewer SMs

Encode gets x*(b), local prefill the rest; without an encode batch prefill has all. `streams` is the
other choice: no partition, both run on the whole GPU.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from has.core.deployment import SmRow
from has.core.limits import MOST_COUNT
from has.core.stage import Beside, Stage
from has.errors import InputError
from has.policy.arguments import real, whole

Table = Literal["streams"] | Mapping[int, float] | Iterable[SmRow]
WHOLE = 100.0


def encode_shares(sm_table: Table, batch_bound: int) -> NDArray[np.float64]:
    """Percent of SMs that encode holds: float64[B+1] by batch size; [0] = 0; `streams`: 100 from 1 on."""
    partitioner = SmPartitioner(sm_table)
    return np.array([partitioner.encode_share(b) for b in range(batch_bound + 1)])


def prefill_shares(sm_table: Table, batch_bound: int) -> NDArray[np.float64]:
    """What a local prefill holds meanwhile: float64[B+1]; [0] = 100; `streams`: 100 throughout."""
    if isinstance(sm_table, str):
        return np.full(batch_bound + 1, WHOLE)
    return WHOLE - encode_shares(sm_table, batch_bound)


class SmPartitioner:
    """A table from encode batch size to encode's share, or `streams`.

    Between two rows the lower one holds; outside, the end rows. Shares are percent, 1..100.
    Raises InputError for an empty table, a batch that stands twice, a share out of range.
    """

    def __init__(self, table: Table) -> None:
        self._batches: list[int] = []
        self._shares: list[float] = []
        self.streams = isinstance(table, str)
        if isinstance(table, str):
            if table != "streams":
                raise InputError(
                    "unknown table", where="argument", field="table", value=table, allowed="streams, or rows"
                )
            return
        rows = dict(_rows(table))
        if not rows:
            raise InputError(
                "no rows", where="argument", field="table", value=table, allowed="at least one row"
            )
        for batch in sorted(rows):
            self._batches.append(batch)
            self._shares.append(rows[batch])

    def encode_share(self, batch: int) -> float:
        """Encode's percent of the SMs while `batch` requests are encoded (100 for `streams`, 0 for no batch)."""
        size = whole(batch, "batch", 0)
        if size == 0:
            return 0.0
        if self.streams:
            return WHOLE
        row = bisect_right(self._batches, size) - 1
        return self._shares[max(row, 0)]

    def split(self, batch: int) -> tuple[float, float] | None:
        """(encode, prefill) in percent, summing to 100; (0, 100) when nothing is encoded; None for `streams`."""
        encode = self.encode_share(batch)
        return None if self.streams else (encode, WHOLE - encode)

    @property
    def sm_table(self) -> Literal["streams"] | tuple[SmRow, ...]:
        """As a deployment holds it."""
        if self.streams:
            return "streams"
        return tuple(SmRow(batch=b, encode_sm=x) for b, x in zip(self._batches, self._shares, strict=True))

    @classmethod
    def from_profile(
        cls, profile: Any, slowdown_budget: float = 0.2, batch_bound: int = 8, *, tokens: float | None = None
    ) -> Self:
        """x*(b) for every b <= `batch_bound`; `streams` if the profile offers encode one share only.

        `profile` has the `rows` of a Profile. Encode rows beside a prefill are used where there are
        any, else those alone; the yardstick is always alone at the largest share. At 100 % nothing is
        left for a prefill: rows beside one there were measured without a partition (streams) and say
        nothing of it. `tokens` are media
        tokens of one request; default the median of the profile's token axis (for an even count the
        lower middle), a point that was measured. Batches between profiled ones are interpolated,
        beyond them extrapolated by the last segment. Raises InputError if there are no encode rows.
        """
        budget = real(slowdown_budget, "slowdown_budget", 0.0)
        bound = whole(batch_bound, "batch_bound", 1, MOST_COUNT)
        measured = getattr(profile, "rows", None)
        if not isinstance(measured, Iterable):
            raise InputError(
                "not a profile",
                where="argument",
                field="profile",
                value=profile,
                allowed="a Profile, as load_profile gives it",
            )
        rows = [row for row in measured if row.stage == Stage.ENCODE]
        alone = _Surface(row for row in rows if row.beside == Beside.NONE)
        beside = _Surface(row for row in rows if row.beside == Beside.PREFILL and row.sm_percent < WHOLE)
        if not alone.shares:
            raise InputError(
                "no encode rows", where="profile", field="rows", allowed="stage encode, beside none"
            )
        if len({*alone.shares, *beside.shares}) == 1:
            return cls("streams")
        offered = beside if beside.shares else alone
        at = alone.middle_tokens if tokens is None else real(tokens, "tokens", 0.0)
        table: dict[int, float] = {}
        least = 0.0
        for batch in range(1, bound + 1):
            allowed_s = (1 + budget) * alone.latency_s(alone.shares[-1], batch, at)
            least = max(least, _least_share(offered, batch, at, allowed_s))
            table[batch] = least
        return cls(table)


def _least_share(offered: _Surface, batch: int, tokens: float, allowed_s: float) -> float:
    share = WHOLE
    for candidate in reversed(offered.shares):
        # 1.2 times a decimal need not be the decimal 1.2 times as large: forgive what rounding does.
        if offered.latency_s(candidate, batch, tokens) > allowed_s * (1 + 1e-9):
            break
        share = candidate
    return share


class _Surface:
    """Encode latencies of one kind of rows, linear in batch and tokens between the points measured."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._points: dict[float, dict[int, dict[int, float]]] = {}
        for row in rows:
            by_batch = self._points.setdefault(float(row.sm_percent), {})
            by_batch.setdefault(row.batch, {})[row.tokens] = row.latency_s
        self.shares = sorted(self._points)

    @property
    def middle_tokens(self) -> float:
        axis = sorted({tokens for at in self._points.values() for by in at.values() for tokens in by})
        return float(axis[(len(axis) - 1) // 2])

    def latency_s(self, share: float, batch: int, tokens: float) -> float:
        by_batch = self._points[share]
        batches = sorted(by_batch)
        values = [
            _linear(sorted(by_batch[b]), [by_batch[b][t] for t in sorted(by_batch[b])], tokens)
            for b in batches
        ]
        return _linear(batches, values, batch)


def _linear(axis: Sequence[float], values: Sequence[float], at: float) -> float:
    """Piecewise linear, its end segments prolonged; one point is constant."""
    if len(axis) == 1:
        return values[0]
    i = min(max(bisect_right(axis, at) - 1, 0), len(axis) - 2)
    weight = (at - axis[i]) / (axis[i + 1] - axis[i])
    return values[i] + weight * (values[i + 1] - values[i])


def _rows(table: Mapping[int, float] | Iterable[SmRow]) -> Iterable[tuple[int, float]]:
    if isinstance(table, Mapping):
        pairs: list[tuple[Any, Any]] = list(table.items())
    elif isinstance(table, Iterable):
        pairs = [_pair(row) for row in table]
    else:
        raise InputError(
            "not a table", where="argument", field="table", value=table, allowed="streams, or rows"
        )
    seen: set[int] = set()
    for batch, share in pairs:
        size = whole(batch, "table.batch", 1)
        if size in seen:
            raise InputError("a batch stands twice", where="argument", field="table.batch", value=batch)
        seen.add(size)
        yield size, real(share, "table.encode_sm", 1.0, WHOLE)


def _pair(row: Any) -> tuple[Any, Any]:
    if isinstance(row, Mapping) and set(row) == {"batch", "encode_sm"}:
        return row["batch"], row["encode_sm"]
    if isinstance(row, SmRow):
        return row.batch, row.encode_sm
    raise InputError("not a row", where="argument", field="table", value=row, allowed="{batch, encode_sm}")

"""From a profile to seconds: piecewise multilinear look-up in SM share, batch and tokens.

Between grid points the latency is linear along each axis. An axis with one value is inert. Batch
and tokens go on along their end segments, up to `REACH` times the largest profiled value; below the
least SM share the latency grows as least/share; above the largest share it stays as it is there
(what was measured with all the SMs that the device gives is not improved on by asking for more).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from has.core.compiled import compiled
from has.core.profile import Profile, ProfileMetadata, ProfilePoint, grid_hole
from has.core.stage import Beside, Stage
from has.errors import InputError

Floats = NDArray[np.float64]
REACH = 4.0
"""How far past the largest profiled batch or token count a look-up may reach, as a factor."""

FREE_WHEN_ABSENT = (Stage.PREPROCESS, Stage.EMBEDDING_TRANSFER, Stage.KV_TRANSFER)
"""Stages that cost nothing when a profile has no rows of them."""

_NAMED_AFTER = {
    "encode": (Stage.PREPROCESS, Stage.ENCODE, Stage.EMBEDDING_TRANSFER),
    "prefill": (Stage.PREFILL,),
    "decode": (Stage.DECODE, Stage.KV_TRANSFER),
}
_MAY_RUN = {
    "encode": (*_NAMED_AFTER["encode"], Stage.PREFILL),
    "prefill": (Stage.PREFILL,),
    "decode": _NAMED_AFTER["decode"],
    "prefill_decode": (Stage.PREFILL, Stage.DECODE),
    "all": (Stage.PREPROCESS, Stage.ENCODE, Stage.PREFILL, Stage.DECODE),
}


@compiled
def _segment(axis: Floats, x: float) -> tuple[int, int, float]:
    """Indices (low, high) of the segment that rules at x, and x's place in it (0 at low, 1 at high).

    On the last grid point, and on an inert axis, low == high: so that a look-up at a grid point
    returns the stored value bit for bit.
    """
    last = len(axis) - 1
    if last == 0:
        return 0, 0, 0.0
    if x == axis[last]:
        return last, last, 0.0
    low = 0
    while low < last - 1 and x >= axis[low + 1]:
        low += 1
    return low, low + 1, (x - axis[low]) / (axis[low + 1] - axis[low])


@compiled
def interpolate(
    sm_axis: Floats,
    batch_axis: Floats,
    tokens_axis: Floats,
    values: Floats,
    sm: float,
    batch: float,
    tokens: float,
) -> float:
    """Seconds at (sm percent > 0, batch, tokens) on a grid.

    sm_axis float64[S], batch_axis float64[B], tokens_axis float64[T], ascending;
    values float64[S, B, T]. Allocates nothing and checks nothing: a negative result, which only an
    extrapolation along a falling segment gives, is for the caller to refuse.
    """
    scale = 1.0
    if len(sm_axis) > 1:
        if sm < sm_axis[0]:
            scale = sm_axis[0] / sm
            sm = sm_axis[0]
        elif sm > sm_axis[-1]:
            sm = sm_axis[-1]
    s0, s1, ws = _segment(sm_axis, sm)
    b0, b1, wb = _segment(batch_axis, batch)
    t0, t1, wt = _segment(tokens_axis, tokens)
    result = _plane(values, s0, b0, b1, wb, t0, t1, wt)
    if ws != 0.0:
        result += ws * (_plane(values, s1, b0, b1, wb, t0, t1, wt) - result)
    return result * scale


@compiled
def _plane(values: Floats, s: int, b0: int, b1: int, wb: float, t0: int, t1: int, wt: float) -> float:
    """Bilinear in batch and tokens. `low + w·(high - low)` is exact where both ends are equal."""
    result: float = values[s, b0, t0]
    if wt != 0.0:
        result += wt * (values[s, b0, t1] - result)
    if wb != 0.0:
        other = values[s, b1, t0]
        if wt != 0.0:
            other += wt * (values[s, b1, t1] - other)
        result += wb * (other - result)
    return result


@dataclass(frozen=True, slots=True)
class Grid:
    """Latencies of one stage: axes ascending, float64[S], [B], [T]; values float64[S, B, T], seconds."""

    sm: Floats
    batch: Floats
    tokens: Floats
    values: Floats

    @classmethod
    def from_rows(cls, rows: Iterable[ProfilePoint], where: str = "profile") -> Grid:
        """Rows of one stage and `beside`. Raises InputError unless they fill their grid, once each."""
        rows = list(rows)
        if (hole := grid_hole(rows)) is not None:
            raise InputError(
                hole.words,
                where=where,
                field="rows",
                allowed=f"every combination of {hole.axes}",
                mend="measure the missing point, or leave out the rows that only other combinations have",
            )
        keys = [(row.sm_percent, float(row.batch), float(row.tokens)) for row in rows]
        sm, batch, tokens = (np.unique(axis) for axis in zip(*keys, strict=True))
        latency = dict(zip(keys, (row.latency_s for row in rows), strict=True))
        ordered = [latency[key] for key in itertools.product(sm.tolist(), batch.tolist(), tokens.tolist())]
        return cls(sm, batch, tokens, np.array(ordered, np.float64).reshape(len(sm), len(batch), len(tokens)))

    @classmethod
    def free(cls) -> Grid:
        """Costs nothing, ever."""
        one = np.ones(1)
        return cls(one * 100.0, one, one, np.zeros((1, 1, 1)))

    def seconds(self, sm_percent: float, batch: float, tokens: float) -> float:
        """The unchecked look-up."""
        return float(
            interpolate(
                self.sm, self.batch, self.tokens, self.values, float(sm_percent), float(batch), float(tokens)
            )
        )


def _name(stage: str, beside: str) -> str:
    return str(stage) if beside == Beside.NONE else f"{stage} beside {beside}"


class LatencyModel:
    """Latencies of all stages of one profile, or of several where the pools have different GPUs.

    `seconds` gives bit for bit what `interpolate` gives on `grid`, and adds the checks.

    Pools of different GPUs: `LatencyModel.of_pools({"encode": a, "prefill": b, "decode": c})`. What a
    pool's GPUs take is then `model.on(pool)`: local prefill, which runs on the encode GPUs, is
    `model.on("encode")`'s prefill, the remote pool's is `model.on("prefill")`'s, and KV memory is of
    `model.on(pool).metadata`. With one profile `on` returns the model itself. Asked directly, the
    model answers for the pool that a stage is named after.
    """

    def __init__(
        self,
        grids: dict[tuple[Stage, Beside], Grid],
        metadata: ProfileMetadata,
        where: str = "profile",
        pools: Mapping[str, LatencyModel] | None = None,
    ) -> None:
        self._grids = grids
        self.metadata = metadata
        self.where = where
        self.pools: Mapping[str, LatencyModel] = dict(pools or {})
        """Latencies by pool; empty where all pools are alike."""

    @classmethod
    def from_profile(cls, profile: Profile, where: str = "profile") -> LatencyModel:
        """Raises InputError where a stage's rows do not fill their grid, or a beside row has no row alone."""
        grouped: dict[tuple[Stage, Beside], list[ProfilePoint]] = {}
        for row in profile.rows:
            grouped.setdefault((row.stage, row.beside), []).append(row)
        for stage, beside in grouped:
            if (stage, Beside.NONE) not in grouped:
                raise InputError(
                    f"there are rows of {_name(stage, beside)}, but none of {stage} alone",
                    where=where,
                    field="rows",
                    mend=f"add rows of {stage} with beside: none",
                )
        grids = {key: Grid.from_rows(rows, where) for key, rows in grouped.items()}
        return cls(grids, profile.metadata, where)

    @classmethod
    def of_pools(cls, pools: Mapping[str, LatencyModel]) -> LatencyModel:
        """One model per pool, keyed by the pools' names (`POOLS` of whatever topologies will be run).

        Encode, preprocess and the embeddings' transfer are the encode pool's; KV transfer is the
        decoding pool's, whose link receives it. A pool that is not named is like the one that does
        its stage elsewhere: a `prefill` that is missing like `encode` (whose GPUs then do all
        prefill), an e_pd pool or monolith like `decode`. `metadata` is that of `encode`.

        Raises InputError where no pool is given.
        """
        if not pools:
            raise InputError("no pool's latencies are given", where="argument", field="pools")
        first = next(iter(pools.values()))
        if all(model is first for model in pools.values()) and not first.pools:
            return first

        def like(*names: str) -> LatencyModel:
            return next((pools[name] for name in names if name in pools), first)

        everything = {
            "encode": like("encode", "all"),
            "prefill": like("prefill", "prefill_decode", "encode"),
            "decode": like("decode", "prefill_decode"),
            "prefill_decode": like("prefill_decode", "decode"),
            "all": like("all", "decode", "prefill_decode"),
        }
        grids = {
            key: grid
            for pool, stages in _NAMED_AFTER.items()
            for key, grid in everything[pool]._grids.items()
            if key[0] in stages
        }
        return cls(grids, everything["encode"].metadata, everything["encode"].where, everything)

    def on(self, pool: str) -> LatencyModel:
        """Latencies on the GPUs of this pool."""
        return self.pools.get(pool, self)

    def doing(self, stage: Stage | str) -> list[LatencyModel]:
        """The models of all pools in which this stage may run, each once."""
        names = [pool for pool, stages in _MAY_RUN.items() if Stage(stage) in stages]
        return list({id(model): model for name in names for model in [self.on(name)]}.values())

    def covers(self, stage: Stage | str, beside: Beside | str = Beside.NONE) -> bool:
        """Whether the profile has rows of this stage, measured beside that."""
        return (Stage(stage), Beside(beside)) in self._grids

    def grid(self, stage: Stage | str, beside: Beside | str = Beside.NONE) -> Grid:
        """The grid that rules: that of the stage alone where nothing was measured `beside`; free for
        preprocess and transfers without rows. Raises InputError where the profile lacks the stage."""
        stage, beside = Stage(stage), Beside(beside)
        found = self._grids.get((stage, beside)) or self._grids.get((stage, Beside.NONE))
        if found is not None:
            return found
        if stage in FREE_WHEN_ABSENT:
            return Grid.free()
        raise InputError(
            f"the profile has no row of stage {stage}",
            where=self.where,
            field="rows",
            allowed=", ".join(sorted({str(s) for s, _ in self._grids})),
            mend=f"profile the stage {stage} of this model",
        )

    def shares(self, stage: Stage | str, beside: Beside | str = Beside.NONE) -> tuple[float, ...]:
        """SM shares profiled, ascending, in percent."""
        return tuple(map(float, self.grid(stage, beside).sm))

    def seconds(
        self,
        stage: Stage | str,
        batch: float,
        tokens: float,
        sm_percent: float = 100.0,
        beside: Beside | str = Beside.NONE,
    ) -> float:
        """Latency of a batch (requests) at `tokens` per request, in seconds; decode: of one step.

        Raises InputError beyond `REACH` times the profile and where the result is negative.
        """
        if not (sm_percent > 0 and batch >= 0 and tokens >= 0):
            raise InputError(
                f"no latency at sm_percent {sm_percent}, batch {batch}, tokens {tokens}",
                allowed="sm_percent above 0, batch and tokens of at least 0",
            )
        grid = self.grid(stage, beside)
        self._refuse_beyond(stage, grid, batch, tokens)
        result = grid.seconds(sm_percent, batch, tokens)
        if result < 0:
            raise InputError(
                f"the profile extrapolates to a negative latency ({result:g} s) of {_name(Stage(stage), Beside(beside))}"
                f" at batch {batch:g}, tokens {tokens:g}, sm_percent {sm_percent:g}",
                where=self.where,
                field="rows",
                mend="profile points nearer to that, or check rows whose latency falls with batch or tokens",
            )
        return result

    def check_range(
        self,
        stage: Stage | str,
        max_batch: float,
        max_tokens: float,
        min_batch: float | None = None,
        min_tokens: float | None = None,
    ) -> list[str]:
        """Warnings, one a line, for look-ups up to (down to) these values; InputError if out of reach."""
        grid = self.grid(stage)
        self._refuse_beyond(stage, grid, max_batch, max_tokens)
        warnings = []
        for name, axis, least, most in (
            ("batch", grid.batch, min_batch, max_batch),
            ("tokens", grid.tokens, min_tokens, max_tokens),
        ):
            if len(axis) == 1:
                continue
            if most > axis[-1]:
                warnings.append(
                    f"{stage}: {name} up to {most:g} extrapolates a profile that ends at {axis[-1]:g}"
                )
            if least is not None and least < axis[0]:
                warnings.append(
                    f"{stage}: {name} down to {least:g} extrapolates a profile that starts at {axis[0]:g}"
                )
        return warnings

    def _refuse_beyond(self, stage: Stage | str, grid: Grid, batch: float, tokens: float) -> None:
        for name, axis, value in (("batch", grid.batch, batch), ("tokens", grid.tokens, tokens)):
            if len(axis) > 1 and value > REACH * axis[-1]:
                raise InputError(
                    f"{stage} at {name} {value:g} is out of the profile's reach, which ends at {axis[-1]:g}",
                    where=self.where,
                    field=name,
                    value=_number(value),
                    allowed=f"at most {REACH:g} times the largest profiled {name}: {REACH * axis[-1]:g}",
                    mend=f"profile larger values of {name}, or limit what asks for it",
                )


def _number(value: float) -> Any:
    return int(value) if float(value).is_integer() else float(value)

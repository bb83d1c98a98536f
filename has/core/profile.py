"""A profile: how long each stage takes, against SM share, batch and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field, model_validator

from has.core.noun import NonNegativeFloat, NonNegativeInt, Noun, PositiveInt, SmPercent, refuse
from has.core.stage import Beside, Stage

Source = Literal["measured", "roofline", "silicon"]
STATED_ERROR: dict[Source, float] = {"measured": 0.10, "silicon": 0.25, "roofline": 0.25}
"""Relative error of a profile's latencies by its source, where the profile states none."""


class WeightsBytes(Noun):
    encoder: NonNegativeInt = 0
    lm: NonNegativeInt = 0


class ProfileMetadata(Noun):
    """Where the rows come from. Absent `memory_bytes` or `kv_bytes_per_token` switches memory checks off."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    version: Literal[1]
    device: str
    model: str
    source: Source
    engine: str | None = None
    sm_count: PositiveInt | None = None
    memory_bytes: PositiveInt | None = None
    dtype: str | None = None
    tensor_parallel: PositiveInt | None = None
    partition_mechanism: str | None = None
    weights_bytes: WeightsBytes | None = None
    kv_bytes_per_token: PositiveInt | None = None
    kv_heads: PositiveInt | None = None
    """Of the whole model: more GPUs than these hold copies. None, as in older files: KV is taken to split evenly."""
    error: NonNegativeFloat | None = None
    """Stated relative error of the latencies; `stated_error` where it is absent."""
    driver: str | None = None
    date: str | None = None
    notes: Any = None

    @property
    def stated_error(self) -> float:
        """e: how wrong the latencies may be, relatively."""
        return STATED_ERROR[self.source] if self.error is None else self.error


class ProfilePoint(Noun):
    """One row. `latency_s` is the median of the whole batch; for decode of one step."""

    stage: Annotated[Stage, Field(strict=False)]
    sm_percent: SmPercent
    sm_asked: SmPercent | None = None
    beside: Annotated[Beside, Field(strict=False)] = Beside.NONE
    batch: PositiveInt
    tokens: NonNegativeInt
    latency_s: NonNegativeFloat
    p10_s: NonNegativeFloat | None = None
    p90_s: NonNegativeFloat | None = None
    samples: PositiveInt | None = None

    @property
    def key(self) -> tuple[Stage, Beside, float, int, int]:
        return (self.stage, self.beside, self.sm_percent, self.batch, self.tokens)


class Profile(Noun):
    """Metadata and rows; no point stands twice; encode, prefill and decode are present."""

    metadata: ProfileMetadata
    rows: Annotated[tuple[ProfilePoint, ...], Field(strict=False, min_length=1)]

    @model_validator(mode="after")
    def _rows(self) -> Self:
        refuse(self._problems())
        return self

    def _problems(self) -> Iterator[str]:
        seen: set[Any] = set()
        for i, row in enumerate(self.rows):
            if row.key in seen:
                yield f"rows.{i}: the point {_words(row)} stands twice"
            seen.add(row.key)
        missing = [s for s in (Stage.PREFILL, Stage.DECODE) if not any(r.stage == s for r in self.rows)]
        if missing:
            yield f"rows: no row of stage {', '.join(missing)}"


class GridHole(NamedTuple):
    """A point that rows lack to fill their grid, and what the grid's axes hold, in words."""

    stage: Stage
    beside: Beside
    sm_percent: float
    batch: int
    tokens: int
    axes: str

    @property
    def words(self) -> str:
        name = str(self.stage) if self.beside == Beside.NONE else f"{self.stage} beside {self.beside}"
        return (
            f"the rows of {name} do not fill their grid: there is no point"
            f" (sm_percent {self.sm_percent:g}, batch {self.batch}, tokens {self.tokens})"
        )


def grid_hole(rows: Iterable[ProfilePoint]) -> GridHole | None:
    """The first hole, if there is one: of each stage and `beside`, every share needs every batch with
    every token count, or there is nothing to interpolate between."""
    grouped: dict[tuple[Stage, Beside], set[tuple[float, int, int]]] = {}
    for row in rows:
        grouped.setdefault((row.stage, row.beside), set()).add((row.sm_percent, row.batch, row.tokens))
    for (stage, beside), points in grouped.items():
        shares, batches, tokens = (sorted({point[axis] for point in points}) for axis in range(3))
        if len(points) == len(shares) * len(batches) * len(tokens):
            continue
        axes = "; ".join(
            f"{name} {', '.join(f'{value:g}' for value in axis)}"
            for name, axis in (("sm_percent", shares), ("batch", batches), ("tokens", tokens))
        )
        share, batch, token = next(p for p in product(shares, batches, tokens) if p not in points)
        return GridHole(stage, beside, share, int(batch), int(token), axes)
    return None


def _words(row: ProfilePoint) -> str:
    return (
        f"(stage {row.stage}, beside {row.beside}, sm_percent {row.sm_percent:g},"
        f" batch {row.batch}, tokens {row.tokens})"
    )

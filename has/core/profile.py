"""A profile: how long each stage takes, against SM share, batch and tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from has.core.noun import NonNegativeFloat, NonNegativeInt, Noun, PositiveInt, SmPercent
from has.core.stage import Beside, Stage

Source = Literal["measured", "roofline", "silicon"]


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
    error: NonNegativeFloat | None = None
    """Stated relative error of the latencies (0.25 for an estimate, 0.10 measured, if absent)."""
    driver: str | None = None
    date: str | None = None
    notes: Any = None


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
        seen: set[Any] = set()
        for i, row in enumerate(self.rows):
            if row.key in seen:
                raise ValueError(f"rows.{i}: the point {_words(row)} stands twice")
            seen.add(row.key)
        missing = [s for s in (Stage.PREFILL, Stage.DECODE) if not any(r.stage == s for r in self.rows)]
        if missing:
            raise ValueError(f"rows: no row of stage {', '.join(missing)}")
        return self


def _words(row: ProfilePoint) -> str:
    return (
        f"(stage {row.stage}, beside {row.beside}, sm_percent {row.sm_percent:g},"
        f" batch {row.batch}, tokens {row.tokens})"
    )

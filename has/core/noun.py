"""The base of every noun that has a file form."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Noun(BaseModel):
    """Frozen, strict (`true` is no integer, 2.5 no batch), closed to unknown keys, finite.

    Field names and units are those of the file the noun is written to; `_s` properties give the
    seconds that the inside of HAS works in.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
SmPercent = Annotated[float, Field(ge=1, le=100)]
"""Share of a GPU's SMs, in percent; what a device really gives is often not a round number."""

"""The base of every noun that has a file form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from has.core.limits import LEAST_RATE, MOST, MOST_COUNT, MOST_GPUS, MOST_RATE, MOST_TOKENS


def refuse(problems: Iterable[str]) -> None:
    """Raise ValueError, a line for each problem, `field: message`, if there are any."""
    found = list(problems)
    if found:
        raise ValueError("\n".join(found))


class Noun(BaseModel):
    """Frozen, strict (`true` is no integer, 2.5 no batch), closed to unknown keys, finite.

    Field names and units are those of the file the noun is written to; `_s` properties give the
    seconds that the inside of HAS works in.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


PositiveInt = Annotated[int, Field(ge=1, le=2**53)]
NonNegativeInt = Annotated[int, Field(ge=0, le=2**53)]
"""Up to 2^53 a float holds every integer, so no computation rounds one."""
PositiveFloat = Annotated[float, Field(gt=0, le=MOST)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=MOST)]
Gpus = Annotated[int, Field(ge=1, le=MOST_GPUS)]
GpusOrNone = Annotated[int, Field(ge=0, le=MOST_GPUS)]
Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
"""Requests of a batch or a queue, workers of a pool, items."""
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Rate = Annotated[float, Field(ge=LEAST_RATE, le=MOST_RATE)]
"""Requests per second: from one in 32 years, to what no front door takes in."""
Share = Annotated[float, Field(ge=0, le=1)]
SmPercent = Annotated[float, Field(ge=1, le=100)]
"""Share of a GPU's SMs, in percent; what a device really gives is often not a round number."""

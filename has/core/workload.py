"""What users send: arrivals, sizes, and the SLO they hold the service to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from has.core.limits import MOST_TOKENS
from has.core.noun import (
    NonNegativeFloat,
    NonNegativeInt,
    Noun,
    PositiveFloat,
    PositiveInt,
    Rate,
    refuse,
)
from has.core.slo import Slo

Modality = Literal["text", "image", "video", "audio"]
Number = int | float


class Normal(Noun):
    mean: float
    sd: NonNegativeFloat


class Lognormal(Noun):
    """A lognormal by its median and 99th percentile."""

    p50: PositiveFloat
    p99: PositiveFloat

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.p99 < self.p50:
            raise ValueError(f"p99: must not be below p50 ({self.p99} < {self.p50})")
        return self


class Distribution(Noun):
    """One of `constant`, `uniform`, `normal`, `lognormal`, `choice`, `empirical`; clipped to [min, max].

    In a file a bare number stands for `constant`.
    """

    constant: Number | None = None
    uniform: Annotated[tuple[Number, Number], Field(strict=False)] | None = None
    normal: Normal | None = None
    lognormal: Lognormal | None = None
    choice: dict[Number, NonNegativeFloat] | None = None
    empirical: Annotated[tuple[Number, ...], Field(strict=False, min_length=1)] | None = None
    min: Number | None = None
    max: Number | None = None

    @property
    def kind(self) -> str:
        return next(name for name in KINDS if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of {', '.join(KINDS)} must be given, not {given or 'none'}")
        if self.uniform and self.uniform[0] > self.uniform[1]:
            raise ValueError("uniform: the first bound exceeds the second")
        if self.choice is not None and sum(self.choice.values()) <= 0:
            raise ValueError("choice: the weights must have a positive sum")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("min: exceeds max")
        values: list[Number] = [
            *(v for v in (self.constant, self.min, self.max) if v is not None),
            *(self.uniform or ()),
            *(self.choice or ()),
            *(self.empirical or ()),
            *([self.normal.mean] if self.normal else []),
        ]
        if any(value < 0 for value in values):
            raise ValueError("sizes must not be negative")
        if any(value > MOST_TOKENS for value in values):
            raise ValueError(f"sizes must not be above {MOST_TOKENS}")
        return self


KINDS = ("constant", "uniform", "normal", "lognormal", "choice", "empirical")


class Arrivals(Noun):
    """When requests come. `poisson`, `gamma` (with `cv`), `constant` need a rate from somewhere;
    `trace` replays a table, its times multiplied by `time_scale`."""

    process: Literal["poisson", "gamma", "constant", "trace"]
    rate: Rate | None = None
    cv: Annotated[float, Field(ge=1e-6, le=1e4)] | None = None
    file: str | None = None
    time_scale: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _fits_process(self) -> Self:
        trace = self.process == "trace"
        wrong = {
            "file: needed by, and only by, process: trace": trace != (self.file is not None),
            "rate: a trace has its own; scale it with time_scale or --rate": trace and self.rate is not None,
            "cv: needed by, and only by, process: gamma": (self.process == "gamma") != (self.cv is not None),
            "time_scale: only a trace has one": not trace and self.time_scale != 1.0,
        }
        refuse(words for words, so in wrong.items() if so)
        return self


class RequestClass(Noun):
    """One component of the mixture. `media_tokens` are LM tokens of one item; a size may stand in
    their place (`image_px`, `video_s` with `fps`, `audio_s`), the model's token rule then applies."""

    weight: NonNegativeFloat = 1.0
    modality: Modality
    items: Distribution | None = None
    media_tokens: Distribution | None = None
    image_px: Annotated[tuple[PositiveInt, PositiveInt], Field(strict=False)] | None = None
    video_s: Distribution | None = None
    fps: PositiveFloat | None = None
    audio_s: Distribution | None = None
    prompt_tokens: Distribution
    output_tokens: Distribution
    slo: Slo | None = None

    @field_validator(
        "items", "media_tokens", "video_s", "audio_s", "prompt_tokens", "output_tokens", mode="before"
    )
    @classmethod
    def _bare_number(cls, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"constant": value}
        return value

    @model_validator(mode="after")
    def _media(self) -> Self:
        sizes = {
            "image": ("media_tokens", "image_px"),
            "video": ("media_tokens", "video_s"),
            "audio": ("media_tokens", "audio_s"),
            "text": (),
        }[self.modality]
        refuse(self._problems(sizes))
        return self

    def _problems(self, sizes: tuple[str, ...]) -> Iterator[str]:
        for field in ("media_tokens", "image_px", "video_s", "audio_s"):
            if getattr(self, field) is not None and field not in sizes:
                yield f"{field}: a {self.modality} entry has none"
        if self.modality == "text" and self.items is not None:
            yield "items: a text entry has none"
        if self.modality != "text" and sum(getattr(self, f) is not None for f in sizes) != 1:
            yield f"{sizes[0]}: exactly one of {', '.join(sizes)} must be given"
        if self.fps is not None and self.video_s is None:
            yield "fps: goes with video_s"


class Workload(Noun):
    """A named stream of requests: arrivals, a mixture of request classes (absent for a trace), an SLO."""

    version: Literal[1]
    name: str = "workload"
    description: str | None = None
    arrivals: Arrivals
    requests: Annotated[tuple[RequestClass, ...], Field(strict=False)] = ()
    slo: Slo | None = None

    @model_validator(mode="after")
    def _mixture(self) -> Self:
        if self.arrivals.process == "trace":
            if self.requests:
                raise ValueError("requests: a trace brings its own")
        elif not self.requests:
            raise ValueError("requests: at least one entry is needed")
        elif sum(entry.weight for entry in self.requests) <= 0:
            raise ValueError("requests: the weights must have a positive sum")
        return self


__all__ = [
    "Arrivals",
    "Distribution",
    "Lognormal",
    "Modality",
    "NonNegativeInt",
    "Normal",
    "RequestClass",
    "Workload",
]

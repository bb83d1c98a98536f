"""The search space: which configurations may be proposed."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from has.core.deployment import Topology
from has.core.noun import Count, Gpus, GpusOrNone, Noun, PositiveFloat, Share, refuse

Range = Annotated[tuple[GpusOrNone, GpusOrNone], Field(strict=False)]
TpChoices = Annotated[tuple[Gpus, ...], Field(strict=False, min_length=1)]


class AllocRanges(Noun):
    """Inclusive ranges in GPUs; None leaves a pool free within what sums to the budget."""

    encode: Range | None = None
    prefill: Range | None = None
    decode: Range | None = None

    @model_validator(mode="after")
    def _order(self) -> Self:
        bounds = {pool: getattr(self, pool) for pool in ("encode", "prefill", "decode")}
        refuse(
            f"{pool}: the lower bound exceeds the upper"
            for pool, range_ in bounds.items()
            if range_ is not None and range_[0] > range_[1]
        )
        return self


class TpRanges(Noun):
    """Tensor parallelism to choose from, per stage; e_pd and monolithic use the decode list.

    A stage that was not set (`model_fields_set`) is searched at its profile's (`has.search.parallelism`).
    """

    encode: Annotated[tuple[Literal[1], ...], Field(strict=False, min_length=1)] = (1,)
    prefill: TpChoices = (1,)
    decode: TpChoices = (1,)


class OffloadRange(Noun):
    """Values of s: min, min+step, ... up to and including max."""

    min: Share = 0.0
    max: Share = 1.0
    step: PositiveFloat = 0.1

    @model_validator(mode="after")
    def _order(self) -> Self:
        wrong = {
            "min: exceeds max": self.min > self.max,
            "step: at least 0.000001 (s has six decimals at most)": self.step < 1e-6,
        }
        refuse(words for words, so in wrong.items() if so)
        return self


class SearchSpace(Noun):
    """The candidates: allocations x tensor parallelism x B x s, and the two other topologies."""

    version: Literal[1]
    alloc: AllocRanges = AllocRanges()
    tensor_parallel: TpRanges = TpRanges()
    encode_batch: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] = (
        1,
        2,
        4,
        6,
        8,
        12,
        16,
    )
    prefill_offload: OffloadRange = OffloadRange()
    topologies: Annotated[tuple[Topology, ...], Field(strict=False, min_length=1)] = (
        "disaggregated",
        "e_pd",
        "monolithic",
    )

    @model_validator(mode="after")
    def _no_repeats(self) -> Self:
        lists = {
            "encode_batch": self.encode_batch,
            "topologies": self.topologies,
            "tensor_parallel.prefill": self.tensor_parallel.prefill,
            "tensor_parallel.decode": self.tensor_parallel.decode,
        }
        refuse(
            f"{name}: a value stands twice"
            for name, values in lists.items()
            if len(set(values)) != len(values)
        )
        return self

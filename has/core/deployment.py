"""A deployment: the configuration PC = (alloc, B, s) and all it implies (`best.yaml`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from has.core.noun import (
    Count,
    Gpus,
    GpusOrNone,
    NonNegativeFloat,
    Noun,
    Rate,
    Share,
    SmPercent,
    Tokens,
    refuse,
)
from has.core.slo import Slo

Topology = Literal["disaggregated", "e_pd", "monolithic"]
POOLS: dict[str, tuple[str, ...]] = {
    "disaggregated": ("encode", "prefill", "decode"),
    "e_pd": ("encode", "prefill_decode"),
    "monolithic": ("all",),
}
"""The pools of each topology, in the order figures and files list them."""
LETTERS = {"encode": "E", "prefill": "P", "decode": "D", "prefill_decode": "PD", "all": "M"}


def split_words(topology: str, gpus: Sequence[int], tp: Sequence[int]) -> str:
    """GPUs of each pool as the field writes them, `2E2P4D`; with the GPUs of a worker where it has several,
    `2E4P(2)2D`, for two splits that differ in nothing else are two."""
    return "".join(
        f"{n}{LETTERS[pool]}" + (f"({k})" if k > 1 else "")
        for pool, n, k in zip(POOLS[topology], gpus, tp, strict=True)
    )


class Alloc(Noun):
    """GPUs of each pool. Exactly the pools of the topology are set; the others stay None."""

    encode: Gpus | None = None
    prefill: GpusOrNone | None = None
    decode: Gpus | None = None
    prefill_decode: Gpus | None = None
    all: Gpus | None = None

    def __getitem__(self, pool: str) -> int:
        value: int | None = getattr(self, pool)
        if value is None:
            raise KeyError(pool)
        return value

    @property
    def pools(self) -> tuple[str, ...]:
        return tuple(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def total(self) -> int:
        return sum(self[pool] for pool in self.pools)


class TensorParallel(Noun):
    """GPUs of one worker, per pool. `local_prefill` is how many encode GPUs one local prefill spans."""

    encode: Literal[1] | None = None
    prefill: Gpus | None = None
    decode: Gpus | None = None
    local_prefill: Gpus | None = None
    prefill_decode: Gpus | None = None
    all: Gpus | None = None


class SmRow(Noun):
    """While `batch` requests (or more, up to the next row) are encoded, encode holds this share."""

    batch: Count
    encode_sm: SmPercent


class Deployment(Noun):
    """Everything a runtime or the simulator needs to know about a configuration.

    Shapes: `alloc` sums to `gpus`; pool sizes are multiples of their tensor parallelism.
    `prefill_offload` is s, the exact decimal share of prefills sent to the remote pool; s = 0
    exactly when there is no remote pool. Absent `sm_table` means: derive it from the profile.
    `encode_fanout` is how many encode workers may encode media of one request at once (absent: one).
    """

    version: Literal[1]
    model: Annotated[str, Field(min_length=1)]
    topology: Topology
    gpus: Gpus
    alloc: Alloc
    tensor_parallel: TensorParallel = TensorParallel()
    encode_batch: Count | None = None
    prefill_offload: Share | None = None
    offload_unit: Literal["request", "token"] = "request"
    fill_probability: Share = 0.6
    encode_slowdown_budget: NonNegativeFloat = 0.2
    sm_table: Literal["streams"] | Annotated[tuple[SmRow, ...], Field(strict=False, min_length=1)] | None = (
        None
    )
    rate: Rate | None = None
    slo: Slo
    dtype: str | None = None
    max_wait_ms: NonNegativeFloat | None = None
    encode_fanout: Count | None = None
    max_num_seqs: Count = 256
    max_num_batched_tokens: Tokens | None = None
    max_prefill_requests: Count | None = None
    max_queue: Count | None = None
    kv_tokens: Tokens | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    preprocess_workers: Count | None = None
    dispatch: Literal["random", "round_robin", "shortest_queue"] = "random"
    rate_estimate: Literal["known", "online"] | None = None
    first_token: Literal["prefill", "decode"] = "prefill"
    gpus_per_node: Gpus | None = None
    hardware: dict[str, str] | None = None
    evidence: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _shape(self) -> Self:
        refuse(self._problems())
        return self

    def _problems(self) -> Iterator[str]:
        """What contradicts what, all of it."""
        if set(self.alloc.pools) != set(POOLS[self.topology]):
            yield f"alloc: a {self.topology} deployment has the pools {', '.join(POOLS[self.topology])}"
            return  # of pools that are not there nothing more can be said
        if self.alloc.total != self.gpus:
            yield f"gpus: must be the sum of alloc, {self.alloc.total}, not {self.gpus}"
        yield from self._parallelism()
        if self.topology == "monolithic":
            yield from self._absent("encode_batch", "prefill_offload", "sm_table", "encode_fanout")
        else:
            yield from self._present("encode_batch")
        if self.topology == "e_pd":
            yield from self._absent("prefill_offload", "sm_table")
        if self.topology == "disaggregated":
            yield from self._present("prefill_offload")
            if self.prefill_offload is not None:
                yield from self._offload()
        if isinstance(self.sm_table, tuple):
            batches = [row.batch for row in self.sm_table]
            if len(set(batches)) != len(batches):
                yield "sm_table: a batch stands twice"

    def _parallelism(self) -> Iterator[str]:
        pools = POOLS[self.topology]
        extra = ("local_prefill",) if self.topology == "disaggregated" else ()
        for name in type(self.tensor_parallel).model_fields:
            if getattr(self.tensor_parallel, name) is not None and name not in pools + extra:
                yield f"tensor_parallel.{name}: a {self.topology} deployment has no such pool"
        for pool in pools:
            if self.alloc[pool] % self.tp(pool):
                yield f"alloc.{pool}: {self.alloc[pool]} is no multiple of tensor_parallel.{pool} = {self.tp(pool)}"
            if self.gpus_per_node and self.gpus_per_node % self.tp(pool):
                yield f"tensor_parallel.{pool}: {self.tp(pool)} would cross nodes of {self.gpus_per_node} GPUs"

    def _offload(self) -> Iterator[str]:
        share = self.offload_fraction
        if (share * 10**6).denominator != 1:
            yield "prefill_offload: at most six decimals"
        if (share == 0) != (self.alloc["prefill"] == 0):
            yield (
                "prefill_offload: must be 0 exactly when alloc.prefill is 0"
                f" (offload {float(share)}, prefill {self.alloc['prefill']})"
            )
        if share < 1 and self.alloc["encode"] % self.local_prefill_span:
            yield (
                f"alloc.encode: {self.alloc['encode']} is no multiple of tensor_parallel.local_prefill"
                f" = {self.local_prefill_span}, which local prefill (prefill_offload < 1) needs"
            )

    def _absent(self, *fields: str) -> Iterator[str]:
        for field in fields:
            if getattr(self, field) is not None:
                yield f"{field}: a {self.topology} deployment has none"

    def _present(self, *fields: str) -> Iterator[str]:
        for field in fields:
            if getattr(self, field) is None:
                yield f"{field}: required for a {self.topology} deployment"

    def tp(self, pool: str) -> int:
        """GPUs of one worker of `pool`."""
        return getattr(self.tensor_parallel, pool) or 1

    def workers(self, pool: str) -> int:
        """Workers of `pool`: its GPUs over its tensor parallelism."""
        return self.alloc[pool] // self.tp(pool)

    @property
    def local_prefill_span(self) -> int:
        """Encode GPUs that one local prefill occupies."""
        return self.tensor_parallel.local_prefill or self.tp("prefill")

    @property
    def offload_fraction(self) -> Fraction:
        """s, exact: a float means its shortest decimal, not its binary neighbour."""
        return Fraction(Decimal(repr(self.prefill_offload or 0.0)))

    @property
    def max_wait_s(self) -> float | None:
        return None if self.max_wait_ms is None else self.max_wait_ms / 1e3

    @property
    def prefill_token_budget(self) -> int:
        """Tokens of one prefill step (disaggregated) or iteration (the others)."""
        return self.max_num_batched_tokens or (8192 if self.topology == "disaggregated" else 2048)

    @property
    def preprocess_servers(self) -> int:
        return self.preprocess_workers or self.gpus

    @property
    def label(self) -> str:
        """Short name: `2E2P4D B4 s0.5`, `2E6PD B4`, `8M`; `2E4P(2)2D B4 s0.5` where a worker has several GPUs."""
        pools = POOLS[self.topology]
        words = [split_words(self.topology, [self.alloc[p] for p in pools], [self.tp(p) for p in pools])]
        if self.topology != "monolithic":
            words.append(f"B{self.encode_batch}")
        if self.topology == "disaggregated":
            words.append(f"s{self.prefill_offload:g}")
        return " ".join(words)

    def digest(self) -> str:
        """Identity of the configuration: a hash of all fields but the evidence."""
        fields = self.model_dump(mode="json", exclude={"evidence"}, exclude_none=True)
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]

"""Roofline: what an operation takes on a GPU, from data sheet and efficiency factors.

    seconds = start + (compute⁴ + stream⁴)^¼
    compute = flops / (c · peak · fill^w)        stream = bytes / (s · bandwidth)
    fill    = tiles / (SMs · ⌈tiles / SMs⌉)      how full the last wave of thread blocks leaves the SMs

c, s, w and start are fitted for each kind of operation on kernel times that were measured (`facts/efficiency.json`,
which names the tables): of the GPU itself, of one with the same chip, or, for others, of all GPUs together. The
fourth power is a soft maximum: where both terms are equal the sum is a fifth above either.

Kernels alone: what an engine adds between them (scheduling, sampling, launches without a CUDA graph) is not in it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from has.errors import InputError
from has.files import facts
from has.files.facts import FOLDER
from has.latency.operations import AllReduce, Attention, Elementwise, Gemm, Operation

TILE = 128
"""Rows and columns of the matrix that one thread block makes; up to 64 rows, a block has 64."""
SOFT = 4.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """Data-sheet figures, in SI units. `link` is bytes/s to a neighbour in one direction, over NVLink or PCIe."""

    name: str
    sms: int
    memory_bytes: int
    bandwidth: float
    peak: dict[str, float]
    link: float
    link_kind: str = "nvlink"

    @classmethod
    def from_facts(cls, name: str) -> Gpu:
        """By its name in the facts, forgivingly matched. Raises InputError."""
        key, sheet = facts.find_gpu(name)
        peak = {"bfloat16": sheet["bf16_dense_tflops"], "fp8": sheet["fp8_dense_tflops"]}
        return cls(
            name=key,
            sms=sheet["sm_or_cu"],
            memory_bytes=int(sheet["memory_gb"] * 1_000_000_000),
            bandwidth=sheet["bandwidth_gb_s"] * 1e9,
            peak={dtype: tflops * 1e12 for dtype, tflops in peak.items() if tflops},
            link=(sheet["gpu_link_gb_s_per_direction"] or sheet["pcie_gb_s_per_direction"]) * 1e9,
            link_kind="nvlink" if sheet["gpu_link_gb_s_per_direction"] else "pcie",
        )

    def offers(self, dtype: str) -> None:
        """Raise InputError unless the GPU multiplies in `dtype`."""
        if dtype not in self.peak:
            raise InputError(
                f"{self.name} has no {dtype}",
                where="argument",
                field="dtype",
                value=dtype,
                allowed=", ".join(self.peak),
            )


@dataclass(frozen=True, slots=True)
class Factors:
    """Efficiency of one kind of operation: shares of peak and bandwidth, exponent of fill, seconds to start."""

    compute: float
    stream: float
    fill: float
    start_s: float


Efficiency = dict[str, Factors]
"""Kind of operation (`KINDS`) → its factors."""

KINDS = (
    "gemm",
    "gemm_fp8",
    "context_attention",
    "encoder_attention",
    "decode_attention",
    "elementwise",
    *(f"all_reduce_{gpus}_{link}" for gpus in (2, 4, 8) for link in ("nvlink", "pcie")),
)


@functools.cache
def calibration() -> dict[str, Any]:
    """The fitted factors with their errors and sources, as they ship."""
    with (FOLDER / "efficiency.json").open() as file:
        content: dict[str, Any] = json.load(file)
    return content


def efficiency_of(gpu: str, *, without: bool = False) -> tuple[Efficiency, str]:
    """Factors for a GPU of the facts, and in words what they were fitted on.

    `without`: fitted on all other GPUs, as if nothing of this one had been measured.
    """
    content = calibration()
    if without:
        return _factors(content["without"][gpu]), f"all GPUs measured but {gpu}"
    twin = content["same_chip"].get(gpu)
    for name, words in ((gpu, gpu), (twin, f"{twin}, which has the same chip")):
        if name in content["gpus"]:
            # a kind that was not measured on it is taken from all
            return _factors(content["all"] | content["gpus"][name]), words
    return _factors(content["all"]), "all GPUs measured: " + ", ".join(content["gpus"])


def _factors(kinds: dict[str, Any]) -> Efficiency:
    return {
        kind: Factors(row["compute"], row["stream"], row["fill"], row["start_s"])
        for kind, row in kinds.items()
    }


Floats = NDArray[np.float64]


def kernel_seconds(
    flops: ArrayLike,
    bytes: ArrayLike,
    tiles: ArrayLike,
    peak: float,
    bandwidth: float,
    sms: int,
    factors: Factors,
) -> Floats:
    """The formula above, for arrays or numbers; also what the fit minimises the error of."""
    tiles = np.asarray(tiles, np.float64)
    fill = (tiles / (sms * np.ceil(tiles / sms))) ** factors.fill
    compute = np.asarray(flops, np.float64) / (factors.compute * peak * fill)
    stream = np.asarray(bytes, np.float64) / (factors.stream * bandwidth)
    result: Floats = factors.start_s + (compute**SOFT + stream**SOFT) ** (1 / SOFT)
    return result


def gemm_tiles(m: ArrayLike, n: ArrayLike) -> Floats:
    """Thread blocks of an m × n result."""
    rows = np.asarray(m, np.float64)
    tiles: Floats = np.ceil(rows / np.where(rows <= 64, 64, TILE)) * np.ceil(np.asarray(n) / TILE)
    return tiles


def attention_tiles(sequences: ArrayLike, heads: ArrayLike, queries: ArrayLike) -> Floats:
    """Thread blocks of an attention: one for each head and 128 queries."""
    tiles: Floats = np.asarray(sequences) * np.asarray(heads) * np.ceil(np.asarray(queries) / TILE)
    return tiles


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of operations on a whole GPU, split by what limits them: start-up, arithmetic, memory, link."""

    start_s: float = 0.0
    compute_s: float = 0.0
    stream_s: float = 0.0
    link_s: float = 0.0
    bytes: float = 0.0

    @property
    def seconds(self) -> float:
        return self.start_s + self.compute_s + self.stream_s + self.link_s

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.start_s + other.start_s,
            self.compute_s + other.compute_s,
            self.stream_s + other.stream_s,
            self.link_s + other.link_s,
            self.bytes + other.bytes,
        )


class Kernels(Protocol):
    """Where the times of single operations come from."""

    gpu: Gpu

    def cost(self, operation: Operation) -> Cost:
        """Of all `count` runs of the operation."""


class Roofline:
    """Kernel times by the formula."""

    def __init__(self, gpu: Gpu, efficiency: Efficiency | None = None) -> None:
        self.gpu = gpu
        if efficiency is None:
            efficiency, self.fitted_on = efficiency_of(gpu.name)
        else:
            self.fitted_on = "given factors"
        self.efficiency = efficiency

    def cost(self, operation: Operation) -> Cost:
        """Of all `count` runs of the operation."""
        match operation:
            case Gemm():
                kind = "gemm_fp8" if operation.dtype == "fp8" else "gemm"
                peak, tiles = self.gpu.peak[operation.dtype], gemm_tiles(operation.m, operation.n)
                return self._kernel(operation, kind, operation.flops, float(tiles), peak)
            case Attention():
                kind = f"{operation.kind}_attention"
                tiles = attention_tiles(operation.sequences, operation.heads, operation.queries)
                # One query a sequence reads its KV far slower than it multiplies; engines split the KV over blocks.
                flops = 0.0 if operation.kind == "decode" else operation.flops
                return self._kernel(operation, kind, flops, float(tiles), self.gpu.peak["bfloat16"])
            case Elementwise():
                return self._kernel(operation, "elementwise", 0.0, float(self.gpu.sms), 1.0)
            case AllReduce():
                factors = self.efficiency[f"all_reduce_{operation.gpus}_{self.gpu.link_kind}"]
                moved = 2 * (operation.gpus - 1) / operation.gpus * operation.bytes
                link_s = moved / (factors.stream * self.gpu.link)
                return Cost(start_s=operation.count * factors.start_s, link_s=operation.count * link_s)

    def _kernel(
        self, operation: Gemm | Attention | Elementwise, kind: str, flops: float, tiles: float, peak: float
    ) -> Cost:
        factors = self.efficiency[kind]
        gpu, moved, times = self.gpu, operation.bytes, operation.count
        seconds = float(kernel_seconds(flops, moved, tiles, peak, gpu.bandwidth, gpu.sms, factors))
        work = (seconds - factors.start_s) * times
        bound = moved / (factors.stream * gpu.bandwidth) > 0.5 * (seconds - factors.start_s)
        start_s = factors.start_s * times
        if bound:
            return Cost(start_s, stream_s=work, bytes=moved * times)
        return Cost(start_s, compute_s=work, bytes=moved * times)


def total(kernels: Kernels, operations: Iterable[Operation]) -> Cost:
    """Sum over the operations, which run one after the other."""
    return sum((kernels.cost(operation) for operation in operations), Cost())

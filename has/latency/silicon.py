"""Kernel times that were measured: the tables in aiconfigurator-core, operation by operation.

One adapter over the extra `silicon`. It asks the tables for single kernels (a matrix product, an attention, an
all-reduce) in the shapes of any model, so that models the library does not know are estimated too; where it has no
table for a kernel on a GPU (attention of 128-wide heads in an encoder; all of an encoder on an A100), the roofline
answers instead, and `missing` says for what.
"""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import Any

from has.errors import InputError, MissingError
from has.latency.operations import AllReduce, Attention, Elementwise, Gemm, Operation
from has.latency.roofline import Cost, Gpu, Roofline

SYSTEMS = {
    "A100 80GB SXM": "a100_sxm",
    "H100 SXM": "h100_sxm",
    "H200 SXM": "h200_sxm",
    "B200 SXM": "b200_sxm",
    "L40S": "l40s",
}
"""GPU of the facts → its name in the tables."""

PROBE = "Qwen/Qwen3-8B"
"""Any model the library knows: the tables are reached through a compiled engine, whose own model plays no part."""
ENGINE = "vllm"


def engine(system: str, model: str = PROBE, tp: int = 1) -> Any:
    """The library's engine for a system. Raises MissingError without the extra."""
    try:
        from aiconfigurator_core.sdk.engine import EngineHandle
    except ImportError:
        raise MissingError(
            "--source silicon reads kernel times from aiconfigurator-core, which is not installed",
            mend="pip install 'has-epd[silicon]'  (Linux on x86-64), or --source roofline",
        ) from None
    # It warns at length about tables that no operation of ours reads.
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    return EngineHandle.compile(model, system, ENGINE, tp_size=tp)


class Silicon:
    """Kernel times from the tables, by the roofline where there are none.

    Raises MissingError without the extra, InputError for a GPU without tables.
    """

    def __init__(self, gpu: Gpu) -> None:
        if gpu.name not in SYSTEMS:
            raise InputError(
                f"there are no measured kernel times of the {gpu.name}",
                where="argument",
                field="--gpu",
                value=gpu.name,
                allowed=", ".join(SYSTEMS),
                mend="--source roofline",
            )
        self.gpu = gpu
        self.roofline = Roofline(gpu)
        self._engine = engine(SYSTEMS[gpu.name])
        self._known: dict[Operation, Cost] = {}
        self.missing: set[str] = set()
        self.library = f"aiconfigurator-core {version('aiconfigurator-core')}"

    def cost(self, operation: Operation) -> Cost:
        """Of all `count` runs of the operation."""
        if operation not in self._known:
            self._known[operation] = self._cost(operation)
        return self._known[operation]

    def _cost(self, operation: Operation) -> Cost:
        formula = self.roofline.cost(operation)
        if isinstance(operation, Elementwise) or operation.count == 0:
            return formula  # there is no table of these; the library too has a formula
        measured_s = self._measured(operation)
        if measured_s is None:
            self.missing.add(operation.name)
            return formula
        # What limits the kernel is the roofline's verdict, how long it takes the table's.
        scale = operation.count * measured_s / formula.seconds
        return Cost(
            formula.start_s * scale,
            formula.compute_s * scale,
            formula.stream_s * scale,
            formula.link_s * scale,
            formula.bytes,
        )

    def _measured(self, operation: Gemm | Attention | AllReduce) -> float | None:
        """Seconds of one run, or None where the tables have nothing near."""
        if isinstance(operation, Gemm) and operation.streamed is not None:
            return None  # experts: a grouped product
        batch, length, x = _query(operation)
        try:
            answer = self._engine.evaluate_ops_json(
                _spec(operation), is_context=True, batch_size=batch, s=length, x=x
            )
        except (
            Exception
        ):  # the library raises what its Rust part raises; all of it means: no such kernel here
            return None
        milliseconds = sum(entry[1] for entry in answer)
        return milliseconds * 1e-3 if milliseconds > 0 else None


def _query(operation: Gemm | Attention | AllReduce) -> tuple[int, int, int]:
    """(batch, length, tokens) that the library takes the shape from."""
    match operation:
        case Gemm():
            return 1, operation.m, operation.m
        case Attention():
            return operation.sequences, operation.length, operation.sequences * operation.queries
        case AllReduce():
            rows = max(1, round(operation.bytes / (2 * _REDUCED)))
            return 1, rows, rows


_REDUCED = 1024
"""Elements of a row of a sum over GPUs, for a library that wants rows; only their product counts."""


def _spec(operation: Gemm | Attention | AllReduce) -> str:
    """The operation in the library's words."""
    from aiconfigurator_core.sdk import common
    from aiconfigurator_core.sdk import operations as ops
    from aiconfigurator_core.sdk.engine import build_ops_json

    kv, fmha = common.KVCacheQuantMode.bfloat16, common.FMHAQuantMode.bfloat16
    match operation:
        case Gemm():
            mode = common.GEMMQuantMode.fp8 if operation.dtype == "fp8" else common.GEMMQuantMode.bfloat16
            op = ops.GEMM(operation.name, 1, operation.n, operation.k, mode)
        case Attention(kind="encoder"):
            op = ops.EncoderAttention(
                operation.name,
                1,
                operation.heads,
                operation.head_dim,
                fmha_quant_mode=fmha,
                partial_rotary_factor=0.0,
            )
        case Attention(kind="context"):
            op = ops.ContextAttention(
                operation.name, 1, operation.heads, operation.kv_heads, kv, fmha, head_size=operation.head_dim
            )
        case Attention():
            op = ops.GenerationAttention(
                operation.name, 1, operation.heads, operation.kv_heads, kv, head_size=operation.head_dim
            )
        case AllReduce():
            op = ops.CustomAllReduce(operation.name, 1, _REDUCED, operation.gpus)
    text: str = build_ops_json([op])
    return text

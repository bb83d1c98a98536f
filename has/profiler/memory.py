"""Which points of a plan a GPU has memory for, and how what does not fit is told.

    symbol   meaning
    r        requests times tokens of a point
    weights  of the model, of which tensor parallelism splits the language model alone
    kv       KV cache a token, likewise split

A decode holds the KV of its batch and of one sequence more, which slots are loaded from; a prefill its KV twice at the end (the
cache, and what is handed on), before that once and its activations; an encode its activations. What runs beside a point needs its own.
That is a lower bound, for kernels take room that is not known here: a point that fits by it and runs out all the same is left out then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

from has.core.stage import Beside, Stage
from has.errors import RunError
from has.latency.memory import gigabytes
from has.profiler.plan import Companion, Plan, Point

USABLE = 0.95
"""Share of a GPU's memory that weights and points may take: the driver's context, kernels and workspaces need the rest."""
ACTIVATION_WIDTHS = 20
"""Activations of a token, in embeddings: gate, up and their product of an MLP of five times the width, and attention's."""
Cell = tuple[int, int]
"""Batch and tokens."""
MEND = "--tensor-parallel N measures a rank's part; else a smaller model, weights of a smaller type, or a larger GPU"
_FULL = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


class OutOfMemory(RunError):
    """A GPU has no room for what was asked of it."""


@contextmanager
def no_room_for(what: str) -> Iterator[None]:
    """Tell an allocation that fails in here, of torch, a lane or another process, as OutOfMemory for `what`."""
    try:
        yield
    except (RuntimeError, RunError) as error:
        said = str(error)
        if isinstance(error, OutOfMemory) or not any(words in said for words in _FULL):
            raise
        raise OutOfMemory(
            f"the GPU's memory does not hold {what}: {said.splitlines()[0]}", mend=MEND
        ) from None


@dataclass
class Room:
    """Memory of one GPU, in bytes. kv, embedding: of a token. failed: points that ran out, and what was said."""

    has: int
    weights: float
    kv: float
    embedding: int
    failed: list[tuple[Point, str]] = field(default_factory=list)

    @classmethod
    def of(cls, memory_bytes: int, facts: Mapping[str, Any], gpus: int = 1, copies: int = 1) -> Self:
        """For one of `gpus` ranks of a model; copies: processes that hold it."""
        weights = facts["weights_bytes"]
        return cls(
            memory_bytes,
            copies * (weights["encoder"] + weights["lm"] / gpus),
            facts["kv_bytes_per_token"] / gpus,
            facts["embedding_bytes_per_token"],
        )

    def refuses(self, point: Point) -> str:
        """Why a point is not measured, or nothing."""
        for seen, said in self.failed:
            same = (seen.stage, seen.beside) == (point.stage, point.beside)
            if same and point.batch >= seen.batch and point.tokens >= seen.tokens:
                return said
        need = self._needs(point) + (self._needs(point.companion) if point.companion else 0.0)
        if self.weights + need <= USABLE * self.has:
            return ""
        beside = f" and {_size(point.companion)} of {point.beside}" if point.companion else ""
        return (
            f"{_size(point)}{beside} need {gigabytes(need)} beside {gigabytes(self.weights)} of weights,"
            f" of {gigabytes(self.has)}"
        )

    def _needs(self, work: Point | Companion) -> float:
        activations = work.batch * work.tokens * ACTIVATION_WIDTHS * self.embedding
        cache = work.batch * work.tokens * self.kv
        if work.stage is Stage.DECODE:
            return cache + work.tokens * self.kv
        if work.stage is Stage.PREFILL:
            return cache + max(cache, activations)
        return activations if work.stage is Stage.ENCODE else 0.0


def _size(work: Point | Companion) -> str:
    return f"{work.batch} x {work.tokens} tokens"


def fitting(plan: Plan, room: Room) -> tuple[Plan, list[str]]:
    """The plan without what `room` refuses, and a line on each grid that lost points.

    Look-ups need full grids, so of a stage and its neighbour those batches and tokens stay whose every combination fits: as
    many combinations as can be, of two values an axis if there are. Raises OutOfMemory where nothing is left of a stage alone.
    """
    grids: dict[tuple[Stage, Beside], list[Point]] = {}
    for point in plan.points:
        grids.setdefault((point.stage, point.beside), []).append(point)
    kept: set[Point] = set()
    said: list[str] = []
    for (stage, beside), points in grids.items():
        refused = {(p.batch, p.tokens): why for p in points if (why := room.refuses(p))}
        if not refused:
            kept.update(points)
            continue
        name = f"{stage} beside {beside}" if beside is not Beside.NONE else str(stage)
        first = min(refused)
        most = _largest({(p.batch, p.tokens) for p in points}, refused.keys())
        if most is None and beside is Beside.NONE:
            raise OutOfMemory(f"{plan.model} leaves no room for any {name}: {refused[first]}", mend=MEND)
        batch, tokens = most or (0, 0)
        kept.update(p for p in points if p.batch <= batch and p.tokens <= tokens)
        what = f"above batch {batch} or {tokens} tokens" if most else "at all"
        said.append(f"{name}: not measured {what}: {refused[first]}")
    return replace(plan, points=tuple(point for point in plan.points if point in kept)), said


def _largest(cells: set[Cell], refused: Set[Cell]) -> Cell | None:
    """The corner of the largest part of a full grid, from its origin, with nothing refused in it.

    One with two values of an axis goes before one with one, along which look-ups would find no difference.
    """

    def worth(corner: Cell) -> tuple[int, int, Cell]:
        batches = {batch for batch, _ in cells if batch <= corner[0]}
        counts = {tokens for _, tokens in cells if tokens <= corner[1]}
        return (len(batches) > 1) + (len(counts) > 1), len(batches) * len(counts), corner

    free = [
        corner
        for corner in cells
        if not any(batch <= corner[0] and tokens <= corner[1] for batch, tokens in refused)
    ]
    return max(free, key=worth, default=None)

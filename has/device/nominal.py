"""The nominal table: what each work costs on this CPU, measured once and kept.

One table serves a profile, a search and all its trials, so that a stage lasts the same in all of them. Costs are
CPU seconds on one thread, measured while all virtual GPUs work at the duty that pacing will run them at (`calibrate.py`): a
core that idles runs the same work up to twice slower than one kept hot, and has time for it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from has.device import host
from has.device.device_model import VIRTUAL_GPU
from has.errors import MissingError

STAGES = ("encode", "prefill", "decode")
OTHERS_BOUND = 0.2
"""Share of the cores that others may use while costs are measured."""
WAVERS_BOUND = 0.08
"""How far apart two halves of the measurement may be, at nine works in ten."""
VERSION = 5
"""Of the way costs are measured: tables of another are not used."""


@dataclass(frozen=True)
class Costs:
    """CPU seconds of one stage on a grid: cpu_s[i][j] at batch[i], tokens[j]; axes ascend."""

    batch: tuple[int, ...]
    tokens: tuple[int, ...]
    cpu_s: tuple[tuple[float, ...], ...]

    def at(self, batch: float, tokens: float) -> float:
        """Bilinear between points and beyond them along the end segments; never below a tenth of the least."""
        i, u = _segment(self.batch, batch)
        j, v = _segment(self.tokens, tokens)
        low = self._along_tokens(i, j, v)
        value = low if u == 0.0 else low + u * (self._along_tokens(i + 1, j, v) - low)
        return max(value, 0.1 * self._least)

    def _along_tokens(self, i: int, j: int, v: float) -> float:
        row = self.cpu_s[i]
        return row[j] if v == 0.0 else row[j] + v * (row[j + 1] - row[j])

    @cached_property
    def _least(self) -> float:
        return min(min(row) for row in self.cpu_s)


def _segment(axis: tuple[int, ...], x: float) -> tuple[int, float]:
    """Index of the segment that holds or is nearest x, and x's place on it (outside 0..1 beyond the ends)."""
    if len(axis) == 1:
        return 0, 0.0
    i = min(max(bisect_right(axis, x) - 1, 0), len(axis) - 2)
    return i, (x - axis[i]) / (axis[i + 1] - axis[i])


@dataclass(frozen=True)
class Nominal:
    """Costs per stage, and the share of the machine they were measured at and hold for.

    others: cores that other processes used meanwhile. They cost caches and clocks, so figures taken then are up
    to twice those of a quiet machine. wavers: how far apart two halves of the measurement were, relatively, at nine works in ten.
    Neither is part of what the table says.
    """

    model: str
    total_share: float
    slice_cores: float
    costs: Mapping[str, Costs]
    others: float = 0.0
    wavers: float = 0.0

    @property
    def disturbed(self) -> bool:
        return self.others > OTHERS_BOUND * host.cores()

    @property
    def sound(self) -> bool:
        """Whether it was measured on a machine that was quiet and steady."""
        return not self.disturbed and self.wavers <= WAVERS_BOUND

    def cpu_s(self, stage: str, batch: float, tokens: float) -> float:
        return self.costs[stage].at(batch, tokens)

    def seconds(self, stage: str, batch: float, tokens: float) -> float:
        """Seconds on a whole slice with no SM idle: CPU seconds / cores of a virtual GPU."""
        return self.cpu_s(stage, batch, tokens) / self.slice_cores

    def digest(self) -> str:
        said = {key: value for key, value in to_dict(self).items() if key not in ("others", "wavers")}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]


def _dump(table: Nominal) -> str:
    return json.dumps(to_dict(table), sort_keys=True)


def _key(model: str) -> str:
    """What a kept table depends on besides the share: model, device model, CPU, torch."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    parts = (model, VIRTUAL_GPU.digest(), host.cpu_name(), str(host.cores()), torch)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _folder() -> Path:
    return host.cache_folder() / "nominal"


def keep(table: Nominal) -> Path:
    """Write a table into the cache, whole or not at all."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_key(table.model)}-{table.total_share:g}.json"
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
    with os.fdopen(handle, "w") as file:
        file.write(_dump(table))
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).replace(path)
    return path


def kept(model: str, total_share: float | None = None) -> Nominal | None:
    """The kept table of `model` at `total_share` (None: HAS_CPU_SHARE, else the newest at any share).

    The share of the first measurement stays in force while its table is kept: a machine that has become
    busy since must not change what a profile means.
    """
    if total_share is None and "HAS_CPU_SHARE" in os.environ:
        total_share = host.total_share()
    pattern = f"{_key(model)}-*.json" if total_share is None else f"{_key(model)}-{total_share:g}.json"
    for path in sorted(_folder().glob(pattern), key=lambda p: p.stat().st_mtime, reverse=True):
        table = _load(path)
        if table is not None:
            return table
    return None


def require(model: str, total_share: float | None = None) -> Nominal:
    table = kept(model, total_share)
    if table is None:
        raise MissingError(
            f"the cost of {model} on this CPU has not been measured yet",
            mend=f"has profile --model {model} --quick",
        )
    return table


def _load(path: Path) -> Nominal | None:
    """A damaged file is no table; it will be measured again."""
    try:
        return from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def to_dict(table: Nominal) -> dict[str, Any]:
    """As JSON holds it."""
    return {"version": VERSION, **asdict(table)}


def from_dict(raw: Mapping[str, Any]) -> Nominal:
    """Raises ValueError, KeyError or TypeError where `raw` is no sound table."""
    costs = {
        stage: Costs(
            tuple(int(b) for b in c["batch"]),
            tuple(int(t) for t in c["tokens"]),
            tuple(tuple(float(x) for x in row) for row in c["cpu_s"]),
        )
        for stage, c in raw["costs"].items()
    }
    if raw["version"] != VERSION or set(costs) != set(STAGES) or not all(_sound(c) for c in costs.values()):
        raise ValueError("not a whole nominal table")
    others, wavers = float(raw.get("others", 0.0)), float(raw.get("wavers", 0.0))
    return Nominal(
        str(raw["model"]), float(raw["total_share"]), float(raw["slice_cores"]), costs, others, wavers
    )


def _sound(costs: Costs) -> bool:
    return (
        len(costs.cpu_s) == len(costs.batch) > 0
        and all(len(row) == len(costs.tokens) > 0 for row in costs.cpu_s)
        and all(math.isfinite(x) and x > 0 for row in costs.cpu_s for x in row)
    )

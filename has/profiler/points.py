"""Finished points, kept one a line as they come, so that an interrupted profile goes on where it stopped."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from has.core.words import plural
from has.device.gate import P90_BOUND
from has.files.jsonl import append_line, read_lines
from has.latency.confidence import half_width
from has.profiler.plan import Key, Point

COVERED_BOUND = 0.98


@dataclass(frozen=True, slots=True)
class Measured:
    """samples: durations in seconds; ratio: p90 of real/meant duration; covered: share of the time that the
    companion ran; sm_percent: what the device gave; dropped: samples that the host was late for."""

    samples: tuple[float, ...]
    ratio: float
    covered: float
    sm_percent: float
    dropped: int = 0

    @property
    def half_width(self) -> float:
        """Of the 90 % confidence interval of the mean, relative; infinite for one sample."""
        return half_width(self.samples)

    def disturbed(self, stage: str) -> bool:
        """Whether the host could not keep up while this was measured."""
        return self.ratio > P90_BOUND.get(stage, 1.0) or self.covered < COVERED_BOUND


@dataclass(frozen=True, slots=True)
class Progress:
    """done of total points, seconds left by forecast (None: unknown yet), and what is being done.

    warning: what is to be told once, or nothing."""

    done: int
    total: int
    eta_s: float | None
    doing: str
    warning: str = ""


class WorkFile:
    """What was measured of `points` under one `setup` (digest of model, device, costs and sampling). Without a path: in memory.

    Lines of another setup, or of a point that ran beside another companion, are left alone and not used.
    """

    def __init__(self, path: Path | None, setup: str, points: Iterable[Point]) -> None:
        self._path = path
        self._setup = setup
        self._companions = {point.key: _companion(point) for point in points}
        self._unused: set[Key] = set()
        self.measured: dict[Key, Measured] = {}
        self.facts: dict[str, Any] = {}
        if path is not None and path.exists():
            for line in read_lines(path, repair=True):
                self._take(line)

    def _take(self, line: Any) -> None:
        """A line that is not as we write them is passed over: its point is measured again."""
        with suppress(KeyError, TypeError, ValueError):
            if "facts" in line:
                if line["setup"] == self._setup:
                    self.facts = dict(line["facts"])
                return
            stage, beside, sm_percent, batch, tokens = line["point"]
            key: Key = (stage, beside, sm_percent, batch, tokens)
            if key not in self._companions:
                return
            if line["setup"] != self._setup or line.get("companion") != self._companions[key]:
                self._unused.add(key)
                return
            self.measured[key] = Measured(
                tuple(line["samples"]), line["ratio"], line["covered"], line["sm_percent"], line["dropped"]
            )

    def __contains__(self, point: Point) -> bool:
        return point.key in self.measured

    @property
    def unused(self) -> str:
        """How many points of these are kept, but not as they are measured now; nothing if none."""
        count = len(self._unused - self.measured.keys())
        return (
            f"{plural(count, 'kept point')} not used: measured on another device, at other costs or sampling, beside another"
            " companion, or by an earlier version"
            if count
            else ""
        )

    def note(self, facts: dict[str, Any]) -> None:
        """Keep what the bench says about the model."""
        self.facts = facts
        if self._path is not None:
            append_line(self._path, {"setup": self._setup, "facts": facts})

    def add(self, point: Point, measured: Measured) -> None:
        self.measured[point.key] = measured
        if self._path is not None:
            append_line(
                self._path,
                {
                    "setup": self._setup,
                    "point": list(point.key),
                    "companion": _companion(point),
                    "samples": list(measured.samples),
                    "ratio": measured.ratio,
                    "covered": measured.covered,
                    "sm_percent": measured.sm_percent,
                    "dropped": measured.dropped,
                },
            )


def _companion(point: Point) -> list[str | int] | None:
    """What runs beside a point, as a line keeps it."""
    other = point.companion
    return [str(other.stage), other.batch, other.tokens] if other else None


def medians(work: WorkFile) -> dict[Key, float]:
    """Seconds of every point measured."""
    return {key: statistics.median(measured.samples) for key, measured in work.measured.items()}


def work_file_path(out: str | Path) -> Path:
    """Where the points of the profile `out` are kept while it is made, and after."""
    out = Path(out)
    return out.with_name(f"{out.stem}.points.jsonl")

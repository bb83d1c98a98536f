"""Forms that latencies follow, fitted to the rows of a profile, with what is sure about their parameters.

    over SM share   T(f) = t0 + w · max(1/s, 1/f)        f: share of the SMs, 0..1; s: the share that the work fills
    over batch      T(b) = a + c · b
    over tokens     T(n) = a + c · n

s is where a curve goes flat: SMs that an encode or a prefill cannot fill, or, for decode, the share whose loads saturate the
memory. With s = 1 the first form is Amdahl's. Least squares of relative errors; t0, w, a, c at least 0. The range of s is
that of its 90 % profile interval: all s for which the others, fitted anew, leave a sum of squares of at most
min + t²·σ², σ² the residual variance or that of a good measurement, whichever is larger.

Fits describe a profile, for plots and readers; look-ups interpolate its rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from has.core.profile import Profile, ProfilePoint
from has.core.stage import Beside, Stage
from has.latency.confidence import t90

Floats = NDArray[np.float64]

LEAST_SHARES = 4
NOISE = 0.01
"""Relative standard deviation of a good measurement."""
_STEPS = 400


@dataclass(frozen=True, slots=True)
class ShareFit:
    """T over SM share. saturates, low, high: s and its interval, percent; errors: |fit/row - 1| over the rows."""

    start_s: float
    work_s: float
    saturates: float
    low: float
    high: float
    median_error: float
    worst_error: float
    points: int

    def seconds(self, share_percent: float) -> float:
        return self.start_s + self.work_s * max(100 / self.saturates, 100 / share_percent)


@dataclass(frozen=True, slots=True)
class LineFit:
    """T over batch or tokens. each_half_width: of the 90 % interval of `each_s`, relative (None for two points)."""

    start_s: float
    each_s: float
    each_half_width: float | None
    median_error: float
    worst_error: float
    points: int

    def seconds(self, x: float) -> float:
        return self.start_s + self.each_s * x


def fit_shares(rows: Mapping[float, float]) -> ShareFit | None:
    """share (percent) -> seconds; None for fewer than four shares, or latencies of nought."""
    shares, seconds = _ascending(rows)
    if len(shares) < LEAST_SHARES or not np.all(seconds > 0):
        return None
    f = shares / 100
    tried = np.linspace(f[0], 1.0, _STEPS)
    solved = [_line(np.maximum(1 / s, 1 / f), seconds) for s in tried]
    squares = np.array([squared for _, _, squared in solved])
    best = int(squares.argmin())
    freedom = max(1, len(f) - 3)
    variance = max(squares[best] / freedom, NOISE**2)
    near = np.flatnonzero(squares <= squares[best] + t90(freedom) ** 2 * variance)
    start_s, work_s, _ = solved[best]
    off = np.abs((start_s + work_s * np.maximum(1 / tried[best], 1 / f)) / seconds - 1)
    return ShareFit(
        start_s,
        work_s,
        100 * float(tried[best]),
        100 * float(tried[near[0]]),
        100 * float(tried[near[-1]]),
        float(np.median(off)),
        float(off.max()),
        len(f),
    )


def fit_line(rows: Mapping[float, float]) -> LineFit | None:
    """x -> seconds; None for fewer than two, or latencies of nought."""
    xs, seconds = _ascending(rows)
    if len(xs) < 2 or not np.all(seconds > 0):
        return None
    start_s, each_s, squared = _line(xs, seconds)
    off = np.abs((start_s + each_s * xs) / seconds - 1)
    half = None
    freedom = len(xs) - 2
    if freedom and each_s > 0:
        total = float(np.sum((xs / seconds) ** 2))
        spread = total - float(np.sum(xs / seconds**2) ** 2 / np.sum(1 / seconds**2))
        if spread > 1e-9 * total:  # else one row outweighs all others, and says nothing of a slope
            half = t90(freedom) * float(np.sqrt(squared / freedom / spread)) / each_s
    return LineFit(start_s, each_s, half, float(np.median(off)), float(off.max()), len(xs))


def _ascending(rows: Mapping[float, float]) -> tuple[Floats, Floats]:
    ordered = sorted(rows.items())
    return (
        np.array([x for x, _ in ordered], np.float64),
        np.array([seconds for _, seconds in ordered], np.float64),
    )


def _line(x: Floats, seconds: Floats) -> tuple[float, float, float]:
    """(a, c, Σ(fit/T - 1)²) of the best a + c·x with both at least 0."""
    u, v = 1 / seconds, x / seconds
    uu, uv, vv, su, sv = (float(each) for each in (u @ u, u @ v, v @ v, u.sum(), v.sum()))
    determinant = uu * vv - uv * uv
    candidates = [(su / uu, 0.0), (0.0, sv / vv)]
    if determinant > 1e-12 * uu * vv:
        a, c = (su * vv - sv * uv) / determinant, (sv * uu - su * uv) / determinant
        if a >= 0 and c >= 0:
            candidates = [(a, c)]
    return min(
        ((a, c, float(np.sum((a * u + c * v - 1) ** 2))) for a, c in candidates), key=lambda each: each[2]
    )


def measured_rows(profile: Profile) -> list[ProfilePoint]:
    """Rows with samples, where a profile has any: others were interpolated, and a fit would learn nothing from them."""
    sampled = [row for row in profile.rows if row.samples]
    return sampled or list(profile.rows)


def along_shares(
    rows: Iterable[ProfilePoint], stage: Stage, batch: int, tokens: int, beside: Beside = Beside.NONE
) -> dict[float, float]:
    """share -> seconds of one curve; rows of streams are on none."""
    return {
        row.sm_percent: row.latency_s
        for row in rows
        if (row.stage, row.beside, row.batch, row.tokens) == (stage, beside, batch, tokens)
        and (beside is Beside.NONE or row.sm_percent < 100)
    }


def fits(profile: Profile) -> list[dict[str, Any]]:
    """Fits over SM share as a profile keeps them: encode, prefill and decode, alone and beside each other, at a small, a
    middling and the largest batch and the middle token count."""
    rows = measured_rows(profile)
    found = []
    for stage, beside in (
        (Stage.ENCODE, Beside.NONE),
        (Stage.ENCODE, Beside.PREFILL),
        (Stage.PREFILL, Beside.NONE),
        (Stage.PREFILL, Beside.ENCODE),
        (Stage.DECODE, Beside.NONE),
    ):
        own = [row for row in rows if (row.stage, row.beside) == (stage, beside)]
        if not own:
            continue
        tokens = middle(sorted({row.tokens for row in own}))
        for batch in some(sorted({row.batch for row in own})):
            fit = fit_shares(along_shares(own, stage, batch, tokens, beside))
            if fit is not None:
                kept = {
                    key: float(f"{value:.4g}") if isinstance(value, float) else value
                    for key, value in asdict(fit).items()
                }
                found.append(
                    {"stage": str(stage), "beside": str(beside), "batch": batch, "tokens": tokens} | kept
                )
    return found


def middle(axis: Sequence[int]) -> int:
    """The lower of two middles: a point that was measured."""
    return axis[(len(axis) - 1) // 2]


def some(axis: Sequence[int]) -> list[int]:
    """First, middle, last."""
    return sorted({axis[0], middle(axis), axis[-1]})


def typical_error(found: Sequence[Mapping[str, Any]]) -> float | None:
    """Median over fits of their worst error; None without fits."""
    return statistics.median(fit["worst_error"] for fit in found) if found else None

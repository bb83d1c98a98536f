"""What is maximised, and how one value comes out of runs at one or more offered rates.

name      value of a candidate                                          shown as
goodput   goodput at the rate; with several rates the least share       requests/s, or a share
          of requests that met the SLO, over the rates
max-rate  largest offered rate whose attainment meets the target        requests/s
cost      share of requests that met the SLO at the rate (worst rate)   GPUs, or $/h with a price
          must reach the target; then the cheapest wins
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from has.core.deployment import POOLS, Deployment
from has.core.slo import Slo
from has.core.trial import Figures
from has.search.space import Candidate

ObjectiveName = Literal["max-rate", "goodput", "cost"]
OBJECTIVES: tuple[ObjectiveName, ...] = ("max-rate", "goodput", "cost")

GRID = 0.05
"""Step of the downward scan for a maximum rate, as a share of the rate."""
REFINED = 0.005
"""Width to which the scan's last step is halved."""
ABOVE = 1.1
"""Where the scan begins, as a multiple of what the candidate could carry."""


@dataclass(frozen=True, slots=True)
class Point:
    """One run at one offered rate. `figures` only where they were made."""

    rate: float
    attainment: float
    goodput_rps: float
    ttft_p99_ms: float
    figures: Figures | None = None

    @classmethod
    def of(cls, rate: float, figures: Figures) -> Point:
        return cls(
            rate=rate,
            attainment=float(figures["attainment"] or 0.0),
            goodput_rps=float(figures["goodput_rps"] or 0.0),
            ttft_p99_ms=_or_infinity((figures.get("ttft_ms") or {}).get("p99")),
            figures=figures,
        )


@dataclass(frozen=True, slots=True)
class Score:
    """A candidate's value, the run that decided it, and whether it meets the SLO."""

    value: float
    point: Point
    feasible: bool

    @property
    def rank(self) -> tuple[bool, float, float, float]:
        """Sorts the better last; where no value tells apart, what misses the SLO by least."""
        return (self.feasible, self.value, self.point.attainment, -self.point.ttft_p99_ms)


Run = Callable[[float], Point]
"""Runs one deployment at an offered rate."""


@dataclass(frozen=True, slots=True)
class Objective:
    """`rates` are those in force (empty for max-rate).

    `price` is per GPU and hour; `prices`, by pool, go before it, where GPUs differ.
    """

    name: ObjectiveName
    rates: tuple[float, ...]
    slo: Slo
    price: float | None = None
    prices: Mapping[str, float] = field(default_factory=dict)

    def score(
        self,
        run: Run,
        upper: float,
        *,
        grid: float = GRID,
        refined: float = REFINED,
        lower: float = 0.0,
        most: float = 0.0,
    ) -> Score:
        """The score of the deployment that `run` runs; `upper` bounds what it could carry, `most` how far that is
        doubted (max-rate)."""
        if self.name == "max-rate":
            target = self.slo.attainment
            return largest_rate(run, upper, target, grid=grid, refined=refined, lower=lower, most=most)
        points = [run(rate) for rate in self.rates]
        if self.name == "cost":
            worst = min(points, key=lambda p: p.attainment)
            value = worst.attainment
        else:
            # Not goodput over the rate: a drawn list offers a little more or less than its rate, and a surplus would
            # hide misses.
            worst = min(points, key=lambda p: p.attainment)
            value = worst.attainment if len(points) > 1 else worst.goodput_rps
        return Score(value, worst, all(p.attainment >= self.slo.attainment for p in points))

    def carried(self, attainment: float) -> float:
        """Requests a second within the SLO at the highest rate given, by the share of them that meets it.

        Goodput is that of one run: its rate may be another, and its last answer counts to its length.
        """
        return attainment * max(self.rates)

    def within_slo(self, carried: float) -> float:
        """Of what is carried the requests a second within the SLO: at a largest rate no more than the target is sure."""
        return carried * self.slo.attainment if self.name == "max-rate" else carried

    def cost(self, point: Candidate | Deployment) -> float:
        """What the GPUs cost: dollars an hour where there are prices, else how many they are."""
        return sum(gpus * self.prices.get(pool, self.price or 1.0) for pool, gpus in gpus_of(point))

    def shown(self, value: float, point: Candidate | Deployment) -> float:
        """The number that files and commands give as the objective."""
        return self.cost(point) if self.name == "cost" else value

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        return "minimize" if self.name == "cost" else "maximize"

    @property
    def unit(self) -> str:
        if self.name == "cost":
            return "GPUs" if self.price is None and not self.prices else "$/h"
        return (
            "share of requests within the SLO" if self.name == "goodput" and len(self.rates) > 1 else "req/s"
        )


def gpus_of(point: Candidate | Deployment) -> list[tuple[str, int]]:
    """(pool, GPUs) of a candidate or a deployment."""
    pools = POOLS[point.topology]
    if isinstance(point, Candidate):
        return list(zip(pools, point.gpus, strict=True))
    return [(pool, point.alloc[pool]) for pool in pools]


def largest_rate(
    run: Run,
    upper: float,
    target: float,
    *,
    grid: float = GRID,
    refined: float = REFINED,
    lower: float = 0.0,
    most: float = 0.0,
) -> Score:
    """Scan down from `ABOVE`·`upper` to the first rate that meets `target`, then halve to `refined`.

    Attainment is not monotone in the rate (a gap rule starves at low load), so the scan comes from
    above. Below `lower` it gives up: value 0, with the best point it saw. Where the first rate meets the target
    the bound was too low, and the scan goes up from there, as far as `most`.
    """
    least = max(lower, upper * 0.02)
    rate, missed = ABOVE * upper, None
    best: Point | None = None
    while True:
        point = run(rate)
        if point.attainment >= target:
            break
        if best is None or point.attainment >= best.attainment:
            best = point
        missed = rate
        rate *= 1 - grid
        if rate < least:
            return Score(0.0, best, feasible=False)
    while missed is None and rate * (1 + 2 * grid) <= most:
        tried = run(rate * (1 + 2 * grid))
        if tried.attainment >= target:
            rate, point = rate * (1 + 2 * grid), tried
        else:
            missed = rate * (1 + 2 * grid)
    if missed is not None:
        while missed - rate > refined * rate:
            middle = (missed + rate) / 2
            tried = run(middle)
            if tried.attainment >= target:
                rate, point = middle, tried
            else:
                missed = middle
    return Score(rate, point, feasible=True)


def nearby_rate(
    run: Run,
    guess: float,
    target: float,
    *,
    most: float = math.inf,
    step: float = 0.06,
    halvings: int = 2,
) -> float:
    """The largest rate near `guess` that meets `target`, for comparing like with like: a few runs only.

    At most `most`, where a scan from above would begin: a short run carries for a while what would
    choke a longer one. Walks up or down to where the target is crossed, halves, then interpolates
    linearly, so that the answer moves smoothly with the latencies. 0 where nothing down to a third of
    the guess meets it, or `most` is 0.
    """
    rate = min(guess, most)
    if rate <= 0:  # trials have shown that nothing can be carried
        return 0.0
    point = run(rate)
    if point.attainment >= target:
        while point.attainment >= target and rate < min(2 * guess, most):
            low, low_point = rate, point
            rate = min(rate * (1 + step), most)
            point = run(rate)
        if point.attainment >= target:
            return rate
        high, high_point = rate, point
    else:
        while point.attainment < target:
            high, high_point = rate, point
            rate *= 1 - step
            if rate < guess / 3:
                return 0.0
            point = run(rate)
        low, low_point = rate, point
    for _ in range(halvings):
        middle = (low + high) / 2
        point = run(middle)
        if point.attainment >= target:
            low, low_point = middle, point
        else:
            high, high_point = middle, point
    drop = low_point.attainment - high_point.attainment
    share = (low_point.attainment - target) / drop if drop > 0 else 0.0
    return low + min(max(share, 0.0), 1.0) * (high - low)


def tied(values: Sequence[float], tolerance: float = 0.005) -> list[int]:
    """Indices within `tolerance` of the largest."""
    best = max(values)
    return [i for i, v in enumerate(values) if v >= best - abs(best) * tolerance]


def _or_infinity(value: float | None) -> float:
    return float("inf") if value is None else float(value)

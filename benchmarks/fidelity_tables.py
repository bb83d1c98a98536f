"""The tables of benchmarks/fidelity.py: live beside simulated, what is out of bounds, and the ranking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import kendalltau

SATURATED = "saturated"
MEDIAN = {"throughput_rps": 2.0, "ttft_ms": 3.0, "ttft_p90_ms": 8.0, "tpot_ms": 3.0, "attainment": 5.0}
"""Bounds on the median deviation, percent (attainment: points)."""
WORST = {"throughput_rps": 5.0}
NAMES = {
    "throughput_rps": "throughput",
    "ttft_ms": "TTFT mean",
    "ttft_p90_ms": "TTFT p90",
    "tpot_ms": "TPOT mean",
    "attainment": "attainment",
}


@dataclass(frozen=True)
class Comparison:
    """One live run. `alone`: simulated from a profile without beside rows. `dispatched`: simulated as `simulated`,
    but with other draws of dispatch (empty where nothing is drawn). `again`: the same live run once more, if it was made.
    `drawn`: simulated with the workers that the live run drew (None where nothing is drawn)."""

    name: str
    label: str
    load: str
    live: dict[str, float]
    simulated: dict[str, float]
    alone: dict[str, float]
    dispatched: list[dict[str, float]]
    again: dict[str, float] | None = None
    drawn: dict[str, float] | None = None

    @property
    def same_draws(self) -> dict[str, float]:
        return self.simulated if self.drawn is None else self.drawn

    def off(self, figure: str, against: dict[str, float] | None = None) -> float:
        """Percent that live is above `against` (attainment: points)."""
        there = self.simulated if against is None else against
        if figure == "attainment":
            return 100 * (self.live[figure] - there[figure])
        return 100 * (self.live[figure] / there[figure] - 1)

    def spread(self, figure: str) -> float:
        """Standard deviation over draws of dispatch, as `off` counts."""
        values = np.array([one[figure] for one in self.dispatched])
        return float(100 * values.std(ddof=1) / (1 if figure == "attainment" else values.mean()))

    @property
    def mean_dispatched(self) -> dict[str, float]:
        return {name: float(np.mean([one[name] for one in self.dispatched])) for name in self.simulated}


def document(compared: list[Comparison], refused: list[dict[str, Any]], requests: int) -> str:
    parts = [
        "# Simulated against live\n",
        f"`python benchmarks/fidelity.py --out DIR`: {len({c.name for c in compared})} deployments of"
        f" `benchmarks/fidelity.yaml`, {requests} requests a run, {len(compared)} runs that passed their gate."
        " Cells are live / simulated (difference).\n",
        "![live against simulated](fidelity.svg)\n",
        "## With the measured profile\n",
        _table(compared),
        "\n## Against the bounds\n",
        _verdicts(compared, "simulated"),
        _misses(compared),
        "\n## Ranking\n",
        _ranking(compared),
        "\n## With a profile that knows each stage alone only\n",
        "The same live runs; what live trials would have to find out without `beside` rows.\n",
        _verdicts(compared, "alone"),
        _alone(compared),
        "\n## Chance in dispatch\n",
        _chance(compared),
        "\n## With the workers that live drew\n",
        "The same again, but where dispatch is random the simulator sends each request to the worker that the live run drew for it:"
        " chance is the same on both sides, and what is left is error.\n",
        _verdicts(compared, "same_draws"),
    ]
    if refused:
        parts.append("\n## Refused by the gate, not measured yet\n")
        parts += [f"- {row['deployment']} at {row['load']}: {row['reason']}" for row in refused]
    return "\n".join(parts) + "\n"


def _cell(live: float, there: float, off: float, digits: int, unit: str = " %") -> str:
    return f"{live:.{digits}f} / {there:.{digits}f} ({off:+.1f}{unit})"


def _table(compared: list[Comparison]) -> str:
    digits = {"throughput_rps": 2, "ttft_ms": 0, "ttft_p90_ms": 0, "tpot_ms": 1}
    lines = [
        "| deployment | load | throughput, req/s | TTFT mean, ms | TTFT p90, ms | TPOT mean, ms | attainment |",
        "|---|---|---|---|---|---|---|",
    ]
    for c in compared:
        cells = [f"{c.name} ({c.label})", c.load]
        cells += [_cell(c.live[f], c.simulated[f], c.off(f), n) for f, n in digits.items()]
        cells.append(_cell(c.live["attainment"], c.simulated["attainment"], c.off("attainment"), 2, ""))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _groups(compared: list[Comparison]) -> list[tuple[str, str, list[Comparison]]]:
    """(load, figure, runs) of every bound: throughput where it is the system's own, the rest below saturation."""
    groups = []
    for load in dict.fromkeys(c.load for c in compared):
        runs = [c for c in compared if c.load == load]
        figures = ["throughput_rps"] if load == SATURATED else [f for f in MEDIAN if f != "throughput_rps"]
        groups += [(load, figure, runs) for figure in figures]
    return groups


def _verdicts(compared: list[Comparison], which: str) -> str:
    lines = [
        "| load | figure | median off | bound | worst off | of |",
        "|---|---|---|---|---|---|",
    ]
    for load, figure, runs in _groups(compared):
        offs = [c.off(figure, getattr(c, which)) for c in runs]
        at = max(range(len(offs)), key=lambda i: abs(offs[i]))
        unit = " points" if figure == "attainment" else " %"
        bound = f"{MEDIAN[figure]:g}{unit}"
        if figure in WORST:
            bound += f", worst {WORST[figure]:g}{unit}"
        median = float(np.median(np.abs(offs)))
        lines.append(
            f"| {load} | {NAMES[figure]} | {median:.1f}{unit} | {bound} | {offs[at]:+.1f}{unit} | {runs[at].name} |"
        )
    return "\n".join(lines)


def _misses(compared: list[Comparison]) -> str:
    """Single runs beyond the bound of their figure (the worst's bound, where there is one)."""
    said = [
        f"- {c.name} at {load}: {NAMES[figure]} {c.off(figure):+.1f}"
        + (
            f" (its standard deviation over draws of dispatch: {c.spread(figure):.1f})"
            if c.dispatched
            else ""
        )
        for load, figure, runs in _groups(compared)
        for c in runs
        if abs(c.off(figure)) > WORST.get(figure, MEDIAN[figure])
    ]
    return "\n" + (
        "\n".join(["Single runs beyond these bounds:", "", *said])
        if said
        else "No single run is beyond them."
    )


def tau_beyond(live: list[float], there: list[float], noise: float) -> tuple[float, int]:
    """(Kendall's τ over pairs whose live values differ by more than `noise`, how many of them there are).

    A pair that `there` holds equal counts as neither right nor wrong.
    """
    pairs = [(i, j) for i in range(len(live)) for j in range(i) if abs(live[i] - live[j]) > noise]
    agree = [np.sign(live[i] - live[j]) * np.sign(there[i] - there[j]) for i, j in pairs]
    return (float(np.mean(agree)) if pairs else float("nan")), len(pairs)


def repeat_noise(compared: list[Comparison], figure: str) -> float | None:
    """By how much two runs of one kind differ at most, nineteen times of twenty: 1.96·sqrt(2)·sd of a run.

    sd² = Σ (first - again)² / 2n over the n deployments that ran twice; None where none did.
    """
    apart = [c.live[figure] - c.again[figure] for c in compared if c.again is not None]
    if not apart:
        return None
    return float(1.96 * np.sqrt(2) * np.sqrt(np.mean(np.square(apart)) / 2))


def _ranking(compared: list[Comparison]) -> str:
    """τ plain; and, where runs were repeated, what a repeat of the live runs themselves makes of the ranking."""
    lines = [
        "| goodput, ranked over | Kendall τ, measured profile | with live's draws | alone | live against live again |"
        " two runs differ by up to | τ of pairs farther apart | pairs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for load in [*dict.fromkeys(c.load for c in compared), "all runs"]:
        runs = [c for c in compared if load in (c.load, "all runs")]
        if len(runs) < 2:
            continue
        live = [c.live["goodput_rps"] for c in runs]
        there = [c.simulated["goodput_rps"] for c in runs]
        taus = [
            kendalltau(live, [getattr(c, w)["goodput_rps"] for c in runs]).statistic
            for w in ("simulated", "same_draws", "alone")
        ]
        cells = [f"{load} ({len(runs)})", *(f"{tau:.2f}" for tau in taus)]
        twice = [c for c in runs if c.again is not None]
        noise = repeat_noise(runs, "goodput_rps")
        if noise is None or load == "all runs":
            cells += [""] * 4
        else:
            first, again = zip(
                *((c.live["goodput_rps"], c.again["goodput_rps"]) for c in twice if c.again), strict=True
            )
            tau, pairs = tau_beyond(live, there, noise)
            of = len(runs) * (len(runs) - 1) // 2
            cells += [
                f"{kendalltau(first, again).statistic:.2f} ({len(twice)})",
                f"{noise:.2f} req/s",
                f"{tau:.2f}",
                f"{pairs} of {of}",
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _alone(compared: list[Comparison]) -> str:
    lines = [
        "",
        "| deployment | load | throughput | TTFT mean | TPOT mean | attainment |",
        "|---|---|---|---|---|---|",
    ]
    for c in compared:
        offs = [f"{c.off(f, c.alone):+.1f} %" for f in ("throughput_rps", "ttft_ms", "tpot_ms")]
        points = f"{c.off('attainment', c.alone):+.0f}"
        lines.append(f"| {c.name} ({c.label}) | {c.load} | {' | '.join(offs)} | {points} |")
    return "\n".join(lines)


def _chance(compared: list[Comparison]) -> str:
    """Where dispatch is drawn, a request a millisecond early in life takes another's draw: the same seed is then
    one run of many, and live belongs beside their mean."""
    lines = [
        "Where dispatch is random, draws go in order of time: a request that is a millisecond early in life takes another's"
        " draw. Live is then one of many equally good runs, and stands here beside the mean and the standard deviation (sd) of"
        f" the same run simulated with {max((len(c.dispatched) for c in compared), default=0)} other seeds of dispatch, and"
        " beside the same run with the workers that live drew (*own*).\n",
        "| deployment | load | throughput, off the mean | sd | own | TTFT mean, off | sd | own | TPOT mean, off | sd | own |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for c in compared:
        if not c.dispatched:
            continue
        mean = c.mean_dispatched
        cells = []
        for figure in ("throughput_rps", "ttft_ms", "tpot_ms"):
            own = "" if c.drawn is None else f"{c.off(figure, c.drawn):+.1f} %"
            cells += [f"{c.off(figure, mean):+.1f} %", f"{c.spread(figure):.1f} %", own]
        lines.append(f"| {c.name} | {c.load} | {' | '.join(cells)} |")
    return "\n".join(lines)

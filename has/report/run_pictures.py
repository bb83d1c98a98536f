"""The plots of a run, made from its replay, by the section that they stand in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from has.core.deployment import Deployment
from has.core.trial import Trial, TrialState
from has.core.words import percent
from has.errors import HasError
from has.report import pictures
from has.report.binding import NAMES, busiest_words, carries_words
from has.report.document import Part, number
from has.report.provenance import tried_words
from has.report.replay import Replay
from has.report.run import Run

LOST_BY = 0.005
"""A baseline that meets the SLO for so much less at the answer's rate has lost."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the simulator adds to a run: the reason for the answer in sentences, and plots by section.

    `fault` says why there is nothing, where the run's copies could not be replayed.
    """

    reason: tuple[str, ...] = ()
    plots: Mapping[str, list[Part]] = field(default_factory=dict)
    fault: str = ""


NOTHING = Seen()


def look(run: Run) -> Seen:
    """Replay a run. Never raises for a run that cannot be replayed: its report then has fewer plots."""
    if run.best is None:
        return NOTHING
    try:
        replay = Replay(run)
        return Seen(tuple(_reason(run, replay)), _plots(run, replay))
    except HasError as error:
        return Seen(fault=f"Not replayed, so plots are missing: {str(error).splitlines()[0]}")


def _reason(run: Run, replay: Replay) -> list[str]:
    """Why the answer is the answer: what binds it, and what the baselines miss at its rate."""
    best, lines = replay.best, []
    binding = replay.binding(best)
    good, _, _ = replay.misses(best, replay.rate)
    if binding is not None:
        busiest = busiest_words(binding[0], _figures(run, replay).get("stages") or {})
        lines.append(f"Why: {carries_words(*binding, replay.rate)}. {busiest}".rstrip())
    lost = [words for name, d in replay.baselines.items() if (words := _lost(replay, name, d, good))]
    if lost:
        told = f"At {number(replay.rate)} requests/s, simulated, {percent(good)} of its requests meet the SLO"
        lines.append(f"{told}; of {'; of '.join(lost)}.")
    return lines


def _lost(replay: Replay, name: str, deployment: Deployment, best: float) -> str:
    """`E+PD (2E6PD B4) 55.0 % do: 44.0 % miss TTFT`, and the stage that binds it where that cannot carry the rate."""
    if name not in pictures.SHORT or deployment.label == replay.best.label:
        return ""
    good, late, slow = replay.misses(deployment, replay.rate)
    if good > best - LOST_BY:
        return ""
    words = f"{pictures.SHORT[name]} ({deployment.label}) {percent(good)}: "
    words += f"{percent(late)} miss TTFT" if late >= slow else f"{percent(slow)} miss TPOT"
    binding = replay.binding(deployment)
    if binding is not None and binding[1] < 1.05 * replay.rate:
        words += f", for {_stage(binding[0])} carries {number(binding[1])} requests/s"
    return words


def _stage(name: str) -> str:
    return NAMES.get(name, name)


def _plots(run: Run, replay: Replay) -> dict[str, list[Part]]:
    best, slo = replay.best, replay.problem.slo
    plots: dict[str, list[Part]] = {}
    found = replay.landscape()
    if found is not None:
        plots["landscape"] = [pictures.landscape(found, best)]
    over_time = pictures.trials_over_time(
        run.trials, [replay.predicted(t) for t in run.trials], tried_words(run.evidence)
    )
    if over_time is not None:
        plots["trials"] = [over_time]
    plots["shares"] = _shares(replay)
    times = pictures.stage_times(_figures(run, replay))
    if times is not None:
        plots["stages"] = [times]
    named = {pictures.baseline_name(k): d for k, d in replay.baselines.items() if k in pictures.SHORT}
    sweeps = [replay.sweep(f"best, {best.label}", best)]
    sweeps += [replay.sweep(f"{name}, {d.label}", d) for name, d in named.items() if d.label != best.label]
    plots["sweep"] = [pictures.rate_sweep(sweeps, slo, replay.rate)]
    plots["distributions"] = _distributions(run, replay)
    return plots


def _figures(run: Run, replay: Replay) -> Mapping[str, Any]:
    """Of the answer's trial; where it had none, simulated at the answer's rate."""
    trial = best_trial(run)
    return (trial.figures if trial else None) or replay.figures(replay.best, replay.rate)


def _shares(replay: Replay) -> list[Part]:
    requests = replay.requests
    media = requests.media_tokens[requests.is_media]
    one = pictures.sm_shares(
        replay.profile,
        replay.best,
        float(np.median(media)) if len(media) else 0.0,
        float(np.median(requests.total_tokens)),
    )
    return [] if one is None else [one]


def _distributions(run: Run, replay: Replay) -> list[Part]:
    """TTFT and TPOT of the answer and the strongest baseline, at the rate that the answer is about.

    A short trial may have carried more than lasts: its percentiles are marked, at its own rate, and nothing is
    simulated there.
    """
    best, slo, rate = replay.best, replay.problem.slo, replay.rate
    measured = run.evidence.get("measured") or {}
    tried = f"at {number(float(measured.get('rate') or rate))} requests/s, {tried_words(run.evidence)}"
    whose = [(f"best, {best.label}", replay.latencies(best, rate))]
    rival = _strongest(run, replay)
    if rival is not None:
        whose.append((f"{rival[0]}, {rival[1].label}", replay.latencies(rival[1], rate)))
    words = f"Lines: at the answer's {number(rate)} requests/s, simulated at the stage latencies that the trials found."
    if measured:
        words += f" Marks: percentiles of the answer's trial {tried}."
    parts: list[Part] = [words]
    for i, (name, key, bound) in enumerate(
        (("TTFT", "ttft_ms", slo.ttft_ms), ("TPOT", "tpot_ms", slo.tpot_ms))
    ):
        curves = [(label, both[i]) for label, both in whose]
        if all(len(values) for _, values in curves):
            parts.append(pictures.distribution(name, curves, measured.get(key) or {}, bound, rate, tried))
    return parts


def _strongest(run: Run, replay: Replay) -> tuple[str, Deployment] | None:
    told = run.evidence.get("baselines") or {}
    there = [
        (float(told[k].get("objective") or 0.0), pictures.SHORT[k], d)
        for k, d in replay.baselines.items()
        if k in pictures.SHORT and d.label != replay.best.label
    ]
    if not there:
        return None
    _, name, deployment = max(there, key=lambda row: row[0])
    return name, deployment


def best_trial(run: Run) -> Trial | None:
    """The last whole trial of the answer."""
    if run.best is None:
        return None
    own = [t for t in run.trials if t.deployment.label == run.best.label and t.state is TrialState.COMPLETE]
    return own[-1] if own else None

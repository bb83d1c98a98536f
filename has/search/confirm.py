"""From trials to a recommendation: finalists by posterior mean, run again under other arrivals and loads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from has.core.requests import Requests
from has.core.trial import Trial, TrialState
from has.core.words import signed
from has.search.journal import Journal
from has.search.loop import Loop
from has.search.objective import Point, Score, tied
from has.search.outcome import RunnerUp
from has.search.problem import stretched
from has.search.space import Candidate
from has.search.trials import Measured, Trials, plain, record

CLEARLY = 1.02
"""How much more goodput a runner-up must show in the confirmation runs to take the first place."""
CLOSE, FAR_BEHIND = 0.03, 0.1
"""Behind the first by less than the one: what met the SLO goes first. By more than the other: no finalist."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Arrivals of another seed, at `load` times the rate."""

    seed_offset: int
    load: float


LIVE = (Condition(1, 0.85), Condition(2, 1.15))
SIMULATED = (Condition(1, 1.0), Condition(2, 0.85), Condition(3, 1.15))


@dataclass(frozen=True, slots=True)
class Choice:
    candidate: Candidate
    value: float
    confirmations: tuple[Trial, ...]
    runners_up: tuple[RunnerUp, ...]


def finalists(loop: Loop, inside: frozenset[Candidate], count: int) -> list[tuple[Candidate, float]]:
    """Completed trials inside the space by posterior mean; candidates equal within half a percent by
    fewest GPUs, then lowest measured p99 TTFT. With each its objective: measured, or where one rate
    cannot measure it the model's."""
    complete = [c for c, t in loop.finished.items() if t.state == TrialState.COMPLETE and c in inside]
    if not complete:
        return []
    belief = loop.posterior(complete)
    mean = dict(zip(complete, belief.mean.tolist(), strict=True))
    cost = loop.problem.objective
    pool = _in_reach(loop, complete, mean)
    chosen: list[tuple[Candidate, float]] = []
    while pool and len(chosen) < count:
        if cost.name == "cost" and loop.feasible(pool[0]):
            cheapest = min(map(cost.cost, pool))
            equals = [c for c in pool if cost.cost(c) <= cheapest * (1 + 1e-9)]
        else:
            equals = [pool[i] for i in tied([mean[c] for c in pool])]
        best = min(equals, key=lambda c: (c.total, _p99(loop.finished[c]), -mean[c]))
        chosen.append((best, objective_of(loop, best, mean[best])))
        pool.remove(best)
    return chosen


def _in_reach(loop: Loop, complete: list[Candidate], mean: dict[Candidate, float]) -> list[Candidate]:
    """Those that met the SLO, unless they are so far behind in the posterior that they did by luck."""
    meets = [c for c in complete if loop.feasible(c)]
    if loop.problem.objective.name == "cost":
        return meets or complete
    top = max(mean.values())
    for share in (CLOSE, FAR_BEHIND):
        near = [c for c in meets if mean[c] >= top - share * abs(top)]
        if near:
            return near
    return [c for c in complete if mean[c] >= top - FAR_BEHIND * abs(top)]


def objective_of(loop: Loop, candidate: Candidate, mean: float | None = None) -> float:
    """The number given for a tried candidate."""
    trial = loop.finished[candidate]
    if loop.trials.offered is not None:
        mean = float(loop.posterior([candidate]).mean[0]) if mean is None else mean
        return max(0.0, mean)
    return trial.objective if trial.objective is not None else 0.0


def confirm(
    loop: Loop,
    ranking: Sequence[tuple[Candidate, float]],
    journal: Journal,
    draw: Callable[[int, float], Requests],
    *,
    live: bool,
) -> Choice:
    """Run the finalists under every condition; the first stays first unless another is clearly better.

    `draw` gives, for a seed and the rate they will be offered at, requests at the problem's base rate.
    """
    rate = confirmation_rate(loop, *ranking[0])
    runs = {
        candidate: [
            _once(loop, candidate, journal, condition, rate * condition.load, draw)
            for condition in (LIVE if live else SIMULATED)
        ]
        for candidate, _ in ranking
    }
    first = ranking[0][0]
    leader = first
    if loop.problem.objective.name != "cost":
        for candidate, _ in ranking[1:]:
            gain = _gain(runs[leader], runs[candidate])
            if gain is not None and gain > CLEARLY:
                leader = candidate
    values = dict(ranking)
    others = [c for c, _ in ranking if c != leader]
    return Choice(
        candidate=leader,
        value=values[leader],
        confirmations=tuple(trial for trials in runs.values() for trial in trials),
        runners_up=tuple(
            RunnerUp(
                loop.problem.deployment(c),
                values[c],
                _why(loop, leader, c, values, _gain(runs[leader], runs[c])),
            )
            for c in others
        ),
    )


def confirmation_rate(loop: Loop, candidate: Candidate, value: float) -> float:
    """The rate in force: the highest that was asked for, or the maximum found."""
    objective = loop.problem.objective
    if objective.name != "max-rate":
        return max(objective.rates)
    return value if value > 0 else loop.finished[candidate].rate or loop.problem.base_rate


def _once(
    loop: Loop,
    candidate: Candidate,
    journal: Journal,
    condition: Condition,
    rate: float,
    draw: Callable[[int, float], Requests],
) -> Trial:
    deployment = loop.problem.deployment(candidate)
    seed = loop.problem.seed + condition.seed_offset
    kind = f"confirm: {condition.load:g} of the rate, other arrivals"
    known = journal.find(deployment, kind=kind, seed=seed, rate=rate)
    if known is not None:
        return known
    requests = stretched(draw(seed, rate), loop.problem.base_rate / rate)
    number = len(journal)
    loop.callbacks.trial_started(number, deployment.label, kind, rate, float("nan"))
    trial, _ = record(
        number,
        kind,
        deployment,
        seed,
        lambda: _measure(loop.trials, candidate, rate, requests, loop),
        rate=rate,
    )
    journal.append(trial)
    loop.callbacks.trial_finished(trial, float("nan"), loop.best_trial, replayed=False)
    return trial


def _measure(trials: Trials, candidate: Candidate, rate: float, requests: Requests, loop: Loop) -> Measured:
    outcome = trials.once(loop.problem.deployment(candidate), rate, requests)
    if outcome.figures is None:
        return Measured(TrialState.FAILED, None, None, None, outcome.reason, outcome.telemetry)
    point = Point.of(rate, plain(outcome.figures))
    score = Score(point.goodput_rps, point, point.attainment >= loop.problem.slo.attainment)
    return Measured(outcome.state, score, point.goodput_rps, point, outcome.reason, outcome.telemetry)


def _gain(mine: Sequence[Trial], its: Sequence[Trial]) -> float | None:
    """Goodput of `its` over that of `mine`, of the conditions under which both ran; None where that says nothing.

    A run that failed (most often a host too busy for it to be believed) is no run of no goodput.
    """
    both = [
        (a.figures["goodput_rps"] or 0.0, b.figures["goodput_rps"] or 0.0)
        for a, b in zip(mine, its, strict=True)
        if a.figures is not None and b.figures is not None
    ]
    ours, theirs = (sum(column) for column in zip(*both, strict=True)) if both else (0.0, 0.0)
    if ours > 0:
        return theirs / ours
    return math.inf if theirs > 0 else None


def _why(
    loop: Loop,
    leader: Candidate,
    other: Candidate,
    values: dict[Candidate, float],
    gain: float | None,
) -> str:
    """Why `other` came second, in words."""
    objective = loop.problem.objective
    mine, its = values[leader], values[other]
    better = mine < its if objective.name == "cost" else mine > its
    parts = []
    if better and mine:
        parts.append(f"objective {its:.4g} against {mine:.4g} {objective.unit}")
    elif not tied_pair(mine, its):
        parts.append(f"its trial was luckier ({its:.4g} against {mine:.4g} {objective.unit})")
    else:
        parts.append(f"as good ({its:.4g} {objective.unit})")
        slow, quick = _p99(loop.finished[other]), _p99(loop.finished[leader])
        if other.total != leader.total:
            parts.append(f"on {other.total} GPUs against {leader.total}")
        elif slow > quick:
            parts.append(f"p99 TTFT {slow:.0f} ms against {quick:.0f} ms")
    if gain is not None and math.isfinite(gain):
        parts.append(f"{signed(gain - 1)} goodput under other arrivals and loads")
    return ", ".join(parts)


def tied_pair(a: float, b: float) -> bool:
    return len(tied([a, b])) == 2


def _p99(trial: Trial) -> float:
    value = ((trial.figures or {}).get("ttft_ms") or {}).get("p99")
    return float("inf") if value is None else float(value)

"""One trial: a deployment run through the executor, at one rate or at as many as its objective asks for."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from has.core.deployment import Deployment
from has.core.requests import Requests
from has.core.trial import Executor, Figures, Outcome, Trial, TrialPlan, TrialState
from has.search.length import COARSE_SPAN
from has.search.objective import Objective, Point, Score
from has.search.problem import Problem, warmup_s
from has.search.watch import Watch


@dataclass(frozen=True, slots=True)
class Measured:
    """What the runs of one trial gave. `score` is None where it failed or was ended early.

    `shown` is the number the surrogate compares with its own prediction; `point` the run that
    decided, with its figures.
    """

    state: TrialState
    score: Score | None
    shown: float | None
    point: Point | None
    reason: str | None
    telemetry: Mapping[str, Any]


DECIDES = ("attainment", "goodput_rps")
"""Of the runs of several workloads the one that is least in these speaks for all."""


class _Ended(Exception):
    """A run of the trial failed or was ended early; carries its outcome."""

    def __init__(self, outcome: Outcome, rate: float) -> None:
        self.outcome = outcome
        self.rate = rate


class Trials:
    """Runs trials of one search: the same requests, arrivals and seed in each.

    `offered` is the one rate of live max-rate trials, which would take too long at many; elsewhere None.
    """

    def __init__(
        self,
        problem: Problem,
        executor: Executor,
        requests: Requests,
        offered: float | None,
        *,
        early_end: bool,
    ) -> None:
        self.problem = problem
        self.executor = executor
        self.requests = requests
        self.offered = offered
        self._own = threading.local()  # what the run in this thread tells: trials may run side by side
        self._early_end = early_end and executor.live
        self.incumbent: float | None = None
        """Goodput that a later trial on this list has to beat."""

    @property
    def several(self) -> bool:
        """Whether one trial takes several runs: at several rates, or of several workloads."""
        objective = self.problem.objective
        several_rates = objective.name == "max-rate" or len(objective.rates) > 1
        return bool(self.problem.further) or (self.offered is None and several_rates)

    def run(self, deployment: Deployment, upper: float) -> Measured:
        """Measure `deployment`; `upper` bounds the rate it could carry.

        Where that is 0 no rate meets the SLO; it is measured at the workload's own, to say how far off it is.
        """
        objective = self.problem.objective
        upper = upper if upper > 0 else self.problem.base_rate
        try:
            if self.offered is not None:
                point = self._point(deployment, self.offered)
                met = point.attainment >= objective.slo.attainment
                score = Score(point.goodput_rps, point, met)
                return Measured(TrialState.COMPLETE, score, point.goodput_rps, point, None, self._own.told)
            score = objective.score(lambda rate: self._point(deployment, rate), upper, most=self._most)
        except _Ended as end:
            return self._ended(end)
        return Measured(TrialState.COMPLETE, score, score.value, score.point, None, self._own.told)

    @property
    def _most(self) -> float:
        """The rate up to which a bound is doubted: stages may be faster than the profile says, and beyond it the
        list is over before slow overload shows."""
        return len(self.requests) / (COARSE_SPAN * self.problem.slo.ttft_s)

    def once(self, deployment: Deployment, rate: float, requests: Requests) -> Outcome:
        """One run at `rate` of requests that arrive at it, without early end; of several workloads the
        worst one's, the further ones drawn like these but with another seed."""
        first = self._execute(deployment, rate, requests, watch=None)
        if first.figures is None or not self.problem.further:
            return first
        beside = self.problem.beside(requests, self.problem.seed + 1)
        try:
            return self._worst(first, deployment, rate, beside)
        except _Ended as end:
            return end.outcome

    def _point(self, deployment: Deployment, rate: float) -> Point:
        """One run at `rate`; of several workloads one each, of which the worst speaks for all."""
        requests = self.problem.at_rate(rate, self.requests)
        watch = None
        if self._early_end and not self.several:
            watch = Watch(self.incumbent, requests.span_s, warmup_s(requests))
        outcome = self._execute(deployment, rate, requests, watch)
        if outcome.state != TrialState.COMPLETE or outcome.figures is None:
            raise _Ended(outcome, rate)
        outcome = self._worst(outcome, deployment, rate, self.problem.beside(self.requests))
        self._own.told = outcome.telemetry
        return Point.of(rate, plain(outcome.figures))

    def _worst(
        self, first: Outcome, deployment: Deployment, rate: float, beside: Sequence[Requests]
    ) -> Outcome:
        """`first`, or the run of a further workload that did worse; its figures then name the workload."""
        outcomes = [first]
        for workload, requests in zip(self.problem.further, beside, strict=True):
            outcome = self._execute(deployment, rate, self.problem.at_rate(rate, requests), watch=None)
            if outcome.state != TrialState.COMPLETE or outcome.figures is None:
                raise _Ended(outcome, rate)
            outcomes.append(replace(outcome, figures={**outcome.figures, "workload": workload.name}))
        return min(outcomes, key=lambda o: tuple((o.figures or {}).get(k) or 0.0 for k in DECIDES))

    def _execute(
        self, deployment: Deployment, rate: float, requests: Requests, watch: Watch | None
    ) -> Outcome:
        return self.executor.run(
            TrialPlan(
                deployment=deployment,
                requests=requests,
                rate=rate,
                slo=self.problem.slo,
                warmup_s=warmup_s(requests),
                seed=self.problem.seed,
                watch=watch,
            )
        )

    def _ended(self, end: _Ended) -> Measured:
        outcome = end.outcome
        point = None if outcome.figures is None else Point.of(end.rate, plain(outcome.figures))
        state = outcome.state if point is not None else TrialState.FAILED
        # An early end proves that the incumbent was out of reach: that is what is known of the value.
        bound = self.incumbent if state == TrialState.STOPPED else None
        reason = outcome.reason or "the run gave no figures"
        return Measured(state, None, bound, point, reason, outcome.telemetry)


def record(
    number: int,
    kind: str,
    deployment: Deployment,
    seed: int,
    run: Callable[[], Measured],
    *,
    rate: float | None = None,
) -> tuple[Trial, Measured]:
    """Run and time a trial. Its objective is the score's; who knows better replaces it.

    `rate`: what was asked for, which is the trial's where it gave no figures.
    """
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    begin = time.monotonic()
    measured = run()
    trial = Trial(
        number=number,
        kind=kind,
        state=measured.state,
        deployment=deployment,
        objective=None if measured.score is None else measured.score.value,
        figures=None if measured.point is None else measured.point.figures,
        reason=measured.reason,
        seed=seed,
        started_at=started,
        duration_s=round(time.monotonic() - begin, 3),
        rate=rate if measured.point is None else measured.point.rate,
        telemetry=plain(
            {
                **measured.telemetry,
                "shown": measured.shown,
                "feasible": measured.score is not None and measured.score.feasible,
            }
        ),
    )
    return trial, measured


def recalled(trial: Trial) -> Measured:
    """What a journaled trial measured: the same numbers as when it was run."""
    point = None
    if trial.figures is not None and trial.rate is not None:
        point = Point.of(trial.rate, trial.figures)
    score = None
    if trial.state == TrialState.COMPLETE and point is not None and trial.objective is not None:
        score = Score(trial.objective, point, bool(trial.telemetry.get("feasible")))
    return Measured(trial.state, score, trial.telemetry.get("shown"), point, trial.reason, trial.telemetry)


def plain(value: Any) -> Any:
    """As it comes back from JSON: a resumed search must see the very numbers that the first one saw."""
    return json.loads(json.dumps(value, default=_unwrap))


def _unwrap(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


def with_objective(trial: Trial, objective: float | None) -> Trial:
    return replace(trial, objective=objective)


def figures_of(outcome: Outcome) -> Figures | None:
    return None if outcome.figures is None else plain(outcome.figures)


def met_target(objective: Objective, point: Point) -> bool:
    return point.attainment >= objective.slo.attainment

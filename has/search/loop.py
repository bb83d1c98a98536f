"""Propose, try, learn — until nothing better is expected or the budget is spent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from has.core.deployment import Deployment
from has.core.requests import Floats, Requests
from has.core.trial import Trial, TrialState
from has.errors import InputError
from has.search.calibrate import telemetry
from has.search.ensemble import SimulatedEnsemble
from has.search.events import Callbacks
from has.search.hazard import chance_to_run
from has.search.journal import Journal
from has.search.predict import Predictor
from has.search.problem import Problem
from has.search.prune import Pruned
from has.search.ranking import Ranking
from has.search.samplers.port import Proposal, Sampler, Tried, View
from has.search.screen import Scores, tried
from has.search.space import Candidate, candidate_of
from has.search.stop import StopRule
from has.search.study import StudyMirror
from has.search.surrogate import Observation, Posterior, Surrogate, Telemetry
from has.search.trials import Measured, Trials, recalled, record, with_objective

AUDIT_FROM = 8
"""The least budget of which one trial goes to a candidate that was cut."""
BOUND_NOISE = 3.0
"""How much less a bound weighs than a finished trial."""
CARRIES_NOTHING = 0.02
"""A largest rate below this share of the offered one is none: a scan gives up there too."""
STOPPED_AT = 0.9
"""Share of the incumbent that a trial which could not reach it is taken to have."""


@dataclass
class Lists:
    """Requests a search uses, all drawn at the problem's base rate with its seed.

    trial   what every trial runs
    long    what the objective is judged on in simulation
    coarse  fewer of the same, for looking at everything once
    """

    trial: Requests
    long: Requests
    coarse: Requests


@dataclass(frozen=True)
class Begun:
    """A trial under way: `result` waits for it, or runs it."""

    candidate: Candidate
    deployment: Deployment
    expected: float
    result: Callable[[], tuple[Trial, Measured]]
    replayed: bool


class Loop:
    """One search in progress. `trials_left` counts what the budget still allows."""

    def __init__(
        self,
        problem: Problem,
        lists: Lists,
        trials: Trials,
        pruned: Pruned,
        kept_scores: Scores,
        cut_scores: Scores,
        baselines: Mapping[str, Candidate],
        sampler: Sampler,
        surrogate: Surrogate,
        ensemble: SimulatedEnsemble,
        uncalibrated: Predictor,
        journal: Journal,
        mirror: StudyMirror,
        callbacks: Callbacks,
        budget: int,
        *,
        audits: bool,
    ) -> None:
        self.problem = problem
        self.lists = lists
        self.trials = trials
        self.ranking = Ranking(problem.objective, pruned, kept_scores, cut_scores, uncalibrated)
        self.baselines = baselines
        self.sampler = sampler
        self.surrogate = surrogate
        self.ensemble = ensemble
        self.uncalibrated = uncalibrated
        self.journal = journal
        self.callbacks = callbacks
        self.budget = budget
        self.stop = StopRule()
        self.finished: dict[Candidate, Trial] = {}
        self._history: list[Tried] = []
        self._mirror = mirror
        self._audits = audits and budget >= AUDIT_FROM and bool(cut_scores)
        self._number = 0

    def optimise(self) -> None:
        """Baselines, then proposals, then the audit; a refuted cut is taken back and proposals go on.

        Whatever the journal holds is learned from, also where another budget made proposals go on for longer.
        """
        for name, candidate in self.baselines.items():
            if candidate not in self.finished:
                self.measure(candidate, f"baseline:{name}")
        self._propose_and_learn(reserved=1 if self._audits else 0)
        self._replay(until="audit")
        if self._audits and self._audit_refutes():
            self.stop = StopRule()
            self._propose_and_learn(reserved=0)
        self._replay()

    def _replay(self, until: str | None = None) -> None:
        """Take the next trials from the journal, up to one of the kind `until`."""
        while (known := self.journal.get(self._number)) is not None and known.kind != until:
            self.measure(candidate_of(known.deployment), known.kind)

    def _propose_and_learn(self, reserved: int) -> None:
        while self.trials_left > reserved:
            together: list[Candidate] = []
            while len(together) < min(self.trials.executor.parallel, self.trials_left - reserved):
                proposal = self.propose(self.trials_left - reserved - len(together), together)
                if proposal is None:
                    break
                if not together:
                    self.stop.heard(proposal.expected_improvement)
                together.append(proposal.candidate)
            if not together or self.stop.satisfied:
                return
            self.measure_together(together)

    @property
    def pruned(self) -> Pruned:
        return self.ranking.pruned

    @property
    def trials_left(self) -> int:
        return self.budget - self._number

    def posterior(self, candidates: Sequence[Candidate]) -> Posterior:
        return self.surrogate.posterior(candidates)

    @property
    def shortlist(self) -> list[Candidate]:
        """What the surrogate judges: the first of the ranking, and everything that was tried."""
        first = self.ranking.first
        return [*first, *(c for c in self.finished if c not in set(first))]

    def propose(self, remaining: int, pending: Sequence[Candidate] = ()) -> Proposal | None:
        return self.sampler.propose(
            View(
                candidates=self.ranking.order,
                shortlist=self.shortlist,
                tried=tuple(self._history),
                number=self._number + len(pending),
                remaining=remaining,
                seed=self.problem.seed,
                objective=self.problem.objective,
                posterior=self.posterior,
                chance=self.chance_to_run,
                pending=tuple(pending),
                dear=self.trials.executor.live,
            )
        )

    def chance_to_run(self, candidates: Sequence[Candidate]) -> Floats:
        """Of each the probability that it runs at all, from the crashes of its like."""
        crashed = [entry.candidate for entry in self._history if entry.state == TrialState.FAILED]
        ran = [entry.candidate for entry in self._history if entry.state != TrialState.FAILED]
        return chance_to_run(self.surrogate.features, candidates, ran, crashed)

    def measure(self, candidate: Candidate, kind: str) -> Trial:
        """Try the candidate, or take the trial from the journal if this search had come so far before."""
        return self._finish(self._start(candidate, kind))

    def measure_together(self, candidates: Sequence[Candidate]) -> None:
        """Try these side by side; they are learned from in the order in which they were proposed."""
        if len(candidates) == 1:
            self.measure(candidates[0], "search")
            return
        with ThreadPoolExecutor(len(candidates)) as threads:
            started = [self._start(c, "search", i, threads.submit) for i, c in enumerate(candidates)]
            for begun in started:
                self._finish(begun)

    def _start(
        self,
        candidate: Candidate,
        kind: str,
        ahead: int = 0,
        submit: Callable[..., Future[tuple[Trial, Measured]]] | None = None,
    ) -> Begun:
        """Begin trial number `ahead` from now: in its own thread with `submit`, else when it is finished."""
        number = self._number + ahead
        known = self.journal.get(number)
        if known is not None:
            candidate = candidate_of(known.deployment)
        deployment = self.problem.deployment(candidate)
        expected = self._expected(candidate)
        if known is not None:
            return Begun(candidate, deployment, expected, lambda: (known, recalled(known)), replayed=True)
        self.callbacks.trial_started(
            number, deployment.label, kind, self.trials.offered, self._shown(expected, candidate)
        )
        upper = self.ensemble.central.limit(candidate)
        run = partial(
            record, number, kind, deployment, self.problem.seed, partial(self.trials.run, deployment, upper)
        )
        result = run if submit is None else submit(run).result
        return Begun(candidate, deployment, expected, result, replayed=False)

    def _finish(self, begun: Begun) -> Trial:
        candidate = begun.candidate
        trial, measured = begun.result()
        self._learn(candidate, begun.deployment, measured)
        if not begun.replayed:
            trial = with_objective(trial, self.objective(candidate, measured))
            self.journal.append(trial)
        self._keep(candidate, trial, measured)
        expected = self._shown(begun.expected, candidate)
        self.callbacks.trial_finished(trial, expected, self.best_trial, replayed=begun.replayed)
        return trial

    def _keep(self, candidate: Candidate, trial: Trial, measured: Measured) -> None:
        self._number += 1
        self._mirror.add(trial)
        if candidate not in self.finished or trial.state == TrialState.COMPLETE:
            self.finished[candidate] = trial
        value = self._value(trial, measured)
        self._history.append(
            tried(self.problem.objective, candidate, trial.state, value, self._feasible(trial, measured))
        )
        if trial.state == TrialState.COMPLETE and measured.point is not None:
            self.trials.incumbent = max(self.trials.incumbent or 0.0, measured.point.goodput_rps)

    def _learn(self, candidate: Candidate, deployment: Deployment, measured: Measured) -> None:
        told: list[Telemetry] = []
        again = candidate in self.finished  # it would err as the first time: that is no second witness
        if measured.point is not None and measured.point.figures is not None and not again:
            told = self._telemetry(deployment, measured.point.rate, measured.point.figures)
        moved = self.surrogate.learn(self._observation(candidate, measured), told)
        if moved:
            self.callbacks.note("stage latencies differ from the profile: ranking the candidates again")
            back = self.ranking.again(self.ensemble.central, self.lists.coarse, self.lists.long)
            if back is not None:
                self.callbacks.note(back)

    def _observation(self, candidate: Candidate, measured: Measured) -> Observation | None:
        if measured.state == TrialState.COMPLETE and measured.shown is not None:
            return Observation(candidate, measured.shown)
        if measured.state == TrialState.STOPPED and measured.shown is not None:
            if self.ensemble.column(candidate).z <= measured.shown:
                return None  # the model expected as much already
            return Observation(candidate, STOPPED_AT * measured.shown, BOUND_NOISE)
        return None

    def _telemetry(
        self, deployment: Deployment, rate: float, measured: Mapping[str, object]
    ) -> list[Telemetry]:
        central = self.ensemble.central
        name = measured.get("workload")
        requests = self.problem.of_workload(None if name is None else str(name), self.lists.trial)
        try:
            simulated = central.figures(deployment, rate, requests)
        except InputError:
            return []
        return telemetry(
            deployment,
            measured,
            simulated,
            central.latency,
            self.problem.demand,
            self.surrogate.centre,
            self.ensemble.factors,
        )

    def _audit_refutes(self) -> bool:
        """Try the likeliest candidate that was cut; if it beats all others, its rule was wrong here."""
        candidate = self.ranking.likeliest_cut(self.finished)
        if candidate is None or self.trials_left < 1 or self.sampler.exhaustive:
            return False
        best_before = self.best_trial
        trial = self.measure(candidate, "audit")
        if trial.state != TrialState.COMPLETE or best_before is None or self.best_trial is not trial:
            return False
        self.callbacks.note(self.ranking.take_back(candidate))
        return True

    # What a trial is worth.

    def objective(self, candidate: Candidate, measured: Measured) -> float | None:
        """As the journal states it: measured, or where one rate cannot measure it, the calibrated model's."""
        if measured.state == TrialState.FAILED:
            return None
        if self.trials.offered is not None:
            return max(0.0, float(self.posterior([candidate]).mean[0]))
        if measured.score is not None:
            return self.problem.objective.shown(measured.score.value, candidate)
        return measured.shown

    def deployment_value(self, deployment: Deployment, measured: Measured, limit: float) -> float | None:
        """The objective of a deployment that is no candidate (a user's file)."""
        if measured.point is None or measured.score is None:
            return None
        if self.trials.offered is None:
            return self.problem.objective.shown(measured.score.value, deployment)
        central = self.ensemble.central
        largest = central.score_deployment(deployment, self.lists.long, limit).value
        expected = central.point(deployment, self.trials.offered, self.lists.trial).goodput_rps
        missing = (measured.point.goodput_rps - expected) / self.trials.offered
        return largest * (1 + max(-0.5, min(0.5, missing)))

    def predicted_value(self, deployment: Deployment) -> float | None:
        """The calibrated simulator's objective of a deployment whose own trial gave none; None if it cannot say."""
        try:
            value = self.carried(deployment, self.lists.long)
        except InputError:
            return None
        if self.problem.objective.name == "cost" and value < self.problem.slo.attainment:
            return None
        return self.problem.objective.shown(value, deployment)

    def carried(
        self,
        deployment: Deployment,
        requests: Requests,
        upper: float | None = None,
        predictor: Predictor | None = None,
    ) -> float:
        """The calibrated simulator's value of `deployment` on `requests`; of a largest rate, at most `upper`.

        `predictor`: a twin of the calibrated one, in a thread. Raises InputError where a size lies beyond the profile's reach.
        """
        calibrated = self.ensemble.central if predictor is None else predictor
        limit = calibrated.limit_of(deployment)
        return calibrated.score_deployment(deployment, requests, limit, upper=upper).value

    @property
    def simulations(self) -> int:
        """Simulated runs so far, all members of the ensemble counted."""
        return self.uncalibrated.simulations + self.ensemble.simulations

    def _value(self, trial: Trial, measured: Measured) -> float | None:
        """What samplers maximise."""
        if self.problem.objective.name == "cost":
            return measured.shown
        return trial.objective

    def _feasible(self, trial: Trial, measured: Measured) -> bool:
        if trial.state != TrialState.COMPLETE or measured.score is None:
            return False
        return (trial.objective or 0.0) > 0 if self.trials.offered is not None else measured.score.feasible

    def _expected(self, candidate: Candidate) -> float:
        return float(self.posterior([candidate]).mean[0])

    def _shown(self, value: float, candidate: Candidate) -> float:
        return self.problem.objective.shown(value, candidate)

    @property
    def best_trial(self) -> Trial | None:
        """The best so far by what was measured: meets the SLO first, then cheap, then value."""
        best: tuple[tuple[float, ...], Trial] | None = None
        trials = {t.candidate: t for t in self._history if t.state == TrialState.COMPLETE}
        for candidate, entry in trials.items():
            objective = self.problem.objective
            cheap = -objective.cost(candidate) if objective.name == "cost" and entry.feasible else 0.0
            key = (float(entry.feasible), cheap, entry.value or 0.0)
            if best is None or key > best[0]:
                best = (key, self.finished[candidate])
        return None if best is None else best[1]

    def feasible(self, candidate: Candidate) -> bool:
        """Whether it met the SLO when it was tried; where its largest rate is believed and not measured, whether it
        still is by what all trials have shown since."""
        met = any(entry.candidate == candidate and entry.feasible for entry in self._history)
        if not met or self.trials.offered is None:
            return met
        return float(self.posterior([candidate]).mean[0]) > CARRIES_NOTHING * self.trials.offered

    def value(self, candidate: Candidate) -> float | None:
        """Measured value of a tried candidate, as samplers saw it."""
        values = [entry.value for entry in self._history if entry.candidate == candidate]
        return values[-1] if values else None

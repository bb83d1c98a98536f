"""A finished run asked again: what the simulator, corrected by the run's own trials, says around the answer.

Everything here is simulated with the run's copies of profile, workload and question, at the latencies
that its trials found (`stage_factors` of the evidence), so that it costs a few seconds and no trial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from has.core.deployment import Deployment
from has.core.figures import figures, kept_after, met
from has.core.records import NEVER, Records
from has.core.requests import Requests
from has.core.slo import Slo
from has.core.trial import Trial
from has.core.workload import Workload
from has.errors import HasError
from has.files.jsonl import read_lines
from has.report.landscape import REQUESTS as LANDSCAPE_REQUESTS
from has.report.landscape import Landscape, landscape
from has.report.run import Run
from has.search.factors import FACTORS
from has.search.inputs import Inputs
from has.search.journal import read_all_inputs, trial_from_line
from has.search.length import MOST, SPAN, requests_lasting
from has.search.objective import Objective
from has.search.predict import Predictor, scaled
from has.search.problem import Problem, rate_in_force, warmup_s
from has.search.question import REQUESTS, longer, requests_to_draw
from has.search.space import candidate_of
from has.search.traffic import Played, most_like, replay
from has.sim.draw import draw_requests

Floats = NDArray[np.float64]

MOST_REQUESTS = 10_000
"""Of the list that the answer's claims are held to here: it lasts, as the search's own does. Of many GPUs, as many
times more as they serve it faster."""
SWEEP = (0.3, 0.45, 0.6, 0.7, 0.8, 0.88, 0.94, 1.0, 1.06, 1.12, 1.2, 1.35, 1.5)
"""Rates of the sweep, as shares of the rate in force."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One deployment over rising rates."""

    name: str
    rates: tuple[float, ...]
    attainment: tuple[float, ...]


class Replay:
    """The problem of a run that has an answer. Raises HasError where the run's copies cannot be read."""

    def __init__(self, run: Run) -> None:
        assert run.best is not None
        self.run = run
        self.best: Deployment = run.best.model_copy(update={"evidence": None})
        inputs = read_all_inputs(run.folder)
        self.profile, self.workload, self.space = inputs.profile, inputs.workloads[0], inputs.space
        question = run.manifest["question"]
        whole = _drawn(question, self.workload)
        self._played = _played(question, whole) if self.workload.arrivals.process == "trace" else None
        self.problem = _problem(question, inputs, whole, self._played)
        found = run.evidence.get("stage_factors") or {}
        logs = np.array([math.log(float((found.get(name) or {}).get("factor") or 1.0)) for name in FACTORS])
        self._predictor = Predictor(self.problem, scaled(self.problem.latency, logs))
        self._plain = Predictor(self.problem)
        self.rate = self._rate()

    def _rate(self) -> float:
        """The rate that the answer is about: the largest one held, or the one asked for."""
        rate = self.best.rate or (self.run.evidence.get("measured") or {}).get("rate")
        return float(rate or self.problem.base_rate)

    @cached_property
    def requests(self) -> Requests:
        """Traffic that lasts: of another seed than the trials', or what the search judged of the trace."""
        problem = self.problem
        if self._played is not None:
            return self._played.judged
        most = min(MOST, MOST_REQUESTS * longer(problem.gpus))
        count = requests_lasting(SPAN, problem.slo.ttft_s, self.rate, most=most)
        model = problem.settings["model"]
        return draw_requests(
            self.workload, rate=problem.base_rate, requests=count, seed=problem.seed + 1, model=model
        )

    def records(self, deployment: Deployment, rate: float) -> Records:
        """One simulation of the run's traffic at `rate`."""
        return self._predictor.records(deployment, rate, self.requests)

    def figures(self, deployment: Deployment, rate: float) -> dict[str, Any]:
        """Its figures, as a search counts them."""
        records = self.records(deployment, rate)
        return figures(records, self.problem.slo, warmup_s(records.requests))

    def misses(self, deployment: Deployment, rate: float) -> tuple[float, float, float]:
        """(attainment, share of requests over the TTFT bound, share over the TPOT bound) at `rate`."""
        records = self.records(deployment, rate)
        kept = kept_after(records, warmup_s(records.requests))
        late = ~met(records, Slo(ttft_ms=self.problem.slo.ttft_ms, tpot_ms=1e12, attainment=0.5))
        good = met(records, self.problem.slo)
        return (
            float(np.mean(good[kept])),
            float(np.mean(late[kept])),
            float(np.mean((~good & ~late)[kept])),
        )

    def binding(self, deployment: Deployment) -> tuple[str, float] | None:
        """(the stage that binds, requests/s that it can carry), by the profile and the SLO."""
        candidate = candidate_of(deployment)
        found = self._predictor.capacity.of(candidate, self.problem.kv_tokens(candidate))
        return (found.binding, found.limit) if math.isfinite(found.limit) else None

    def predicted(self, trial: Trial) -> float | None:
        """Requests/s within the SLO that the profile as it is, uncorrected, predicts for a trial."""
        if trial.rate is None:
            return None
        try:
            name = (trial.figures or {}).get("workload")
            requests = self.problem.of_workload(name, self._trial_requests)
            said = self._plain.figures(trial.deployment, trial.rate, requests)
        except HasError:
            return None
        return trial.rate * float(said["attainment"] or 0.0)

    @cached_property
    def _trial_requests(self) -> Requests:
        if self._played is not None:
            return self._played.trial
        return self.problem.requests[: int(self.run.manifest["question"]["requests"])]

    @cached_property
    def baselines(self) -> dict[str, Deployment]:
        """By name, as the evidence lists them."""
        path = self.run.folder / "baselines.jsonl"
        extra = [trial_from_line(line, str(path)) for line in read_lines(path)] if path.is_file() else []
        trials = [*self.run.trials, *extra]
        named = {
            t.kind.removeprefix("baseline:"): t.deployment for t in trials if t.kind.startswith("baseline:")
        }
        by_label = {t.deployment.label: t.deployment for t in trials}
        found = {}
        for name, told in (self.run.evidence.get("baselines") or {}).items():
            deployment = named.get(name) or by_label.get(str(told.get("deployment")))
            if deployment is not None:
                found[name] = deployment
        return found

    def sweep(self, name: str, deployment: Deployment) -> Sweep:
        """Attainment and goodput at `SWEEP` times the rate of the answer."""
        rates = tuple(self.rate * share for share in SWEEP)
        points = [self._predictor.point(deployment, rate, self.requests) for rate in rates]
        return Sweep(name, rates, tuple(p.attainment for p in points))

    def latencies(self, deployment: Deployment, rate: float) -> tuple[Floats, Floats]:
        """(TTFT, TPOT) in ms of the requests counted that were answered, sorted."""
        records = self.records(deployment, rate)
        requests = records.requests
        kept = kept_after(records, warmup_s(requests)) & (records.first_token_ns != NEVER)
        ttft = (records.first_token_ns - requests.arrival_ns)[kept] / 1e6
        paced = kept & (requests.output_tokens > 1) & (records.finish_ns != NEVER)
        tpot = (records.finish_ns - records.first_token_ns)[paced] / (requests.output_tokens[paced] - 1) / 1e6
        return np.sort(ttft), np.sort(tpot)

    def landscape(self) -> Landscape | None:
        """What is within the SLO around the answer, over split, s and B."""
        few = None if self._played is None else lambda count: most_like(self.requests, count)[0]
        return landscape(
            self._predictor,
            self.space,
            self.rate,
            self.requests,
            answer=candidate_of(self.best),
            tried=[candidate_of(trial.deployment) for trial in self.run.trials],
            few=few,
        )


def _played(question: Mapping[str, Any], trace: Requests) -> Played:
    """What the run's trials replayed of its trace."""
    live = question["on"] != "simulated"
    return replay(trace, question["requests"], live=live, few=REQUESTS[True], look=LANDSCAPE_REQUESTS[0])


def _drawn(question: Mapping[str, Any], workload: Workload) -> Requests:
    """The list that the run's trials were cut from: a trace whole, else as many as the search drew."""
    if workload.arrivals.process == "trace":
        return draw_requests(workload, seed=question["seed"], model=question["model"])
    count, _ = requests_to_draw(question)
    rate = _asked_rate(question, workload)
    return draw_requests(workload, rate=rate, requests=count, seed=question["seed"], model=question["model"])


def _asked_rate(question: Mapping[str, Any], workload: Workload) -> float:
    return float(max(question["rates"], default=None) or workload.arrivals.rate or 1.0)


def _problem(question: Mapping[str, Any], inputs: Inputs, drawn: Requests, played: Played | None) -> Problem:
    """The problem as the search posed it."""
    workload, *further = inputs.workloads
    settings = {"model": question["model"], **(question.get("settings") or {})}
    if played is not None:
        settings.setdefault("rate_estimate", "online")
    slo = Slo(**question["slo"])
    return Problem(
        gpus=question["gpus"],
        profile=inputs.profile,
        pool_profiles=inputs.pool_profiles,
        workload=workload,
        further=tuple(further),
        objective=Objective(question["objective"], tuple(question["rates"]), slo, question.get("price")),
        requests=drawn if played is None else played.judged,
        base_rate=_asked_rate(question, workload) if played is None else rate_in_force(workload, drawn),
        seed=question["seed"],
        settings=settings,
        batches=inputs.space.encode_batch,
    )


def share_below(values: Sequence[float] | Floats, points: int = 60) -> tuple[list[float], list[float]]:
    """(values, share of the whole at or below each) at `points` even shares: a distribution to draw."""
    if len(values) == 0:
        return [], []
    at = np.unique(np.concatenate([np.linspace(0, 1, points), [0.99, 0.995]]))
    return np.quantile(values, at).tolist(), at.tolist()

"""Everything that is compared, each as a run of trials in one world.

auto                           HAS's search, as it stands: pruning, ensemble, telemetry, expected improvement
ensemble-only, residual-only,
no-telemetry, one-factor       parts of it, see `ARMS`
optuna-tpe, optuna-gp,
skopt-gp, random               the other samplers that HAS offers, on the same pruned list
optuna-tpe-all, random-all     on the whole space, as without HAS
grid                           the simulator's ranking, best first: what its prediction alone is worth
closed-form                    aiconfigurator's rule for E+P+D (see `closed_form`), best first

A trial is the point's true largest rate times lognormal noise. Only `auto` reads the stage times of a
trial; the others see its value. They recommend the best value they saw, `auto` the best posterior mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.search.problems import World
from has.core.deployment import Deployment
from has.core.stage import Stage
from has.core.trial import TrialState
from has.search.confidence import DRAWS
from has.search.ensemble import SimulatedEnsemble
from has.search.events import Callbacks
from has.search.journal import Journal
from has.search.loop import Lists, Loop
from has.search.objective import Point, Score
from has.search.predict import Predictor
from has.search.prune import Pruned, prune
from has.search.question import COARSE
from has.search.samplers import Tried, View, create
from has.search.screen import Scores, keep_simulators_best, ranked, screen
from has.search.setup import make_surrogate
from has.search.simulated import ModelExecutor
from has.search.space import Candidate, candidate_of
from has.search.stop import StopRule
from has.search.study import StudyMirror
from has.search.surrogate import NOISE as NOISE_OF
from has.search.surrogate import Scales, Surrogate
from has.search.trials import Measured, Trials, plain

NOISE = 0.04
"""Standard deviation of a trial's log value …"""
STAGE_NOISE = 0.02
"""… and of each stage's mean service time in its telemetry."""
STRATEGIES = (
    "auto",
    "grid",
    "closed-form",
    "random",
    "random-all",
    "optuna-tpe",
    "optuna-tpe-all",
    "skopt-gp",
    "optuna-gp",
)
SLOW = ("skopt-gp", "optuna-gp")
ARMS = ("ensemble-only", "residual-only", "no-telemetry", "one-factor")
"""`auto` with a part of its surrogate alone, on the same pruned list with the same acquisition:

ensemble-only  stage factors from values and telemetry; nothing else may be wrong with the simulators
residual-only  the simulator as it is, and a Gaussian process over physics features on its residual
no-telemetry   all of it, but the stage factors are inferred from the trials' values alone
one-factor     all of it, but a stage is wrong by the same factor at every batch size
"""
SURE_AFTER = (3, 5, 10, 20, 40)
"""Trials after which `auto` is asked how sure it is; also where its stop rule would have ended it."""


@dataclass(frozen=True)
class Step:
    """After one trial: what it tried, what would be recommended now; regrets as shares of the best."""

    trial: int
    candidate: str
    tried_regret: float
    recommended_regret: float
    expected_improvement: float | None = None
    sure: float | None = None
    """The belief's probability that the recommendation is within 3 %, before `corrected` (`auto` only)."""
    stopped: bool = False
    """Whether the search would have ended before this trial by its stop rule (`auto` only)."""


class Plan:
    """What a planner works out once in a world, whatever the strategy and the noise."""

    def __init__(self, world: World) -> None:
        self.world = world
        problem = world.problem
        requests = problem.requests
        self.lists = Lists(trial=requests, long=requests, coarse=requests[:COARSE])
        self.predictor = Predictor(problem)
        pruned = prune(problem, world.candidates, None)
        kept = screen(self.predictor, pruned.kept, self.lists.coarse, _silent)
        best = max(score.value for score in kept.values())
        cut = sorted((c.candidate for c in pruned.cuts), key=self.predictor.limit, reverse=True)
        cut_scores = screen(self.predictor, cut, self.lists.coarse, _silent, at_least=best)
        self.pruned: Pruned = keep_simulators_best(pruned, problem.objective, kept, cut_scores)
        self.scores: Scores = {c: kept[c] if c in kept else cut_scores[c] for c in self.pruned.kept}
        self.cut_scores: Scores = {c: s for c, s in cut_scores.items() if c not in self.scores}
        self.all_scores: Scores = {**self.cut_scores, **self.scores}
        self.order = ranked(problem.objective, self.scores)


def run(name: str, plan: Plan, seed: int, budget: int) -> list[Step]:
    """One run of a strategy."""
    if name == "auto" or name in ARMS:
        return list(_auto(plan, seed, budget, name))
    world = plan.world
    if name == "closed-form":
        return list(_in_order(world, closed_form(world), seed, budget))
    if name == "grid":
        return list(_in_order(world, plan.order, seed, budget))
    points = world.candidates if name.endswith("-all") else plan.order
    return list(_sampled(world, name.removesuffix("-all"), points, seed, budget))


def _noise(world: World, seed: int) -> np.random.Generator:
    """Paired: trial n of every strategy is as lucky."""
    return np.random.default_rng((*world.cell.seed, seed))


def _in_order(world: World, order: Sequence[Candidate], seed: int, budget: int) -> Iterator[Step]:
    rng = _noise(world, seed)
    seen: list[tuple[float, Candidate]] = []
    for trial, candidate in enumerate(order[:budget], 1):
        seen.append((world.values[candidate] * float(np.exp(NOISE * rng.standard_normal())), candidate))
        yield _step(world, trial, candidate, max(seen, key=lambda pair: pair[0])[1])


def _sampled(world: World, name: str, points: Sequence[Candidate], seed: int, budget: int) -> Iterator[Step]:
    """A sampler that only knows values. The list comes in a shuffled order: its order is the simulator's."""
    rng = _noise(world, seed)
    shuffled = list(points)
    np.random.default_rng(seed).shuffle(shuffled)  # type: ignore[arg-type]  # a list of tuples is shuffled as one
    sampler = create(name)
    tried: list[Tried] = []
    for trial in range(1, min(budget, len(shuffled)) + 1):
        view = View(
            candidates=shuffled,
            shortlist=(),
            tried=tuple(tried),
            number=trial - 1,
            remaining=budget - trial + 1,
            seed=seed,
            objective=world.problem.objective,
            posterior=_no_posterior,
        )
        proposal = sampler.propose(view)
        assert proposal is not None
        value = world.values[proposal.candidate] * float(np.exp(NOISE * rng.standard_normal()))
        tried.append(Tried(proposal.candidate, TrialState.COMPLETE, value, value, feasible=value > 0))
        best = max(tried, key=lambda entry: entry.value or 0.0)
        yield _step(world, trial, proposal.candidate, best.candidate)


def _no_posterior(_: Sequence[Candidate]) -> Any:
    raise AssertionError("this sampler knows no posterior")


def _step(world: World, trial: int, candidate: Candidate, recommended: Candidate, **more: Any) -> Step:
    return Step(trial, candidate.label, world.regret(candidate), world.regret(recommended), **more)


class LookedUp(Trials):
    """Trials of the search whose values come from the table and whose stage times from one run of the world."""

    def __init__(self, world: World, lists: Lists, seed: int, *, telling: bool = True) -> None:
        super().__init__(
            world.problem, ModelExecutor(world.truth.latency), lists.trial, None, early_end=False
        )
        self._world = world
        self._telling = telling
        self._rng = _noise(world, seed)
        self._stages = np.random.default_rng((*world.cell.seed, seed, 1))

    def run(self, deployment: Deployment, upper: float) -> Measured:
        world = self._world
        candidate = candidate_of(deployment)
        true = world.values[candidate]
        value = true * float(np.exp(NOISE * self._rng.standard_normal()))
        rate = true or 0.5 * world.truth.limit(candidate)
        if not self._telling:
            point = Point(rate, 0.0, value, float("inf"))
            return Measured(TrialState.COMPLETE, Score(value, point, true > 0), value, point, None, {})
        figures = plain(world.truth.figures(deployment, rate, self.requests))
        for stage in figures["stages"].values():
            mean = (stage.get("service_ms") or {}).get("mean")
            if mean is not None:
                stage["service_ms"]["mean"] = mean * float(
                    np.exp(STAGE_NOISE * self._stages.standard_normal())
                )
        point = replace(Point.of(rate, figures), goodput_rps=value)
        return Measured(TrialState.COMPLETE, Score(value, point, true > 0), value, point, None, {})


def _auto(plan: Plan, seed: int, budget: int, arm: str = "auto") -> Iterator[Step]:
    world, problem = plan.world, plan.world.problem
    surrogate, ensemble = _surrogate(plan, arm)
    telling = arm not in ("no-telemetry", "residual-only")
    loop = Loop(
        problem,
        plan.lists,
        LookedUp(world, plan.lists, seed, telling=telling),
        plan.pruned,
        plan.scores,
        plan.cut_scores,
        {},
        create("auto"),
        surrogate,
        ensemble,
        plan.predictor,
        Journal(None),
        StudyMirror(None, gpus=problem.gpus, direction="maximize"),
        Callbacks(),
        budget,
        audits=False,
    )
    stop = StopRule()
    for trial in range(1, budget + 1):
        proposal = loop.propose(budget - trial + 1)
        if proposal is None:
            return
        stop.heard(proposal.expected_improvement)
        stopped = stop.satisfied
        loop.measure(proposal.candidate, "search")
        belief = loop.posterior(loop.shortlist)
        best = max(loop.finished, key=lambda c: belief.mean[belief.index(c)])
        asked = trial in SURE_AFTER or stopped
        sure = belief.probability_within(best, 3.0, seed, DRAWS) if asked else None
        yield _step(
            world,
            trial,
            proposal.candidate,
            best,
            expected_improvement=proposal.expected_improvement,
            sure=sure,
            stopped=stopped,
        )


def _surrogate(plan: Plan, arm: str) -> tuple[Surrogate, SimulatedEnsemble]:
    """Of `auto` or one of its parts (see `ARMS`)."""
    surrogate, ensemble = make_surrogate(
        plan.world.problem,
        plan.lists,
        None,
        plan.all_scores,
        live=False,
        noisy=True,
        curved=arm != "one-factor",
        progress=_silent,
    )
    if arm == "ensemble-only":
        scales = [Scales(0.0, 0.0, noise) for noise in NOISE_OF[True]]
        surrogate = Surrogate(ensemble, surrogate.features, surrogate.prior, scales)
    elif arm == "residual-only":
        surrogate = Surrogate(ensemble, surrogate.features, 1e-12 * surrogate.prior)
    return surrogate, ensemble


def closed_form(world: World) -> list[Candidate]:
    """All E+P+D splits, ranked as aiconfigurator's `--enable-epd` does: by min(.9 E, .9 P, .92 D) of their
    stage throughputs, where TTFT = 1.8 · (encode + prefill) and TPOT are within the SLO; encode batches
    up to 8, every prefill remote, no queues, no shared GPUs.
    """
    problem = world.problem
    demand, slo = problem.demand, problem.slo
    model = problem.capacity_model()

    def seconds(stage: Stage, batch: int, tokens: float) -> float:
        return problem.latency.grid(stage).seconds(100.0, batch, tokens)

    def key(c: Candidate) -> tuple[bool, float]:
        encode_s = seconds(Stage.ENCODE, c.encode_batch, demand.media_tokens)
        prefill_s = seconds(Stage.PREFILL, 1, demand.total_tokens)
        within = 1.8 * (encode_s + prefill_s) <= slo.ttft_s
        encode = c.pool("encode") * c.encode_batch / encode_s / demand.media_share
        prefill = c.pool("prefill") / prefill_s
        decode = c.pool("decode") * model.decode_per_worker(problem.kv_tokens(c))
        return within, min(0.9 * encode, 0.9 * prefill, 0.92 * decode)

    points = [
        c
        for c in world.candidates
        if c.topology == "disaggregated" and c.share == 1.0 and c.encode_batch <= 8
    ]
    return sorted(points, key=key, reverse=True)


_silent: Callable[[int], None] = lambda _: None  # noqa: E731  # a callback that says nothing

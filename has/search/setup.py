"""From a question to a search that can start: requests drawn, space pruned, everything simulated once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from has.core.requests import Requests
from has.core.slo import Slo
from has.core.words import plural
from has.errors import InputError
from has.search.budgets import look
from has.search.coarse import possible
from has.search.cuts import Pruned
from has.search.ensemble import SimulatedEnsemble
from has.search.events import Callbacks
from has.search.factors import Factors
from has.search.journal import Journal
from has.search.loop import Lists, Loop
from has.search.objective import Objective
from has.search.pools import latency_of
from has.search.predict import Predictor, physics_features
from has.search.price import pool_prices
from has.search.problem import Problem, rate_in_force
from has.search.question import COARSE, REQUESTS, TRIALS, Asked, longer, requests_to_draw
from has.search.screen import NEAR, SHORTLIST, Scores, baseline_spaces, held, ranked, screen
from has.search.space import Candidate
from has.search.study import StudyMirror
from has.search.surrogate import Surrogate, scales_of
from has.search.traffic import replay
from has.search.trials import Trials
from has.sim.draw import draw_requests

OFFERED = 0.9
"""Live max-rate trials offer this share of the largest rate the simulator predicts: near the knee, where trials tell."""
CUT_IN_SIGHT = 1500
"""Cut candidates that are simulated for the guard and the audit: those that bounds say could carry most."""


def make_problem(asked: Asked) -> tuple[Problem, Lists]:
    """The question with its requests drawn. The first workload's arrivals and rate are the rule."""
    workload, *further = asked.inputs.workloads
    question, model = asked.question, asked.question["model"]
    rates = tuple(question["rates"])
    price = question["price"]
    latency = latency_of(asked.inputs.profile, asked.inputs.pool_profiles)
    prices = pool_prices(latency, price)
    if latency.pools and not prices:
        asked.callbacks.note(
            "a GPU of these pools has no known price (--price GPU=DOLLARS): GPUs are only counted"
        )
    objective = Objective(
        question["objective"],
        rates,
        Slo(**question["slo"]),
        price if isinstance(price, float | int) else None,
        prices,
    )
    trace = workload.arrivals.process == "trace"
    to_draw, to_look = (None, COARSE * longer(question["gpus"])) if trace else requests_to_draw(question)
    whole = draw_requests(
        workload,
        rate=None if trace else max(rates, default=None) or workload.arrivals.rate or 1.0,
        requests=to_draw,
        seed=question["seed"],
        model=model,
    )
    base = (
        rate_in_force(workload, whole) if trace else max(rates, default=None) or workload.arrivals.rate or 1.0
    )
    settings = {"model": model, **question["settings"]}
    if trace:
        settings.setdefault("rate_estimate", "online")
        asked_for = question["requests"]
        played = replay(whole, asked_for, live=asked.live, few=REQUESTS[True], look=to_look)
        asked.callbacks.note(played.words)
        judged, lists = played.judged, Lists(trial=played.trial, long=played.judged, coarse=played.look)
    else:
        judged, trial = whole, whole[: question["requests"]]
        long = whole if asked.live else trial
        lists = Lists(trial=trial, long=long, coarse=long[:to_look])
    problem = Problem(
        gpus=question["gpus"],
        profile=asked.inputs.profile,
        workload=workload,
        objective=objective,
        requests=judged,
        pool_profiles=asked.inputs.pool_profiles,
        further=tuple(further),
        base_rate=base,
        seed=question["seed"],
        settings=settings,
        batches=asked.space.encode_batch,
    )
    return problem, lists


def screen_all(
    predictor: Predictor, pruned: Pruned, lists: Lists, tell: Callbacks, known: Scores
) -> tuple[Scores, Scores]:
    """Scores of what was kept, and of what was cut and could still be good; `known` are some of them.

    InputError where nothing was kept.
    """
    if not pruned.kept:
        raise _all_beyond_reach(pruned)
    objective = predictor.problem.objective
    total = len(pruned.kept)
    kept = screen(
        predictor,
        pruned.kept,
        lists.coarse,
        lambda n: tell.progress("predicting", n, total),
        known=known,
    )
    kept = held(predictor, kept, lists.long, SHORTLIST, lambda n: tell.progress("holding", n, 0))
    could = [c.candidate for c in pruned.cuts if c.rule not in ("reach", "memory")]
    could = sorted(could, key=predictor.limit, reverse=True)[:CUT_IN_SIGHT]
    best = max((score.value for score in kept.values()), default=0.0)
    at_least = (1 - NEAR) * best if objective.name == "max-rate" else None
    cut = screen(
        predictor,
        could,
        lists.coarse,
        lambda n: tell.progress("guarding", n, len(could)),
        at_least=at_least,
        known=known,
    )
    return kept, held(predictor, cut, lists.long, 1)


def _all_beyond_reach(pruned: Pruned) -> InputError:
    """Of all rules only this one leaves nothing and says nothing: the others spare what is least bad, or name memory."""
    batches = sorted({cut.candidate.encode_batch for cut in pruned.cuts})
    largest = max(cut.bound for cut in pruned.cuts)
    return InputError(
        "the rule reach cuts every candidate: no latency is known for encode batches this large",
        where="space",
        field="encode_batch",
        value=batches,
        allowed=f"up to {largest:g}, four times the largest batch of the profile",
        mend="give smaller encode_batch in the space, or profile larger batches: has profile --batch",
    )


def choose_baselines(
    predictor: Predictor, problem: Problem, asked: Asked, budgets: Sequence[int], lists: Lists
) -> tuple[dict[str, Candidate | None], Scores]:
    """Of each kind the point that the simulator likes best; None where memory admits none."""
    best: dict[str, Candidate | None] = {}
    scores: Scores = {}
    asked.callbacks.stage("baselines", "the best monolith, E+PD and static split")
    for name, own in baseline_spaces(asked.space).items():

        def told(n: int, name: str = name) -> None:
            asked.callbacks.progress(f"baseline {name}", n, 0)

        points, known = look(own, budgets, predictor, lists.coarse, lists.long, told)
        found = screen(predictor, possible(problem, points), lists.coarse, told, known=known)
        found = held(predictor, found, lists.long, 1)
        best[name] = ranked(problem.objective, found)[0] if found else None
        scores |= found
    return best, scores


def rate_to_offer(problem: Problem, kept: Scores, predictor: Predictor) -> float:
    best = max((score.value for score in kept.values()), default=0.0)
    if best <= 0:
        best = 0.5 * max(predictor.limit(c) for c in kept) or problem.base_rate
    return float(f"{OFFERED * best:.4g}")


def make_loop(
    problem: Problem,
    lists: Lists,
    asked: Asked,
    pruned: Pruned,
    kept: Scores,
    cut: Scores,
    baselines: Mapping[str, Candidate | None],
    surrogate: Surrogate,
    ensemble: SimulatedEnsemble,
    predictor: Predictor,
    rate: float | None,
) -> Loop:
    exhaustive = asked.sampler.exhaustive
    inside = {*kept, *cut}
    counted = {name: c for name, c in baselines.items() if c is not None and c in inside}
    asked_for = asked.question["trials"]
    budget = asked_for or (len({*kept, *counted.values()}) if exhaustive else TRIALS[asked.live])
    journal = Journal(asked.folder.file("trials.jsonl"))
    if asked_for is not None and asked_for < len(journal):
        asked.callbacks.note(
            f"the run holds {plural(len(journal), 'finished trial')}: all count, not {asked_for} only"
        )
    budget = max(budget, len(journal))
    if len(set(counted.values())) > budget / 2:
        counted = {}
    return Loop(
        problem,
        lists,
        Trials(problem, asked.executor, lists.trial, rate, early_end=not exhaustive),
        pruned,
        kept,
        cut,
        counted,
        asked.sampler,
        surrogate,
        ensemble,
        predictor,
        journal,
        StudyMirror(
            asked.folder.file("optuna.log"), gpus=problem.gpus, direction=problem.objective.direction
        ),
        asked.callbacks,
        budget,
        audits=asked.question["prune"] and not exhaustive,
    )


def make_surrogate(
    problem: Problem,
    lists: Lists,
    offered: float | None,
    scores: Scores,
    *,
    live: bool,
    noisy: bool | None = None,
    curved: bool = True,
    progress: Callable[[int], None],
) -> tuple[Surrogate, SimulatedEnsemble]:
    """The prior: an ensemble over the profile's stated error, and physics features of every candidate.

    `curved`: whether a stage may be wrong by another factor at another batch size.
    """

    def objective(
        predictor: Predictor, candidate: Candidate, requests: Requests, guess: float | None
    ) -> float:
        return predictor.value(candidate, requests, guess)

    def shown(predictor: Predictor, candidate: Candidate, requests: Requests, guess: float | None) -> float:
        if offered is None:
            return predictor.value(candidate, requests, guess)
        return predictor.point(problem.deployment(candidate), offered, requests).goodput_rps

    best = max((score.value for score in scores.values()), default=1.0)
    most_decoded = problem.capacity_model().limits.max_num_seqs
    factors = Factors.of(problem.latency, max(problem.batches), most_decoded) if curved else Factors()
    ensemble = SimulatedEnsemble(
        problem,
        objective,
        shown if live else None,
        long=lists.long,
        trial=lists.trial,
        short=lists.coarse,
        guesses={candidate: score.value for candidate, score in scores.items()},
        best=best,
        best_shown=best if offered is None else offered,
        seed=problem.seed,
        factors=factors,
        progress=progress,
    )
    # ±e as a uniform band has this standard deviation; co-location is the least known of all.
    sd = problem.error / 3**0.5
    prior = factors.prior(np.array([sd, sd, sd, sd, max(sd, 0.1)]))
    features = physics_features(problem, list(scores))
    scales = scales_of(noisy=live if noisy is None else noisy)
    return Surrogate(ensemble, features, prior, scales), ensemble

"""`has.search`: from a profile and a workload to a deployment with its evidence."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from has import __version__
from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.requests import Requests
from has.core.slo import Slo
from has.core.space import SearchSpace
from has.core.trial import Executor, Trial, TrialState
from has.core.workload import Workload
from has.errors import InfeasibleError, InputError, RunError
from has.files.deployment import deployment_yaml, load_deployment
from has.files.tables import save_table
from has.files.validate import validate
from has.search import samplers
from has.search.confirm import Choice, confirm, finalists, objective_of
from has.search.ensemble import SimulatedEnsemble
from has.search.events import Callbacks
from has.search.evidence import WITHIN_PERCENT, evidence
from has.search.journal import Journal, RunFolder, digest, pruned_rows, read_inputs, read_manifest, trial_rows
from has.search.loop import Lists, Loop, make_surrogate
from has.search.objective import OBJECTIVES, Objective, ObjectiveName
from has.search.outcome import Baseline, Outcome
from has.search.predict import Predictor
from has.search.problem import Problem, rate_in_force
from has.search.prune import Pruned, only_possible
from has.search.prune import prune as prune_candidates
from has.search.screen import Scores, baseline_candidates, keep_simulators_best, ranked, screen
from has.search.simulated import ModelExecutor
from has.search.space import Candidate, enumerate_space
from has.search.study import StudyMirror
from has.search.surrogate import Surrogate
from has.search.trials import Trials, record
from has.sim.draw import draw_requests

TRIALS = {True: 12, False: 40}
"""Budget by whether trials are live."""
REQUESTS = {True: 80, False: 1000}
"""Requests of a trial, likewise."""
LONG, COARSE = 1000, 300
FINALISTS = {True: 2, False: 3}
CONFIRM_REQUESTS = {True: 80, False: 3000}
OFFERED = 0.9
"""Live max-rate trials offer this share of the largest rate the simulator predicts: near the knee, where trials tell."""
CUT_IN_SIGHT = 1500
"""Cut candidates that are simulated for the guard and the audit: those that bounds say could carry most."""


def search(
    gpus: int,
    profile: Profile,
    workload: Workload,
    *,
    space: SearchSpace | None = None,
    executor: Executor | None = None,
    trials: int | None = None,
    rate: float | Sequence[float] | None = None,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    attainment: float | None = None,
    objective: ObjectiveName | None = None,
    sampler: str = "auto",
    prune: bool = True,
    baselines: Sequence[str | Path | Deployment] | Mapping[str, Deployment] = (),
    price: float | None = None,
    requests: int | None = None,
    seed: int = 0,
    model: str | None = None,
    settings: Mapping[str, Any] | None = None,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    command: Sequence[str] | None = None,
    callbacks: Callbacks | None = None,
) -> Outcome:
    """The best deployment of `profile.metadata.model` on `gpus` GPUs under `workload`.

    space       what may be proposed (default: everything)
    executor    runs the trials (default: the simulator on this very profile)
    trials      budget (12 live, 40 simulated; the sampler grid: all that is left)
    rate        requests per second in force; several: the worst case counts
    ttft_ms, tpot_ms, attainment   go before the workload's SLO
    objective   max-rate, or goodput where `rate` is given, unless said
    baselines   deployments, or their files, scored beside monolithic, e_pd and static_epd
    price       of a GPU and hour, for objective cost
    requests    of one trial (80 live, 1000 simulated)
    settings    further fields of every proposed Deployment (dtype, max_num_seqs, …)
    run_dir     where inputs, journal and results are kept (None: nowhere)
    resume      a run folder to go on with; all other inputs must be the ones it began with

    Raises InputError; InfeasibleError where nothing meets the SLO (`least_bad` is the Outcome) or
    memory admits nothing (`least_bad` is None); MissingError where the sampler's package is absent;
    RunError where every trial failed.
    """
    listener = callbacks or Callbacks()
    chosen = samplers.create(sampler)
    runner = ModelExecutor(profile) if executor is None else executor
    question = _question(
        gpus, workload, rate, ttft_ms, tpot_ms, attainment, objective, price, trials, requests, runner, seed
    )
    question |= {"sampler": sampler, "prune": prune, "model": model or profile.metadata.model}
    question["settings"] = dict(settings or {})
    space = space or SearchSpace(version=1)
    own = _user_baselines(baselines)
    digests = {
        "profile": digest(profile),
        "workload": digest(workload),
        "space": digest(space),
        "baselines": {name: d.digest() for name, d in own.items()},
    }
    folder = RunFolder(_path(resume if resume is not None else run_dir))
    folder.open(
        _manifest(question, digests, profile, command), profile, workload, space, resume=resume is not None
    )
    try:
        asked = _Asked(question, digests, space, own, chosen, runner, folder, listener)
        return _search(profile, workload, asked)
    finally:
        if executor is None:
            runner.close()


def resume_inputs(run_dir: str | Path) -> dict[str, Any]:
    """Arguments for `search` to go on with a run: everything but the executor (whose kind is `on`),
    the user's baselines and the callbacks. InputError if the folder holds no run."""
    folder = Path(run_dir)
    question = read_manifest(folder)["question"]
    profile, workload, space = read_inputs(folder)
    slo = question["slo"]
    return {
        "gpus": question["gpus"],
        "profile": profile,
        "workload": workload,
        "space": space,
        "trials": question["trials"],
        "rate": question["rates"] or None,
        "objective": question["objective"],
        "ttft_ms": slo["ttft_ms"],
        "tpot_ms": slo["tpot_ms"],
        "attainment": slo["attainment"],
        "sampler": question["sampler"],
        "prune": question["prune"],
        "price": question["price"],
        "requests": question["requests"],
        "seed": question["seed"],
        "model": question["model"],
        "settings": question["settings"],
        "resume": folder,
    }


@dataclass(frozen=True, slots=True)
class _Asked:
    question: dict[str, Any]
    digests: dict[str, Any]
    space: SearchSpace
    own_baselines: dict[str, Deployment]
    sampler: samplers.Sampler
    executor: Executor
    folder: RunFolder
    callbacks: Callbacks

    @property
    def live(self) -> bool:
        return self.executor.live


def _search(profile: Profile, workload: Workload, asked: _Asked) -> Outcome:
    tell = asked.callbacks
    problem, lists = _problem(profile, workload, asked)
    for warning in Predictor(problem).warnings(lists.long):
        tell.note(warning)

    tell.stage("pruning", "which candidates can work at all")
    budgets = range(1, problem.gpus + 1) if problem.objective.name == "cost" else (problem.gpus,)
    everything = [c for g in budgets for c in enumerate_space(asked.space, g)]
    if not everything:
        raise InputError(
            f"the search space has no valid candidate on {problem.gpus} GPUs", where="space", field="alloc"
        )
    offered = max(problem.objective.rates, default=None)
    if asked.question["prune"]:
        pruned = prune_candidates(problem, everything, offered)
    else:
        pruned = only_possible(problem, everything)

    tell.stage("predicting", f"{len(pruned.kept)} of {len(everything)} candidates in the simulator")
    predictor = Predictor(problem)
    kept, cut = _screen(predictor, pruned, lists, tell)
    before = pruned
    pruned = keep_simulators_best(pruned, problem.objective, kept, cut)
    for candidate in set(pruned.kept) - set(before.kept):
        kept[candidate] = cut.pop(candidate)
    for note in pruned.notes:
        tell.note(note)
    tell.pruned(len(pruned.kept), len(everything), pruned.by_rule)
    if predictor.fault is not None and all(score.point.attainment == 0 for score in kept.values()):
        raise predictor.fault

    baselines, base_scores = _baselines(predictor, problem, asked, budgets, lists)
    rate = _offered(problem, kept, predictor) if asked.live and problem.objective.name == "max-rate" else None
    if rate is not None:
        tell.note(f"each trial offers {rate:g} requests/s; the largest rate comes from the calibrated model")

    tell.stage("ensemble", "how wrong latencies would change the ranking")
    surrogate, ensemble = make_surrogate(
        problem,
        lists,
        rate,
        {**cut, **base_scores, **kept},
        live=asked.live,
        progress=lambda done: tell.progress("ensemble", done, 0),
    )
    loop = _loop(problem, lists, asked, pruned, kept, cut, baselines, surrogate, ensemble, predictor, rate)
    tell.stage("trials", f"up to {loop.budget}")
    loop.optimise()
    own = _score_own(loop, asked)
    return _conclude(loop, asked, everything, baselines, own, workload)


def _problem(profile: Profile, workload: Workload, asked: _Asked) -> tuple[Problem, Lists]:
    question, model = asked.question, asked.question["model"]
    rates = tuple(question["rates"])
    objective = Objective(question["objective"], rates, Slo(**question["slo"]), question["price"])
    trace = workload.arrivals.process == "trace"
    whole = draw_requests(
        workload,
        rate=None if trace else max(rates, default=None) or workload.arrivals.rate or 1.0,
        requests=None if trace else max(LONG, question["requests"]),
        seed=question["seed"],
        model=model,
    )
    base = (
        rate_in_force(workload, whole) if trace else max(rates, default=None) or workload.arrivals.rate or 1.0
    )
    settings = {"model": model, **question["settings"]}
    if trace:
        settings.setdefault("rate_estimate", "online")
    problem = Problem(
        gpus=question["gpus"],
        profile=profile,
        workload=workload,
        objective=objective,
        requests=whole[: max(LONG, question["requests"])],
        base_rate=base,
        seed=question["seed"],
        settings=settings,
        batches=asked.space.encode_batch,
    )
    trial = whole[: question["requests"]]
    long = trial if not asked.live else whole[:LONG]
    return problem, Lists(trial=trial, long=long, coarse=long[:COARSE])


def _screen(predictor: Predictor, pruned: Pruned, lists: Lists, tell: Callbacks) -> tuple[Scores, Scores]:
    objective = predictor.problem.objective
    total = len(pruned.kept)
    kept = screen(predictor, pruned.kept, lists.coarse, lambda n: tell.progress("predicting", n, total))
    possible = [c.candidate for c in pruned.cuts if c.rule not in ("reach", "memory")]
    possible = sorted(possible, key=predictor.limit, reverse=True)[:CUT_IN_SIGHT]
    best = max((score.value for score in kept.values()), default=0.0)
    at_least = best if objective.name == "max-rate" else None
    cut = screen(
        predictor,
        possible,
        lists.coarse,
        lambda n: tell.progress("guarding", n, len(possible)),
        at_least=at_least,
    )
    return kept, cut


def _baselines(
    predictor: Predictor, problem: Problem, asked: _Asked, budgets: Sequence[int], lists: Lists
) -> tuple[dict[str, Candidate | None], Scores]:
    """Of each kind the point that the simulator likes best; None where memory admits none."""
    best: dict[str, Candidate | None] = {}
    scores: Scores = {}
    for name, points in baseline_candidates(problem, asked.space, budgets).items():
        own = screen(predictor, points, lists.coarse, lambda _: None)
        best[name] = ranked(problem.objective, own)[0] if own else None
        scores |= own
    return best, scores


def _offered(problem: Problem, kept: Scores, predictor: Predictor) -> float:
    best = max((score.value for score in kept.values()), default=0.0)
    if best <= 0:
        best = 0.5 * max(predictor.limit(c) for c in kept)
    return float(f"{OFFERED * best:.4g}")


def _loop(
    problem: Problem,
    lists: Lists,
    asked: _Asked,
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
    if len(set(counted.values())) > budget / 2:
        counted = {}
    path = asked.folder.file("trials.jsonl")
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
        Journal(path),
        StudyMirror(
            asked.folder.file("optuna.log"), gpus=problem.gpus, direction=problem.objective.direction
        ),
        asked.callbacks,
        budget,
        audits=asked.question["prune"] and not exhaustive,
    )


def _score_own(loop: Loop, asked: _Asked) -> dict[str, tuple[Deployment, Trial]]:
    """The user's deployments, as they are, under this search's SLO and requests."""
    journal = Journal(asked.folder.file("baselines.jsonl"))
    scored: dict[str, tuple[Deployment, Trial]] = {}
    for number, (name, deployment) in enumerate(asked.own_baselines.items()):
        trial = journal.get(number)
        if trial is None:
            kind = f"baseline:{name}"
            asked.callbacks.trial_started(number, deployment.label, kind, loop.trials.offered, float("nan"))
            upper = loop.uncalibrated.limit_of(deployment)
            run = partial(loop.trials.run, deployment, upper)
            trial, measured = record(number, kind, deployment, loop.problem.seed, run)
            value = None if measured.score is None else loop.deployment_value(deployment, measured, upper)
            trial = replace(trial, objective=value)
            journal.append(trial)
            asked.callbacks.trial_finished(trial, float("nan"), loop.best_trial, replayed=False)
        scored[name] = (deployment, trial)
    return scored


def _conclude(
    loop: Loop,
    asked: _Asked,
    everything: Sequence[Candidate],
    baselines: Mapping[str, Candidate | None],
    own: Mapping[str, tuple[Deployment, Trial]],
    workload: Workload,
) -> Outcome:
    tell, problem, question = asked.callbacks, loop.problem, asked.question
    ranking = finalists(loop, frozenset(everything), FINALISTS[asked.live])
    if not ranking:
        reasons = sorted({t.reason or "ended early" for t in loop.finished.values()})
        raise RunError(
            f"every trial failed: {'; '.join(reasons[:3])}",
            mend="see trials.jsonl in the run folder for each reason",
        )
    tell.stage("confirming", f"{len(ranking)} finalists under other arrivals and loads")
    choice = confirm(
        loop,
        ranking,
        Journal(asked.folder.file("confirmations.jsonl")),
        lambda seed: _other_arrivals(problem, workload, seed, CONFIRM_REQUESTS[asked.live]),
        live=asked.live,
    )
    feasible = loop.feasible(choice.candidate)
    scored = {**_scored_baselines(loop, baselines, asked), **{n: _own(t) for n, t in own.items()}}
    confidence = {
        "within_percent": WITHIN_PERCENT,
        "probability": loop.posterior([*loop.shortlist]).probability_within(
            choice.candidate, WITHIN_PERCENT, problem.seed
        ),
    }
    run = asked.folder.path
    tell.stage("writing", "" if run is None else str(run))
    found = evidence(
        loop,
        choice,
        scored,
        confidence,
        feasible,
        run=None if run is None else str(run),
        question=question,
        digests=asked.digests,
        executor=type(asked.executor).__name__,
        notes=loop.pruned.notes,
    )
    deployment = problem.deployment(choice.candidate)
    in_force = float(f"{_rate_to_write(loop, choice):.6g}")
    best = deployment.model_copy(update={"rate": in_force, "evidence": found})
    trial = loop.finished[choice.candidate]
    outcome = Outcome(
        best=best,
        figures=trial.figures or {},
        objective=choice.value,
        unit=problem.objective.unit,
        feasible=feasible,
        trials=tuple(loop.journal),
        confirmations=choice.confirmations,
        pruned=loop.pruned.cuts,
        baselines=scored,
        confidence=confidence,
        simulations=loop.simulations,
        candidates={"all": len(everything), "kept": len(loop.pruned.kept)},
        run=run,
        runners_up=choice.runners_up,
        notes=loop.pruned.notes,
    )
    _write(asked.folder, outcome)
    tell.finished(outcome)
    if not feasible:
        raise InfeasibleError(_why_not(loop, choice), least_bad=outcome, mend=_mend(problem))
    return outcome


def _scored_baselines(
    loop: Loop, baselines: Mapping[str, Candidate | None], asked: _Asked
) -> dict[str, Baseline]:
    """Those that were trials already, and the rest run now, outside the budget."""
    journal = Journal(asked.folder.file("baselines.jsonl"))
    number = len(asked.own_baselines)
    scored: dict[str, Baseline] = {}
    for name, candidate in baselines.items():
        if candidate is None:
            scored[name] = Baseline(None, None, None, "memory admits no such deployment")
            continue
        deployment = loop.problem.deployment(candidate)
        if candidate not in loop.finished:
            known = journal.get(number)
            if known is None:
                known = _extra(loop, number, f"baseline:{name}", candidate, deployment)
                journal.append(known)
            number += 1
            loop.finished[candidate] = known
        trial = loop.finished[candidate]
        value = objective_of(loop, candidate) if trial.state == TrialState.COMPLETE else None
        scored[name] = Baseline(deployment, trial.figures, value, trial.reason)
    return scored


def _extra(loop: Loop, number: int, kind: str, candidate: Candidate, deployment: Deployment) -> Trial:
    """A run outside the budget, without early end; nothing is learned from it."""
    loop.callbacks.trial_started(number, deployment.label, kind, loop.trials.offered, float("nan"))
    upper = loop.uncalibrated.limit(candidate)
    loop.trials.incumbent = None
    trial, measured = record(
        number, kind, deployment, loop.problem.seed, lambda: loop.trials.run(deployment, upper)
    )
    if measured.score is not None:
        trial = replace(trial, objective=loop.objective(candidate, measured))
    loop.callbacks.trial_finished(trial, float("nan"), loop.best_trial, replayed=False)
    return trial


def _own(scored: tuple[Deployment, Trial]) -> Baseline:
    deployment, trial = scored
    return Baseline(deployment, trial.figures, trial.objective, trial.reason)


def _rate_to_write(loop: Loop, choice: Choice) -> float:
    objective = loop.problem.objective
    if objective.name != "max-rate":
        return max(objective.rates)
    return (
        choice.value if choice.value > 0 else loop.finished[choice.candidate].rate or loop.problem.base_rate
    )


def _why_not(loop: Loop, choice: Choice) -> str:
    trial = loop.finished[choice.candidate]
    figures, slo = trial.figures or {}, loop.problem.slo
    ttft = (figures.get("ttft_ms") or {}).get("p90")
    tpot = (figures.get("tpot_ms") or {}).get("p90")
    seen = [f"{figures.get('attainment') or 0:.1%} of requests meet it, {slo.attainment:.1%} should"]
    if ttft is not None:
        seen.append(f"TTFT p90 {ttft:.4g} ms of {slo.ttft_ms:g}")
    if tpot is not None:
        seen.append(f"TPOT p90 {tpot:.4g} ms of {slo.tpot_ms:g}")
    at = "" if trial.rate is None else f" at {trial.rate:.4g} requests/s"
    floors = [note for note in loop.pruned.notes if "for every candidate" in note]
    because = f" ({floors[0]})" if floors else ""
    return f"nothing meets the SLO{because}; the least bad, {choice.candidate.label}{at}: {', '.join(seen)}"


def _mend(problem: Problem) -> str:
    if problem.objective.name == "max-rate":
        return "loosen --ttft-ms, --tpot-ms or --attainment"
    return "lower --rate, give more --gpus, or loosen --ttft-ms, --tpot-ms or --attainment"


def _other_arrivals(problem: Problem, workload: Workload, seed: int, count: int) -> Requests:
    """The workload drawn with another seed; of a trace, the same requests in another order."""
    if workload.arrivals.process != "trace":
        return draw_requests(
            workload, rate=problem.base_rate, requests=count, seed=seed, model=problem.settings["model"]
        )
    listed = problem.requests[:count]
    order = np.random.default_rng(seed).permutation(len(listed))
    return replace(listed[order], arrival_ns=listed.arrival_ns)


def _write(folder: RunFolder, outcome: Outcome) -> None:
    if folder.path is None:
        return
    rows = trial_rows(outcome.trials)
    save_table(rows, folder.path / "trials.csv")
    save_table(rows, folder.path / "trials.parquet")
    columns = ["candidate", "topology", "alloc", "tensor_parallel", "encode_batch", "prefill_offload"]
    columns += ["rule", "bound", "value", "margin", "reason"]
    save_table(pruned_rows(outcome.pruned), folder.path / "pruned.csv", columns)
    folder.write("best.yaml", deployment_yaml(outcome.best))


# Arguments.


def _question(
    gpus: int,
    workload: Workload,
    rate: float | Sequence[float] | None,
    ttft_ms: float | None,
    tpot_ms: float | None,
    attainment: float | None,
    objective: ObjectiveName | None,
    price: float | None,
    trials: int | None,
    requests: int | None,
    executor: Executor,
    seed: int,
) -> dict[str, Any]:
    """What is asked, as plain data for the manifest. InputError for what cannot be asked."""
    rates = (
        []
        if rate is None
        else sorted({float(r) for r in ([rate] if isinstance(rate, int | float) else rate)})
    )
    for value in rates:
        if not (0 < value < float("inf")):
            raise _bad("rate", value, "a number above 0")
    for name, number, least in (
        ("gpus", gpus, 1),
        ("trials", trials, 1),
        ("requests", requests, 2),
        ("seed", seed, 0),
    ):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < least):
            raise _bad(name, number, f"an integer of at least {least}")
    if price is not None and not (0 < price < float("inf")):
        raise _bad("price", price, "dollars per GPU and hour, above 0")
    if objective is not None and objective not in OBJECTIVES:
        raise _bad("objective", objective, ", ".join(OBJECTIVES))
    name = objective or ("goodput" if rates else "max-rate")
    if name == "max-rate" and len(rates) > 0:
        rates = []  # a rate given beside max-rate only says where the workload is drawn
    if name != "max-rate" and not rates:
        own = workload.arrivals.rate
        if own is None and workload.arrivals.process != "trace":
            raise InputError(
                f"objective {name} needs a rate",
                where="argument",
                field="rate",
                mend="give --rate, or a rate in the workload",
            )
        rates = [own] if own is not None else [rate_in_force(workload, draw_requests(workload))]
    return {
        "gpus": gpus,
        "rates": rates,
        "slo": _slo(workload, ttft_ms, tpot_ms, attainment).model_dump(mode="json"),
        "objective": name,
        "price": price,
        "trials": trials,
        "requests": requests or REQUESTS[executor.live],
        "on": "live" if executor.live else "simulated",
        "seed": seed,
    }


def _slo(workload: Workload, ttft_ms: float | None, tpot_ms: float | None, attainment: float | None) -> Slo:
    fields: dict[str, Any] = {} if workload.slo is None else workload.slo.model_dump()
    given = {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "attainment": attainment}
    fields |= {
        k: float(v) if isinstance(v, int) and not isinstance(v, bool) else v
        for k, v in given.items()
        if v is not None
    }
    missing = [name for name in ("ttft_ms", "tpot_ms") if name not in fields]
    if missing:
        raise InputError(
            f"no {missing[0]} is in force",
            where="workload",
            field=f"slo.{missing[0]}",
            mend=f"give --{missing[0].replace('_', '-')}, or an slo in the workload",
        )
    return validate(Slo, fields, "argument")


def _bad(field: str, value: Any, allowed: str) -> InputError:
    return InputError("not allowed", where="argument", field=field, value=value, allowed=allowed)


def _user_baselines(
    given: Sequence[str | Path | Deployment] | Mapping[str, Deployment],
) -> dict[str, Deployment]:
    if isinstance(given, Mapping):
        return dict(given)
    named: dict[str, Deployment] = {}
    for entry in given:
        if isinstance(entry, Deployment):
            named[entry.label] = entry
        else:
            named[str(entry)] = load_deployment(entry)
    return named


def _path(folder: str | Path | None) -> Path | None:
    return None if folder is None else Path(folder)


def _manifest(
    question: Mapping[str, Any], digests: Mapping[str, Any], profile: Profile, command: Sequence[str] | None
) -> dict[str, Any]:
    return {
        "version": 1,
        "question": dict(question),
        "digests": dict(digests),
        "command": list(command if command is not None else sys.argv),
        "device": profile.metadata.device,
        "model": question["model"],
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"has": __version__, "python": platform.python_version(), "numpy": np.__version__},
        "platform": platform.platform(),
    }

"""From finished trials to an outcome: baselines, confirmation, evidence, files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from has.core.deployment import Deployment
from has.core.requests import Requests
from has.core.slo import Slo
from has.core.trial import Trial, TrialState
from has.core.words import percent, plural
from has.core.workload import Workload
from has.errors import InfeasibleError, RunError
from has.files.deployment import deployment_yaml
from has.files.tables import save_table
from has.search.confidence import confidence
from has.search.confirm import Choice, confirm, finalists, objective_of
from has.search.evidence import WITHIN_PERCENT, evidence
from has.search.floors import Floor, floors
from has.search.journal import Journal, RunFolder, pruned_rows, trial_rows
from has.search.lattice import lattice
from has.search.length import COARSE_SPAN, PROMISE_MOST, TRIAL_SPAN, requests_lasting
from has.search.loop import Loop
from has.search.objective import tied
from has.search.outcome import Baseline, Outcome
from has.search.pareto import COLUMNS as PARETO_COLUMNS
from has.search.pareto import pareto
from has.search.price import cost_of
from has.search.question import Asked
from has.search.screen import baseline_spaces
from has.search.space import Candidate
from has.search.sustain import fades, sustained
from has.search.trials import record
from has.sim.draw import draw_requests

CONTENDERS = 5
"""By posterior; those of them are finalists that carry most on traffic that lasts."""
FINALISTS = {True: 2, False: 3}
"""By whether trials are live."""


def score_own(loop: Loop, asked: Asked) -> dict[str, tuple[Deployment, Trial]]:
    """The user's deployments, as they are, under this search's SLO and requests."""
    journal = Journal(asked.folder.file("baselines.jsonl"))
    scored: dict[str, tuple[Deployment, Trial]] = {}
    for name, deployment in asked.own_baselines.items():
        kind, seed = f"baseline:{name}", loop.problem.seed
        trial = journal.find(deployment, kind=kind, seed=seed)
        if trial is None:
            number = len(journal)
            asked.callbacks.trial_started(number, deployment.label, kind, loop.trials.offered, float("nan"))
            upper = loop.uncalibrated.limit_of(deployment)
            run = partial(loop.trials.run, deployment, upper)
            trial, measured = record(number, kind, deployment, seed, run)
            value = None if measured.score is None else loop.deployment_value(deployment, measured, upper)
            trial = replace(trial, objective=value)
            journal.append(trial)
            asked.callbacks.trial_finished(trial, float("nan"), loop.best_trial, replayed=False)
        scored[name] = (deployment, trial)
    return scored


def conclude(
    loop: Loop,
    asked: Asked,
    everything: Sequence[Candidate],
    baselines: Mapping[str, Candidate | None],
    own: Mapping[str, tuple[Deployment, Trial]],
    workload: Workload,
) -> Outcome:
    tell, problem, question = asked.callbacks, loop.problem, asked.question
    if question["trials"] is not None:  # a run that goes on may hold more than it was asked for
        question = question | {"trials": loop.budget}
    contenders = finalists(loop, frozenset(everything), CONTENDERS)
    if not contenders:
        reasons = sorted({t.reason or "ended early" for t in loop.finished.values()})
        raise RunError(
            f"every trial failed: {'; '.join(reasons[:3])}",
            mend="see trials.jsonl in the run folder for each reason",
        )
    lasts = sustained(loop, [(problem.deployment(c), value) for c, value in contenders])
    held = {c: value for (c, _), value in zip(contenders, lasts, strict=True)}
    fading: dict[Candidate, float] = {}
    if problem.objective.name == "max-rate":
        ranking = _promised(loop, by_what_lasts(held)[: FINALISTS[asked.live]])
        held |= dict(ranking)
    else:
        ranking, fading = that_last(loop, frozenset(everything), FINALISTS[asked.live])
    tell.stage("confirming", f"{plural(len(ranking), 'finalist')} under other arrivals and loads")
    choice = confirm(
        loop,
        ranking,
        Journal(asked.folder.file("confirmations.jsonl")),
        lambda seed, rate: _other_arrivals(loop, workload, seed, rate, live=asked.live),
        live=asked.live,
    )
    feasible = loop.feasible(choice.candidate) and choice.candidate not in fading
    scored = _held(
        loop,
        {
            **_scored_baselines(loop, baselines, asked),
            **{
                n: _baseline(loop, d, t, t.objective if t.state == TrialState.COMPLETE else None)
                for n, (d, t) in own.items()
            },
        },
    )
    sure = {
        "within_percent": WITHIN_PERCENT,
        "probability": confidence(loop, choice.candidate),
    }
    run = asked.folder.path
    tell.stage("writing", "" if run is None else str(run))
    found = evidence(
        loop,
        choice,
        scored,
        sure,
        feasible,
        run=None if run is None else str(run),
        question=question,
        digests=asked.digests,
        executor=type(asked.executor).__name__,
        notes=loop.pruned.notes,
    )
    points = pareto(loop, asked.space, held, scored.values(), question["price"])
    found["floors"] = [floor.as_json() for floor in lowest(loop)]
    found["cost"] = cost_of(
        problem.deployment(choice.candidate),
        problem.latency,
        question["price"],
        problem.objective.within_slo(carried_rps(loop, choice)),
        problem.output_tokens,
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
        confidence=sure,
        simulations=loop.simulations,
        candidates={"all": len(everything), "kept": len(loop.pruned.kept)},
        run=run,
        runners_up=choice.runners_up,
        notes=loop.pruned.notes,
        pareto=tuple(point.row() for point in points),
    )
    _write(asked.folder, outcome)
    tell.finished(outcome)
    if not feasible:
        raise InfeasibleError(
            _why_not(loop, choice, fading.get(choice.candidate)), least_bad=outcome, mend=_mend(loop)
        )
    return outcome


def _scored_baselines(
    loop: Loop, baselines: Mapping[str, Candidate | None], asked: Asked
) -> dict[str, Baseline]:
    """Those that were trials already, and the rest run now, outside the budget."""
    journal = Journal(asked.folder.file("baselines.jsonl"))
    scored: dict[str, Baseline] = {}
    for name, candidate in baselines.items():
        if candidate is None:
            scored[name] = Baseline(None, None, None, _why_none(name, loop, asked))
            continue
        deployment = loop.problem.deployment(candidate)
        if candidate not in loop.finished:
            kind = f"baseline:{name}"
            known = journal.find(deployment, kind=kind, seed=loop.problem.seed)
            if known is None:
                known = _extra(loop, len(journal), kind, candidate, deployment)
                journal.append(known)
            loop.finished[candidate] = known
        trial = loop.finished[candidate]
        measured = objective_of(loop, candidate) if trial.state == TrialState.COMPLETE else None
        scored[name] = _baseline(loop, deployment, trial, measured)
    return scored


def _why_none(name: str, loop: Loop, asked: Asked) -> str:
    """Why there is no baseline of this kind: memory, unless the GPUs are too few or the space leaves it out."""
    gpus = loop.problem.gpus
    if any(True for _ in lattice(baseline_spaces(asked.space)[name], gpus, 1)):
        return "memory admits no such deployment"
    return f"the space has no such deployment of {plural(gpus, 'GPU')}"


def _baseline(loop: Loop, deployment: Deployment, trial: Trial, measured: float | None) -> Baseline:
    source: Literal["measured", "predicted"] = "predicted" if measured is None else "measured"
    value = loop.predicted_value(deployment) if measured is None else measured
    reason = trial.reason
    if loop.problem.objective.name == "cost" and (misses := _misses(loop, deployment, trial)) is not None:
        value, reason = None, misses  # what does not do the work is not cheap
    return Baseline(deployment, trial.figures, value, reason, source, trial.rate)


def _held(loop: Loop, baselines: Mapping[str, Baseline]) -> dict[str, Baseline]:
    """Baselines by what lasts of them, as the answer is: all on one list, side by side."""
    named = [
        (name, b.deployment, b.objective)
        for name, b in baselines.items()
        if b.deployment is not None and b.objective is not None
    ]
    rates = [rate for _, _, rate in named]
    for promised in (False, True):
        values = [(deployment, rate) for (_, deployment, _), rate in zip(named, rates, strict=True)]
        rates = sustained(loop, values, promised=promised)
    lasting = {name: rate for (name, _, _), rate in zip(named, rates, strict=True)}
    return {name: replace(b, objective=lasting.get(name, b.objective)) for name, b in baselines.items()}


def _misses(loop: Loop, deployment: Deployment, trial: Trial) -> str | None:
    """Why the deployment does not meet the SLO at the rate in force, where it does not."""
    target = loop.problem.slo.attainment
    attained = float((trial.figures or {}).get("attainment") or 0.0)
    if trial.state == TrialState.COMPLETE and attained >= target:
        fading = fades(loop, deployment)
        return (
            None if fading is None else f"only {percent(fading)} of requests meet the SLO once traffic lasts"
        )
    if trial.state != TrialState.COMPLETE:
        return None if loop.predicted_value(deployment) is not None else trial.reason
    return f"{percent(attained)} of requests meet the SLO, {percent(target, None)} should"


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


def _promised(loop: Loop, finalists: Sequence[tuple[Candidate, float]]) -> list[tuple[Candidate, float]]:
    """The finalists by the rates that can be written of them."""
    values = [(loop.problem.deployment(c), value) for c, value in finalists]
    rates = sustained(loop, values, promised=True)
    return by_what_lasts({c: rate for (c, _), rate in zip(finalists, rates, strict=True)})


def by_what_lasts(held: Mapping[Candidate, float]) -> list[tuple[Candidate, float]]:
    """The contenders by what they carry on traffic that lasts; of equals the one that came first stays first."""
    left, ranking = list(held), []
    while left:
        first = left[tied([held[c] for c in left])[0]]
        ranking.append((first, held[first]))
        left.remove(first)
    return ranking


def that_last(
    loop: Loop, inside: frozenset[Candidate], count: int
) -> tuple[list[tuple[Candidate, float]], dict[Candidate, float]]:
    """The first `count` finalists that still meet the SLO when traffic lasts, and what the others before them
    attained there. Where no one lasts they stand, all the same: what misses by least is an answer too."""
    fading: dict[Candidate, float] = {}
    lasting: list[tuple[Candidate, float]] = []
    everyone = finalists(loop, inside, len(loop.finished))
    for candidate, value in everyone:
        if not loop.feasible(candidate):
            break
        attained = fades(loop, loop.problem.deployment(candidate))
        if attained is None:
            lasting.append((candidate, value))
        else:
            fading[candidate] = attained
        if len(lasting) == count:
            break
    return lasting or everyone[:count], fading


def carried_rps(loop: Loop, choice: Choice) -> float:
    """Requests a second that the chosen one carries: its largest rate, or what meets the SLO at the highest given."""
    if loop.problem.objective.name == "max-rate":
        return choice.value
    return loop.problem.objective.carried(
        float((loop.finished[choice.candidate].figures or {}).get("attainment") or 0.0)
    )


def _rate_to_write(loop: Loop, choice: Choice) -> float:
    objective = loop.problem.objective
    if objective.name != "max-rate":
        return max(objective.rates)
    return (
        choice.value if choice.value > 0 else loop.finished[choice.candidate].rate or loop.problem.base_rate
    )


def _why_not(loop: Loop, choice: Choice, lasting: float | None) -> str:
    """`lasting`: what the chosen one attains when traffic lasts, where only that misses the target."""
    trial = loop.finished[choice.candidate]
    figures, slo = trial.figures or {}, loop.problem.slo
    ttft = (figures.get("ttft_ms") or {}).get("p90")
    tpot = (figures.get("tpot_ms") or {}).get("p90")
    met = percent(figures.get("attainment") or 0)
    seen = [f"{met} of requests meet it, {percent(slo.attainment, None)} should"]
    if lasting is not None:
        seen = [f"{met} of a trial's requests meet it, but only {percent(lasting)} once traffic lasts"]
    if ttft is not None:
        seen.append(f"TTFT p90 {ttft:.4g} ms of {slo.ttft_ms:g}")
    if tpot is not None:
        seen.append(f"TPOT p90 {tpot:.4g} ms of {slo.tpot_ms:g}")
    at = "" if trial.rate is None else f" at {trial.rate:.4g} requests/s"
    unmet = [floor.words for floor in lowest(loop) if not floor.met]
    because = f" ({'; '.join(unmet)})" if unmet else ""
    return f"nothing meets the SLO{because}; the least bad, {choice.candidate.label}{at}: {', '.join(seen)}"


def lowest(loop: Loop) -> tuple[Floor, Floor]:
    """What TTFT and TPOT cannot get under, whatever is chosen of the topologies that may be."""
    topologies = dict.fromkeys(
        c.topology for c in (*loop.pruned.kept, *(x.candidate for x in loop.pruned.cuts))
    )
    return floors(loop.problem.latency, loop.problem.requests, loop.problem.slo, topologies)


def _mend(loop: Loop) -> str:
    problem = loop.problem
    unmet = [floor for floor in lowest(loop) if not floor.met]
    if unmet:
        needs = " and ".join(_allowance(floor, problem.slo) for floor in unmet)
        return f"more GPUs cannot help: allow at least {needs}, or smaller requests, faster GPUs, more tensor parallelism"
    if problem.objective.name == "max-rate":
        return "loosen --ttft-ms, --tpot-ms or --attainment"
    return "lower --rate, give more --gpus, or loosen --ttft-ms, --tpot-ms or --attainment"


def _allowance(floor: Floor, slo: Slo) -> str:
    """Where it is given: a bound that is not the SLO's is that of an entry of the workload, which no option moves."""
    least = math.ceil(floor.least_s * 1e3)
    if floor.allowed_s == (slo.ttft_s if floor.metric == "TTFT" else slo.tpot_s):
        return f"--{floor.metric.lower()}-ms {least}"
    return f"{floor.metric.lower()}_ms {least} in the slo of its entry in the workload"


def _other_arrivals(loop: Loop, workload: Workload, seed: int, rate: float, *, live: bool) -> Requests:
    """The workload drawn with another seed, as much of it as `rate` takes; of a trace what trials replay, its
    requests in another order."""
    problem, listed = loop.problem, loop.lists.trial
    if workload.arrivals.process != "trace":
        span = COARSE_SPAN if problem.objective.name == "max-rate" else TRIAL_SPAN
        lasting = requests_lasting(span, problem.slo.ttft_s, rate, most=PROMISE_MOST)
        count = len(listed) if live else lasting
        return draw_requests(
            workload, rate=problem.base_rate, requests=count, seed=seed, model=problem.settings["model"]
        )
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
    save_table(outcome.pareto, folder.path / "pareto.csv", PARETO_COLUMNS)
    folder.write("best.yaml", deployment_yaml(outcome.best))

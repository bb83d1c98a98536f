"""`has.search`: from a profile and a workload to a deployment with its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.space import SearchSpace
from has.core.trial import Executor
from has.core.workload import Workload
from has.errors import InputError
from has.search import samplers
from has.search.arguments import check
from has.search.budgets import look
from has.search.conclude import conclude, score_own
from has.search.events import Callbacks
from has.search.inputs import Inputs
from has.search.journal import RunFolder, read_all_inputs, read_manifest
from has.search.objective import ObjectiveName
from has.search.outcome import Outcome
from has.search.parallelism import at_profiles
from has.search.pools import latency_of
from has.search.predict import Predictor
from has.search.prune import only_possible
from has.search.prune import prune as prune_candidates
from has.search.question import REQUESTS, TRIALS, Asked, all_workloads, ask, load_baselines, manifest
from has.search.screen import keep_simulators_best
from has.search.setup import (
    choose_baselines,
    make_loop,
    make_problem,
    make_surrogate,
    rate_to_offer,
    screen_all,
)
from has.search.simulated import ModelExecutor

__all__ = ["REQUESTS", "TRIALS", "resume_inputs", "search"]


def search(
    gpus: int,
    profile: Profile,
    workload: Workload | Sequence[Workload],
    *,
    pool_profiles: Mapping[str, Profile] | None = None,
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
    price: float | Mapping[str, float] | None = None,
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

    workload    several: the one that a deployment serves worst counts; rates and arrivals not given
                are the first one's
    pool_profiles  of pools whose GPUs are not those of `profile`, by pool
    space       what may be proposed (default: everything); tensor parallelism it leaves out is the profiles'
    executor    runs the trials (default: the simulator on this very profile)
    trials      budget (12 live, 40 simulated; the sampler grid: all that is left)
    rate        requests per second in force; several: the worst case counts
    ttft_ms, tpot_ms, attainment   go before the workload's SLO
    objective   max-rate, or goodput where `rate` is given, unless said
    baselines   deployments, or their files, scored beside monolithic, e_pd and static_epd
    price       dollars per GPU and hour, or that by GPU; else the shipped facts' where they have one
    requests    of one trial (80 live; simulated 1000, at a given rate as many as last 50 TTFT bounds; of a
                trace, simulated: all of it, up to 25,000)
    settings    further fields of every proposed Deployment (dtype, max_num_seqs, …)
    run_dir     where inputs, journal and results are kept (None: nowhere)
    resume      a run folder to go on with; all other inputs must be the ones it began with

    Raises InputError; InfeasibleError where nothing meets the SLO (`least_bad` is the Outcome) or
    memory admits nothing (`least_bad` is None); MissingError where the sampler's package is absent;
    RunError where every trial failed.
    """
    check(locals())
    listener = callbacks or Callbacks()
    chosen = samplers.create(sampler)
    pools = dict(pool_profiles or {})
    latency = latency_of(profile, pools)
    runner = ModelExecutor(latency) if executor is None else executor
    workloads = all_workloads(workload, ttft_ms, tpot_ms)
    question = ask(
        gpus,
        workloads,
        rate,
        ttft_ms,
        tpot_ms,
        attainment,
        objective,
        price,
        trials,
        requests,
        runner,
        seed,
        model or profile.metadata.model,
    )
    question |= {"sampler": sampler, "prune": prune}
    question["settings"] = dict(settings or {})
    space = at_profiles(space or SearchSpace(version=1), profile, pools)
    own = load_baselines(baselines)
    # Trials on a truth of their own: a run that is gone on with must not mix it with another.
    if noise := getattr(runner, "noise", 0.0):
        question["trial_noise"] = noise
    inputs = Inputs(profile, workloads, space, pools, own, getattr(runner, "trial_profile", None))
    digests = inputs.digests
    where = resume if resume is not None else run_dir
    folder = RunFolder(None if where is None else Path(where))
    try:
        folder.open(manifest(question, digests, profile, command), inputs, resume=resume is not None)
        asked = Asked(question, digests, inputs, own, chosen, runner, folder, listener)
        return _search(asked)
    finally:
        folder.close()
        if executor is None:
            runner.close()


def resume_inputs(run_dir: str | Path) -> dict[str, Any]:
    """Arguments for `search` to go on with a run: everything but the executor (whose kind is `on`)
    and the callbacks. InputError if the folder holds no run."""
    folder = Path(run_dir)
    question = read_manifest(folder)["question"]
    inputs = read_all_inputs(folder)
    slo = question.get("slo_asked", question["slo"])
    return {
        "gpus": question["gpus"],
        "profile": inputs.profile,
        "pool_profiles": inputs.pool_profiles,
        "workload": inputs.workloads,
        "space": inputs.space,
        "trials": question["trials"],
        "rate": question["rates"] or None,
        "objective": question["objective"],
        "ttft_ms": slo["ttft_ms"],
        "tpot_ms": slo["tpot_ms"],
        "attainment": slo["attainment"],
        "sampler": question["sampler"],
        "prune": question["prune"],
        "baselines": inputs.baselines,
        "price": question["price"],
        "requests": question["requests"],
        "seed": question["seed"],
        "model": question["model"],
        "settings": question["settings"],
        "resume": folder,
    }


def _search(asked: Asked) -> Outcome:
    tell = asked.callbacks
    problem, lists = make_problem(asked)
    reach = Predictor(problem)
    for listed in (lists.long, *problem.beside(lists.long)):
        for warning in reach.warnings(listed):
            tell.note(warning)

    tell.stage("pruning", "which candidates can work at all")
    budgets = range(1, problem.gpus + 1) if problem.objective.name == "cost" else (problem.gpus,)
    predictor = Predictor(problem)
    everything, looked = look(
        asked.space,
        budgets,
        predictor,
        lists.coarse,
        lists.long,
        lambda n: tell.progress("looking", n, 0),
    )
    if looked:
        tell.note(
            f"too many candidates to list: the {len(looked):,} looked at last, from coarse to fine, stand for all"
        )
    if not everything:
        raise InputError(
            f"the search space has no valid candidate on {problem.gpus} GPUs", where="space", field="alloc"
        )
    offered = max(problem.objective.rates, default=None)
    if asked.question["prune"]:
        pruned = prune_candidates(problem, everything, offered, lists.coarse)
    else:
        pruned = only_possible(problem, everything)

    tell.stage("predicting", f"{len(pruned.kept)} of {len(everything)} candidates in the simulator")
    kept, cut = screen_all(predictor, pruned, lists, tell, looked)
    before = pruned
    pruned = keep_simulators_best(pruned, problem.objective, kept, cut)
    for candidate in set(pruned.kept) - set(before.kept):
        kept[candidate] = cut.pop(candidate)
    for note in pruned.notes:
        tell.note(note)
    tell.pruned(len(pruned.kept), len(everything), pruned.by_rule)
    if predictor.fault is not None and all(score.point.attainment == 0 for score in kept.values()):
        raise predictor.fault

    baselines, base_scores = choose_baselines(predictor, problem, asked, budgets, lists)
    rate = (
        rate_to_offer(problem, kept, predictor)
        if asked.live and problem.objective.name == "max-rate"
        else None
    )
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
    loop = make_loop(
        problem, lists, asked, pruned, kept, cut, baselines, surrogate, ensemble, predictor, rate
    )
    tell.stage("trials", f"up to {loop.budget}")
    loop.optimise()
    own = score_own(loop, asked)
    return conclude(loop, asked, everything, baselines, own, problem.workload)

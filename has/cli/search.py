"""`has search`: prune, then optimise with trials."""

from __future__ import annotations

import gc
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from has.cli import options, search_options
from has.cli.console import Talk, talk
from has.cli.defaults import Defaults
from has.cli.failure import Interrupted, as_has_error, once_answered
from has.core.words import plural

if TYPE_CHECKING:
    from rich.console import RenderableType

    from has.cli.search_plan import SearchPlan
    from has.search.outcome import Outcome

PAGE = "report.html"
LOOKED_FOR_CYCLES = (50_000, 20, 20)
"""How often garbage is looked for: by Python's own measure (700, 10, 10) an eighth of a search's time went into it."""


def command(
    gpus: search_options.Gpus = None,
    model: options.Model = None,
    device: options.Device = None,
    profile: options.Profile = None,
    pool_profile: options.PoolProfiles = None,
    workload: search_options.Workloads = None,
    space: search_options.Space = None,
    rate: search_options.Rates = None,
    ttft_ms: options.TtftMs = None,
    tpot_ms: options.TpotMs = None,
    attainment: options.Attainment = None,
    objective: search_options.Objective = None,
    on: search_options.On = None,
    trials: search_options.Trials = None,
    sampler: search_options.Sampler = None,
    no_prune: search_options.NoPrune = False,
    baseline: search_options.Baselines = None,
    price: search_options.Prices = None,
    trial_profile: search_options.TrialProfile = None,
    trial_noise: search_options.TrialNoise = None,
    requests: search_options.Requests = None,
    run: search_options.Run = None,
    resume: search_options.Resume = None,
    out: search_options.Out = None,
    seed: search_options.Seed = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the best deployment: prune the space, then try what is left, live or simulated.

    Ends with the best configuration, its gain over each baseline on equal GPUs, and how sure that is.
    Every finished trial is kept at once; Ctrl-C ends with the line that goes on. Status 1: nothing
    meets the SLO, and the least bad is written, marked so.
    """
    parameters = locals()
    gc.set_threshold(*LOOKED_FOR_CYCLES)
    with talk(json=json, quiet=quiet) as t:
        from has.cli import search_plan

        defaults = Defaults()
        given = search_plan.Options.of(parameters)
        if resume is not None:
            plan = search_plan.resumed(given, defaults)
        else:
            plan = search_plan.fresh(given, t, defaults)
        defaults.tell(t)
        _search(t, plan)


def _search(t: Talk, plan: SearchPlan) -> None:
    """Run it and answer. Status 1 where nothing meets the SLO; the least bad is written all the same."""
    from has.cli import wiring
    from has.cli.search_view import SearchView
    from has.errors import InfeasibleError
    from has.files.deployment import save_deployment
    from has.search.run import search
    from has.sim.run import kernel_is_cached

    if not kernel_is_cached():
        t.say("compiling the simulator, once for this machine: about half a minute")
    infeasible: InfeasibleError | None = None
    try:
        executor = wiring.executor(plan)
        try:
            with SearchView(t, plan.budget, "measured" if plan.live else "simulated") as view:
                outcome = search(**plan.arguments, executor=executor, callbacks=view, command=sys.argv)
        finally:
            executor.close()
    except InfeasibleError as error:
        if error.least_bad is None:
            raise
        infeasible, outcome = error, error.least_bad
    except KeyboardInterrupt:
        raise _interrupted(plan) from None
    t.result(outcome.as_json() | {"out": plan.out}, lambda: _answer(plan, outcome))
    with once_answered():
        save_deployment(outcome.best, plan.out)
        _write_page(t, plan.run)
        if infeasible is not None:
            raise infeasible


def _interrupted(plan: SearchPlan) -> Interrupted:
    """What is kept, and the line that goes on."""
    if not (plan.run / "manifest.json").is_file():
        return Interrupted("no trial had begun")
    journal = plan.run / "trials.jsonl"
    finished = journal.read_bytes().count(b"\n") if journal.is_file() else 0
    return Interrupted(f"{plural(finished, 'finished trial')} kept in {plan.run}", plan.resume_line)


def _write_page(t: Talk, run: Path) -> None:
    """`report.html` of the run. The search is done and answered: that its page cannot be drawn is a warning."""
    from has.files.atomic import write_atomic
    from has.report.run import load_run
    from has.report.run_document import run_page

    page = run / PAGE
    try:
        write_atomic(page, run_page(load_run(run)))
    except Exception as error:
        why = str(as_has_error(error)).splitlines()[0]
        again = shlex.join(["has", "report", str(run), "--html", str(page)])
        t.warn(f"{page} was not written: {why}\n  once more: {again}")


def _other_rate(plan: SearchPlan, outcome: Outcome) -> str:
    """The option without which the workload would be explained at a rate of its own, which is not the answer's."""
    first = plan.arguments["workload"][0]
    max_rate = (outcome.best.evidence or {}).get("objective", {}).get("name") == "max-rate"
    asked = max_rate or plan.arguments["rate"] is not None
    return f" --rate {outcome.best.rate:g}" if asked and outcome.best.rate != first.arrivals.rate else ""


def _answer(plan: SearchPlan, outcome: Outcome) -> RenderableType:
    from has.report.answer import answer_lines, baseline_table, baselines_title, price_words
    from has.report.document import Document, Section
    from has.report.terminal import draw

    table = baseline_table(outcome.best)
    counts = outcome.candidates
    how = (
        f"{counts['kept']} of {counts['all']} candidates were left after pruning;"
        f" {plural(outcome.simulations, 'simulation')}, {plural(len(outcome.trials), 'trial')}"
    )
    if len(outcome.trials) < plan.budget and plan.arguments["sampler"] != "grid":
        how += f" of {plan.budget}: nothing more was to be gained"
    files = [f"written: {plan.out}", f"run: {plan.run}   report: {plan.run / PAGE}"]
    at = _other_rate(plan, outcome)
    best = shlex.quote(str(plan.out))
    next_line = f"next: has deploy {best}    why this one: has explain {best}{at}"
    prices = price_words((outcome.best.evidence or {}).get("cost") or {})
    files = [prices, *files] if prices else files
    sections = [Section(baselines_title(outcome.best), [table])] if table else []
    return draw(
        Document(
            "The answer", answer_lines(outcome.best), [*sections, Section("How", [how, *files, next_line])]
        )
    )

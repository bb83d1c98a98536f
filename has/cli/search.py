"""`has search`: prune, then optimise with trials."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from has.cli import options
from has.cli.console import Talk, complain, talk
from has.cli.defaults import Defaults
from has.cli.failure import Interrupted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from has.cli.search_plan import SearchPlan
    from has.search.outcome import Outcome


def command(
    gpus: Annotated[
        int | None, typer.Option("--gpus", parser=options.gpus, metavar="G", help="GPU budget.")
    ] = None,
    model: options.Model = None,
    device: options.Device = None,
    profile: options.Profile = None,
    workload: options.Workload = None,
    space: Annotated[
        Path | None,
        typer.Option("--space", metavar="FILE", help="Search space. Default: every split of the budget."),
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(
            "--rate",
            "--request-rate",
            parser=options.positive,
            metavar="R",
            help="Requests per second in all; several: the best worst case.",
        ),
    ] = None,
    ttft_ms: options.TtftMs = None,
    tpot_ms: options.TpotMs = None,
    attainment: options.Attainment = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="max-rate|goodput|cost",
            parser=options.choice("max-rate", "goodput", "cost"),
            help="What is best. Default: max-rate; goodput when --rate is given.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="simulated|live",
            parser=options.choice("simulated", "live"),
            help="Where trials run. Default: live where there are as many devices as GPUs.",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            parser=options.whole(1),
            metavar="N",
            help="Trials at most. Default: 12 live, 40 simulated.",
        ),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            "--sampler", metavar="NAME", help="auto, optuna-tpe, optuna-gp, skopt-gp, random or grid."
        ),
    ] = None,
    no_prune: Annotated[bool, typer.Option("--no-prune", help="Keep every candidate of the space.")] = False,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            "--baseline", metavar="FILE", help="Deployment to be measured too; may be given more than once."
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option("--price", parser=options.positive, metavar="USD", help="Dollars per GPU and hour."),
    ] = None,
    trial_profile: Annotated[
        Path | None,
        typer.Option(
            "--trial-profile",
            metavar="FILE",
            help="Simulated trials run on this profile, planning on --profile.",
        ),
    ] = None,
    trial_noise: Annotated[
        float | None,
        typer.Option(
            "--trial-noise",
            parser=options.non_negative,
            metavar="SD",
            help="Noise of simulated trials, as a share.",
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option("--requests", parser=options.whole(2), metavar="N", help="Requests of a trial."),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="Run folder. Default: results/<date>-<name>.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume", metavar="DIR", help="Go on with an interrupted run; only --trials may change."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Deployment to write. Default: ./best.yaml.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", parser=options.seed, metavar="N", help="Seed of all that is drawn. Default: 0."
        ),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the best deployment: prune the space, then try what is left, live or simulated.

    Ends with the best configuration, its gain over each baseline on equal GPUs, and how sure that is.
    Every finished trial is kept at once; Ctrl-C ends with the line that goes on. Status 1: nothing
    meets the SLO, and the least bad is written, marked so.
    """
    with talk(json=json, quiet=quiet) as t:
        from has.cli import search_plan

        defaults = Defaults()
        given = search_plan.Options(
            gpus=gpus,
            model=model,
            device=device,
            profile=profile,
            workload=workload,
            space=space,
            rate=rate or None,
            ttft_ms=ttft_ms,
            tpot_ms=tpot_ms,
            attainment=attainment,
            objective=objective,
            on=on,
            trials=trials,
            sampler=sampler,
            no_prune=no_prune or None,
            baseline=baseline or None,
            price=price,
            trial_profile=trial_profile,
            trial_noise=trial_noise,
            requests=requests,
            run=run,
            resume=resume,
            out=out,
            seed=seed,
        )
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
    from has.search.run import search
    from has.sim.run import kernel_is_cached

    if not kernel_is_cached():
        t.say("compiling the simulator, once for this machine: about half a minute")
    infeasible: InfeasibleError | None = None
    try:
        executor = wiring.executor(plan)
        try:
            with SearchView(t, plan.budget) as view:
                outcome = search(**plan.arguments, executor=executor, callbacks=view, command=sys.argv)
        finally:
            executor.close()
    except InfeasibleError as error:
        if error.least_bad is None:
            raise
        infeasible, outcome = error, error.least_bad
    except KeyboardInterrupt:
        raise _interrupted(plan) from None
    page = _write(plan, outcome)
    t.result(outcome.as_json() | {"out": plan.out}, lambda: _answer(plan, outcome, page))
    if infeasible is not None:
        complain(f"error: {infeasible}")
        raise typer.Exit(infeasible.exit_status)


def _interrupted(plan: SearchPlan) -> Interrupted:
    """What is kept, and the line that goes on."""
    if not (plan.run / "manifest.json").is_file():
        return Interrupted("no trial had begun")
    journal = plan.run / "trials.jsonl"
    finished = journal.read_bytes().count(b"\n") if journal.is_file() else 0
    return Interrupted(f"{finished} finished trials are kept in {plan.run}", plan.resume_line)


def _write(plan: SearchPlan, outcome: Outcome) -> Path:
    """The deployment where it was asked for, and the run's page; returns the page."""
    from has.files.atomic import write_atomic
    from has.files.deployment import save_deployment
    from has.report.html import page
    from has.report.run import load_run
    from has.report.run_document import describe_run

    plan.out.parent.mkdir(parents=True, exist_ok=True)
    save_deployment(outcome.best, plan.out)
    report = plan.run / "report.html"
    write_atomic(report, page(describe_run(load_run(plan.run)), footer=f"has report {plan.run}"))
    return report


def _answer(plan: SearchPlan, outcome: Outcome, page: Path) -> RenderableType:
    from has.report.answer import answer_lines, baseline_table
    from has.report.document import Document, Section
    from has.report.terminal import draw

    table = baseline_table(outcome.best)
    counts = outcome.candidates
    how = (
        f"{counts['kept']} of {counts['all']} candidates were left after pruning;"
        f" {outcome.simulations} simulations, {len(outcome.trials)} trials"
    )
    files = [f"written: {plan.out}", f"run: {plan.run}   report: {page}"]
    next_line = f"next: has deploy {plan.out}    why this one: has explain {plan.out}"
    sections = [Section("Against the baselines, on the same GPUs", [table])] if table else []
    return draw(
        Document(
            "The answer", answer_lines(outcome.best), [*sections, Section("How", [how, *files, next_line])]
        )
    )

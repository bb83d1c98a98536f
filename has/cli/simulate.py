"""`has simulate`: one what-if."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from has.cli import inputs, options
from has.cli.console import talk
from has.cli.defaults import Defaults


def command(
    deployment: Annotated[
        Path, typer.Argument(metavar="DEPLOYMENT", help="Deployment file, such as best.yaml.")
    ],
    profile: options.Profile = None,
    workload: options.Workload = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            "--request-rate",
            parser=options.positive,
            metavar="R",
            help="Requests per second in all.",
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests",
            parser=options.whole(1),
            metavar="N",
            help="Requests to draw, or to take of a trace.",
        ),
    ] = None,
    warmup_s: options.WarmupS = 0.0,
    ttft_ms: options.TtftMs = None,
    tpot_ms: options.TpotMs = None,
    attainment: options.Attainment = None,
    records: Annotated[
        Path | None,
        typer.Option(
            "--records", metavar="FILE", help="Write a row for every request there, .csv or .parquet."
        ),
    ] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Simulate a deployment under a workload: percentiles, attainment and per-stage figures.

    Profile and workload default to the copies that the deployment's run kept. The status is 0
    whatever the attainment.
    """
    with talk(json=json, quiet=quiet) as t:
        from has.core.figures import met
        from has.files.deployment import load_deployment
        from has.files.records import save_records
        from has.report import figures as parts
        from has.report.document import Document
        from has.report.nouns import slo_words
        from has.report.terminal import draw
        from has.sim.draw import DEFAULT_REQUESTS
        from has.sim.run import kernel_is_cached, simulate_run

        options.ending(records, (".csv", ".parquet"), "--records")
        defaults = Defaults()
        plan = load_deployment(deployment)
        evidence = inputs.evidence_for(plan, deployment, profile, workload, defaults)
        arrivals = evidence.workload.arrivals
        if requests is None:
            whole = arrivals.process == "trace"
            defaults.note(
                "--requests", "all" if whole else DEFAULT_REQUESTS, "the whole trace" if whole else ""
            )
        defaults.note("--seed", seed)
        defaults.note("--warmup-s", f"{warmup_s:g}")
        inputs.note_deployment_defaults(plan, defaults)
        if not kernel_is_cached():
            t.say("compiling the simulator, once for this machine: about half a minute")
        run = simulate_run(
            plan,
            evidence.profile,
            evidence.workload,
            rate=rate,
            requests=requests,
            warmup_s=warmup_s,
            seed=seed,
            slo=inputs.slo_in_force(plan, evidence.workload, ttft_ms, tpot_ms, attainment),
        )
        if rate is None and run.rate is not None:
            source = (
                "the workload's" if arrivals.rate else "the deployment's" if plan.rate else "the trace's mean"
            )
            defaults.note("--rate", f"{run.rate:g}", source)
        defaults.tell(t)
        for warning in run.warnings:
            t.warn(warning)
        if records is not None:
            save_records(run.records, records, met(run.records, run.slo))
            t.say(f"records of {len(run.records.requests)} requests written to {records}")
        title = f"Simulated: {plan.label}, {plan.gpus} GPUs, {plan.model}"
        t.result(
            run.figures, lambda: draw(Document(title, [slo_words(run.slo)], parts.sections(run.figures)))
        )

"""`has explain`: why this deployment."""

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
    seed: options.Seed = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Say in words why a deployment is as it is, and what changing it would do.

    The binding stage, utilisations, gap threshold, SM table, memory per GPU; one GPU more or less in
    each pool, another B or s, 10 % more or less load; runners-up and baselines of its run.
    """
    with talk(json=json, quiet=quiet) as t:
        from has.files.deployment import load_deployment
        from has.report.explanation import describe_explanation
        from has.report.terminal import draw
        from has.search.explain import explain
        from has.sim.run import kernel_is_cached

        defaults = Defaults()
        plan = load_deployment(deployment)
        evidence = inputs.evidence_for(plan, deployment, profile, workload, defaults)
        if rate is None and workload is None and evidence.run is not None and plan.rate is not None:
            rate = plan.rate
            defaults.note("--rate", f"{rate:g}", "what the search chose the deployment for")
        defaults.note("--seed", seed)
        inputs.note_deployment_defaults(plan, defaults)
        defaults.tell(t)
        if not kernel_is_cached():
            t.say("compiling the simulator, once for this machine: about half a minute")
        told = explain(plan, evidence.profile, evidence.workload, rate=rate, seed=seed)
        t.result(told, lambda: draw(describe_explanation(plan, told)))

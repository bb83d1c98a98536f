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
        from has.cli import wiring
        from has.files.deployment import load_deployment

        defaults = Defaults()
        plan = load_deployment(deployment)
        evidence = inputs.evidence_for(plan, deployment, profile, workload, defaults)
        defaults.note("--seed", seed)
        inputs.note_deployment_defaults(plan, defaults)
        defaults.tell(t)
        data, words = wiring.explanation(plan, evidence, rate=rate, seed=seed)
        t.result(data, words)

"""The options that `has search` alone has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from has.cli import options

Gpus = Annotated[int | None, typer.Option("--gpus", parser=options.gpus, metavar="G", help="GPU budget.")]
Space = Annotated[
    Path | None,
    typer.Option(
        "--space",
        metavar="FILE",
        help="Search space, or the name of a shipped one. Default: every split of the budget.",
    ),
]
Rates = Annotated[
    list[float] | None,
    typer.Option(
        "--rate",
        "--request-rate",
        parser=options.positive,
        metavar="R",
        help="Requests per second in all; several: the best worst case.",
    ),
]
Objective = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="max-rate|goodput|cost",
        parser=options.choice("max-rate", "goodput", "cost"),
        help="What is best. Default: max-rate; goodput when --rate is given.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="simulated|live|vllm",
        parser=options.choice("simulated", "live", "vllm"),
        help="Where trials run. Default: live where there are as many devices as GPUs. vllm: on vLLM here.",
    ),
]
Trials = Annotated[
    int | None,
    typer.Option(
        "--trials",
        parser=options.whole(1),
        metavar="N",
        help="Trials at most. Default: 12 live, 40 simulated.",
    ),
]
Sampler = Annotated[
    str | None,
    typer.Option("--sampler", metavar="NAME", help="auto, optuna-tpe, optuna-gp, skopt-gp, random or grid."),
]
NoPrune = Annotated[bool, typer.Option("--no-prune", help="Keep every candidate of the space.")]
Baselines = Annotated[
    list[Path] | None,
    typer.Option(
        "--baseline", metavar="FILE", help="Deployment to be measured too; may be given more than once."
    ),
]
Prices = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        parser=options.price,
        metavar="USD|GPU=USD",
        help="Dollars per GPU and hour, of all or by type. Default: the shipped facts' where they have one.",
    ),
]
Workloads = Annotated[
    list[Path] | None,
    typer.Option(
        "--workload",
        metavar="FILE",
        help="Workload file (arrivals, sizes, SLO), a trace, or the name of a shipped one; several: the one served worst counts.",
    ),
]
TrialProfile = Annotated[
    Path | None,
    typer.Option(
        "--trial-profile",
        metavar="FILE",
        help="Simulated trials run on this profile, planning on --profile.",
    ),
]
TrialNoise = Annotated[
    float | None,
    typer.Option(
        "--trial-noise",
        parser=options.non_negative,
        metavar="SD",
        help="Noise of simulated trials, as a share.",
    ),
]
Requests = Annotated[
    int | None,
    typer.Option(
        "--requests",
        parser=options.whole(2),
        metavar="N",
        help="Requests of a trial. Default: 80 live, 1000 simulated (at a given rate as many as last); of a trace, simulated: all.",
    ),
]
Run = Annotated[
    Path | None, typer.Option("--run", metavar="DIR", help="Run folder. Default: results/<date>-<name>.")
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="DIR",
        help="Go on with an interrupted run, asked what it was asked: all is in its folder. --trials and --out may change, a --baseline be added.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        parser=options.to_write,
        metavar="FILE",
        help="Deployment to write. Default: ./best.yaml.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", parser=options.seed, metavar="N", help="Seed of all that is drawn. Default: 0."),
]

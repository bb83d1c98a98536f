"""`has export`: launch artefacts for an engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from has.cli import inputs, options, precedence
from has.cli.console import Talk, talk
from has.cli.defaults import Defaults

if TYPE_CHECKING:
    from has.core.deployment import Deployment
    from has.core.workload import Workload
    from has.engine.artefacts.artefact import Artefact
    from has.engine.export import Score
    from has.engine.plan import Plan


def command(
    deployment: Annotated[
        Path, typer.Argument(metavar="DEPLOYMENT", help="Deployment file, such as best.yaml.")
    ],
    to: Annotated[
        str | None, typer.Option("--to", metavar="vllm|sglang|dynamo|llm-d", help="Engine to write for.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder to write to. Default: export-<engine>."),
    ] = None,
    profile: options.Profile = None,
    pool_profile: options.PoolProfiles = None,
    workload: options.Workload = None,
    rate: options.Rate = None,
    sm_split: Annotated[
        bool,
        typer.Option(
            "--experimental-sm-split",
            help="vllm: keep local prefill, as a second process on each encode GPU under MPS. Not run by us.",
        ),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            parser=options.whole(1, 65534),
            metavar="N",
            help="vllm, sglang: port of the gateway or router. Default: 8000.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the files instead of writing them.")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write launch artefacts for an engine: vLLM, SGLang, Dynamo or llm-d.

    Says which knobs the engine cannot express, and scores what is really emitted, at the rate that
    the deployment is for. Budgets are sized from the workload's largest item. Every artefact names
    the engine version it is for.
    """
    with talk(json=json, quiet=quiet) as t:
        from has.engine.engines import VERSIONS, engine_named
        from has.engine.export import plan_export, render, write
        from has.errors import InputError
        from has.files.deployment import load_deployment

        if to is None:
            raise InputError("name the engine", where="argument", field="--to", allowed=", ".join(VERSIONS))
        engine = engine_named(to)
        defaults = Defaults()
        recommended = load_deployment(deployment)
        evidence, load = _evidence(t, recommended, deployment, profile, pool_profile, workload, defaults)
        if evidence is not None:
            precedence.note_recommended(rate, load, recommended, defaults)
        target = Path(defaults.pick("--out", out, Path(f"export-{engine}")))
        if sm_split and engine != "vllm":
            raise InputError(
                "is of vLLM alone", where="argument", field="--experimental-sm-split", mend="--to vllm"
            )
        if engine in ("vllm", "sglang"):
            port = defaults.pick("--port", port, 8000)
        elif port is not None:
            raise InputError(
                f"clients of {engine} talk to a service of the cluster, which has its own port",
                where="argument",
                field="--port",
                value=port,
                mend="leave it away, or --to vllm | sglang",
            )
        defaults.tell(t)
        plan = plan_export(
            recommended,
            engine,
            load,
            profile=None if evidence is None else evidence.pools.get("encode", evidence.profile),
            sm_split=sm_split,
            front_port=port or 8000,
        )
        files = render(plan)
        scored = None if evidence is None else _scored(t, plan, evidence, rate)
        for change in plan.changes:
            t.warn(str(change))
        for note in plan.notes:
            t.say(f"note: {note}")
        written = [] if dry_run else write(files, target)
        t.result(_json(plan, files, scored, written), lambda: _answer(plan, files, scored, written))


def _evidence(
    t: Talk,
    plan: Deployment,
    file: Path,
    profile: Path | None,
    pool_profile: list[str] | None,
    workload: Path | None,
    defaults: Defaults,
) -> tuple[inputs.Evidence | None, Workload]:
    """What to score with, and the workload; without a profile the artefacts are written all the same, and said to be unscored."""
    from has.errors import InputError
    from has.files.workload import load_workload

    try:
        evidence = inputs.evidence_for(plan, file, profile, workload, defaults, pool_profile)
    except InputError:
        if profile is not None or pool_profile:
            raise
        run = inputs.run_of(plan, file)
        if workload is None:
            kept = run / "workload.yaml" if run is not None else None
            workload = kept if kept is not None and kept.is_file() else inputs.example_workload(plan.model)
            defaults.note("--workload", workload, "for the budgets")
        t.warn(f"what is emitted is not scored: no profile of {plan.model} is here; give --profile FILE")
        return None, load_workload(workload)
    return evidence, evidence.workload


def _scored(t: Talk, plan: Plan, evidence: inputs.Evidence, rate: float | None) -> Score | None:
    from has.engine.export import score
    from has.errors import InputError
    from has.search.pools import fits_hardware
    from has.sim.run import kernel_is_cached

    if not kernel_is_cached():
        t.say("compiling the simulator, once for this machine: about half a minute")
    try:
        scored = score(plan, evidence.latency, evidence.workload, rate=rate)
    except InputError as error:
        t.warn(f"what is emitted is not scored: {error.message}")
        return None
    for warning in [*fits_hardware(plan.asked, evidence.latency), *scored.warnings]:
        t.warn(warning)
    if not scored.calibrated:
        t.warn(
            f"the score is uncalibrated: its profile was made on {scored.engine_of_profile}, not on {plan.engine}"
        )
    return scored


def _json(plan: Plan, files: list[Artefact], scored: Score | None, written: list[Path]) -> dict[str, Any]:
    return {
        "engine": plan.engine,
        "version": plan.version,
        "deployment": plan.emitted,
        "changes": [
            {"knob": c.knob, "asked": c.asked, "emitted": c.emitted, "why": c.why} for c in plan.changes
        ],
        "notes": plan.notes,
        "gpus": plan.gpus,
        "nodes": plan.nodes,
        "files": {f.name: f.text for f in files} if not written else [str(path) for path in written],
        "score": None
        if scored is None
        else {
            "rate": scored.rate,
            "asked": scored.asked,
            "emitted": scored.emitted,
            "profile_engine": scored.engine_of_profile,
            "calibrated": scored.calibrated,
        },
    }


def _answer(plan: Plan, files: list[Artefact], scored: Score | None, written: list[Path]) -> str:
    from has.engine.export import status_of

    lines = [f"{plan.emitted.label} for {status_of(plan)}"]
    if plan.emitted.label != plan.asked.label:
        lines[0] = f"{plan.asked.label} becomes {lines[0]}"
    lines.append(
        f"{len(plan.instances)} instances on {plan.gpus} GPUs, {plan.nodes} node{'s' if plan.nodes > 1 else ''}"
    )
    if scored is not None:
        at = "" if scored.rate is None else f" at {scored.rate:.4g} req/s"
        for name, figures in (("recommended", scored.asked), ("as emitted", scored.emitted)):
            lines.append(
                f"{name}{at}: attainment {_number(figures['attainment'], 3)}, goodput {_number(figures['goodput_rps'], 2)}"
                f" req/s, TTFT p99 {_number(figures['ttft_ms']['p99'], 0)} ms (simulated)"
            )
    if written:
        return "\n".join([*lines, "written: " + ", ".join(map(str, written))])
    shown = [f"--- {f.name}\n{f.text}" for f in files]
    return "\n".join([*lines, *shown]).rstrip("\n")


def _number(value: float | None, digits: int) -> str:
    return "none" if value is None else f"{value:.{digits}f}"

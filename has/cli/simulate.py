"""`has simulate`: one what-if."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from has.cli import inputs, options, precedence
from has.cli.console import talk
from has.cli.defaults import Defaults
from has.cli.failure import once_answered
from has.core.words import plural

if TYPE_CHECKING:
    from has.core.deployment import Deployment
    from has.core.workload import Workload


def command(
    deployment: options.Deployment,
    profile: options.Profile = None,
    pool_profile: options.PoolProfiles = None,
    workload: options.Workload = None,
    rate: options.Rate = None,
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
    as_deployed: Annotated[
        bool,
        typer.Option("--as-deployed", help="Fill in what the file leaves open as has deploy would."),
    ] = False,
    records: options.Records = None,
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
        from has.report.provenance import source_words
        from has.report.terminal import draw
        from has.search.pools import fits_hardware
        from has.sim.draw import DEFAULT_REQUESTS
        from has.sim.run import kernel_is_cached, simulate_run

        options.target(records, "--records", (".csv", ".parquet"))
        defaults = Defaults()
        plan = load_deployment(deployment)
        evidence = inputs.evidence_for(plan, deployment, profile, workload, defaults, pool_profile)
        if requests is None:
            whole = evidence.workload.arrivals.process == "trace"
            defaults.note(
                "--requests", "all" if whole else DEFAULT_REQUESTS, "the whole trace" if whole else ""
            )
        defaults.note("--seed", seed)
        defaults.note("--warmup-s", f"{warmup_s:g}")
        precedence.note_rate(rate, evidence.workload, plan, defaults)
        asked = {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "attainment": attainment}
        slo = precedence.slo_in_force(asked, evidence.workload, plan, defaults)
        inputs.note_deployment_defaults(plan, defaults)
        plan = _as_served(plan, evidence.workload, as_deployed, defaults)
        defaults.tell(t)
        precedence.warn_of_seconds(t, slo)
        source = source_words(evidence.profile.metadata.source, evidence.profile.metadata.stated_error)
        if json and source:
            t.say(source)
        if not kernel_is_cached():
            t.say("compiling the simulator, once for this machine: about half a minute")
        run = simulate_run(
            plan,
            evidence.latency,
            evidence.workload,
            rate=rate,
            requests=requests,
            warmup_s=warmup_s,
            seed=seed,
            slo=slo,
        )
        for warning in [*fits_hardware(plan, evidence.latency), *run.warnings]:
            t.warn(warning)
        title = f"Simulated: {plan.label}, {plural(plan.gpus, 'GPU')}, {plan.model}"
        lead = [slo_words(run.slo), *filter(None, [source])]
        t.result(run.figures, lambda: draw(Document(title, lead, parts.sections(run.figures))))
        if records is not None:
            with once_answered():
                save_records(run.records, records, met(run.records, run.slo))
                t.say(f"records of {plural(len(run.records.requests), 'request')} written to {records}")


def _as_served(plan: Deployment, workload: Workload, as_deployed: bool, defaults: Defaults) -> Deployment:
    """The deployment to simulate, and in the list of defaults where a server would do otherwise."""
    from has.core.serving import served

    fields = served(plan)
    if workload.arrivals.process == "trace":
        fields.pop("rate_estimate", None)  # online there in any case
    for name, value in fields.items():
        shown = f"{value:g}" if isinstance(value, float) else value
        if as_deployed:
            defaults.note(name, shown, "as has deploy would")
        else:
            now = "known" if name == "rate_estimate" else "none"
            defaults.note(name, now, f"has deploy would take {shown} (--as-deployed simulates that)")
    return plan.model_copy(update=fields) if as_deployed else plan

"""`has explain`: why this deployment."""

from __future__ import annotations

from has.cli import inputs, options, precedence
from has.cli.console import talk
from has.cli.defaults import Defaults


def command(
    deployment: options.Deployment,
    profile: options.Profile = None,
    pool_profile: options.PoolProfiles = None,
    workload: options.Workload = None,
    rate: options.Rate = None,
    ttft_ms: options.TtftMs = None,
    tpot_ms: options.TpotMs = None,
    attainment: options.Attainment = None,
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
        from has.search.explain import explain_worst
        from has.search.pools import fits_hardware
        from has.sim.run import kernel_is_cached

        defaults = Defaults()
        plan = load_deployment(deployment)
        evidence = inputs.evidence_for(
            plan, deployment, profile, workload, defaults, pool_profile, all_workloads=True
        )
        precedence.note_rate(rate, evidence.workload, plan, defaults)
        asked = {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "attainment": attainment}
        slo = precedence.slo_in_force(asked, evidence.workload, plan, defaults)
        defaults.note("--seed", seed)
        inputs.note_deployment_defaults(plan, defaults)
        defaults.tell(t)
        precedence.warn_of_seconds(t, slo)
        if not kernel_is_cached():
            t.say("compiling the simulator, once for this machine: about half a minute")
        further = [(w, precedence.with_options(w.slo or slo, asked)) for w in evidence.further]
        told = explain_worst(
            plan,
            evidence.profile,
            [(evidence.workload, slo), *further],
            rate=rate or (evidence.workload.arrivals.rate if further else None),  # the first one's is all's
            seed=seed,
            pool_profiles=evidence.pools,
        )
        for warning in [*fits_hardware(plan, evidence.latency), *told["warnings"]]:
            t.warn(warning)
        t.result(told, lambda: draw(describe_explanation(plan, told)))

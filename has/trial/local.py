"""Live trials on the bundled runtime: a warm pool of virtual GPUs, re-roled for every deployment.

A trial sends each request at its time (open loop), through the same service that `has deploy` runs,
and reads its figures off what clients and workers saw. Was the host too busy for a trial to be
believed (the validity gate), it is run once more, then given up with the figure.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from threading import Thread
from typing import Any

from has.core.figures import figures
from has.core.profile import Profile
from has.core.requests import Requests
from has.core.trial import Outcome, TrialPlan, TrialState
from has.device.cpu import nominal_table
from has.device.gate import Verdict, gate
from has.device.host import precise_sleep
from has.device.nominal import Nominal
from has.errors import InfeasibleError, InputError, MissingError
from has.gateway.job import Job
from has.gateway.port import Command, Event
from has.latency.lookup import LatencyModel
from has.models.names import BENCH, VOCAB_SIZE, is_bundled
from has.runtime.pool import WarmPool, plan_roles
from has.runtime.priority import go_first
from has.runtime.serve import sm_table_of
from has.runtime.start import compile_policies, open_service
from has.trial.host_load import busy, cores_used
from has.trial.live_load import SyntheticLoad, fitted
from has.trial.live_records import LiveRecords
from has.trial.live_service import service_ratios
from has.trial.play import Play

ATTEMPTS = 2


class LocalExecutor:
    """Runs plans on `gpus` virtual GPUs with `model` loaded (`has.core.trial.Executor`).

    profile      gives the SM table where a deployment has none, and what measured stage times are
                 held against in the telemetry
    nominal      paces the virtual GPUs; default: the table kept on this machine, measured if there
                 is none. It must be the one the profile was measured under.
    total_share  of the machine, for that measurement
    gated        whether a trial on a busy host is repeated and then refused
    say          is told what is waited for where that measurement takes long

    Raises MissingError or RunError where workers cannot be started.
    """

    parallel = 1
    live = True

    def __init__(
        self,
        model: str,
        gpus: int,
        *,
        profile: Profile | None = None,
        nominal: Nominal | None = None,
        total_share: float | None = None,
        gated: bool = True,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.profile = profile
        self.gated = gated
        self._latency = LatencyModel.from_profile(profile) if profile is not None else None
        table = nominal
        if table is None and is_bundled(model):
            table = nominal_table(model, BENCH, total_share=total_share, say=say)
        self._table = table
        compiling = Thread(target=_compile_policies, daemon=True)
        compiling.start()
        try:
            self.pool = WarmPool(model, gpus, nominal=table)
        finally:
            compiling.join()
        self._load = SyntheticLoad(model)

    def run(self, plan: TrialPlan) -> Outcome:
        try:
            plan_roles(plan.deployment, self.pool.gpus)
            requests = fitted(plan.requests, self.pool.model)
            jobs = self._load.jobs(requests)
        except (MissingError, InputError) as error:
            return Outcome(TrialState.FAILED, reason=str(error))
        if self.pool.broken:
            self.pool.close()
            self.pool = WarmPool(self.pool.model, self.pool.gpus, nominal=self._table)
        outcome = Outcome(TrialState.FAILED, reason="not run")
        for _ in range(ATTEMPTS):
            try:
                outcome, verdict = asyncio.run(self._trial(plan, requests, jobs))
            except (InfeasibleError, InputError) as error:
                return Outcome(TrialState.FAILED, reason=str(error))
            if verdict.passed or not self.gated or outcome.state == TrialState.FAILED:
                return outcome
        return Outcome(
            TrialState.FAILED, reason=verdict.reason, records=outcome.records, telemetry=outcome.telemetry
        )

    def close(self) -> None:
        self.pool.close()

    async def _trial(self, plan: TrialPlan, requests: Requests, jobs: list[Job]) -> tuple[Outcome, Verdict]:
        deployment = plan.deployment
        log: list[tuple[Command | Event, float]] = []
        media_rate = plan.rate * requests.media_share if plan.rate else None
        estimate = deployment.rate_estimate or ("known" if plan.rate else "online")
        service = await open_service(
            deployment,
            self.pool,
            media_rate=media_rate or None,
            online=estimate == "online",
            sm_table=sm_table_of(deployment, self.profile),
            context=int((requests.total_tokens + requests.output_tokens).max()),
            seed=plan.seed,
            tap=lambda entry, now_s: log.append((entry, now_s)),
        )
        run = Play(service, plan, requests, jobs, known=lambda token: 0 <= token < VOCAB_SIZE)
        gc.collect()
        gc.freeze()
        gc.disable()
        precise_sleep()
        go_first()
        pids = [os.getpid(), *self.pool.pids.values()]
        before = busy(pids)
        try:
            stopped = await run.play()
        finally:
            gc.enable()
            gc.unfreeze()
            cores = cores_used(before, busy(pids))
            service.stop("the trial is over")
            await self.pool.rest()
        live = LiveRecords(deployment, requests, run.answers, log, run.t0_s)
        verdict = gate(live.spans(), run.late_s)
        if not verdict.passed and cores is not None:
            reason = f"{verdict.reason}; other processes used {cores['others']:.2f} cores"
            verdict = replace(verdict, reason=reason)
        telemetry: dict[str, Any] = {
            "gate": asdict(verdict),
            "load_late_ms": run.late_s * 1e3,
            "nominal_digest": self.pool.facts["nominal"],
            "cores_used": cores,
        }
        if self._latency is not None:
            telemetry["stages"] = service_ratios(live.works, self._latency, streams=service.scheduler.streams)
        fault = run.fault()
        if fault:
            return (
                Outcome(TrialState.FAILED, reason=fault, records=live.records, telemetry=telemetry),
                verdict,
            )
        state = TrialState.STOPPED if stopped else TrialState.COMPLETE
        shown = figures(live.records, plan.slo, plan.warmup_s)
        return Outcome(state, shown, stopped, live.records, telemetry), verdict


def _compile_policies() -> None:
    """A second of loading that the first trial would have, while workers load models. A trial tells of what fails here."""
    with suppress(Exception):
        compile_policies()

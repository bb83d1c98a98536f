"""Live trials on vLLM: instances kept between trials, our gateway in front, the same figures as ever.

A trial in which an instance dies has failed, with that reason; the next one starts what is missing.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from has.core.deployment import Deployment
from has.core.figures import figures
from has.core.profile import Profile
from has.core.records import Records, StageLoad
from has.core.requests import Requests
from has.core.trial import Outcome, Progress, TrialPlan, TrialState
from has.engine.plan import Plan
from has.engine.sizes import Sizes
from has.engine.vllm.fleet import Fleet
from has.engine.vllm.install import Installed, installed
from has.engine.vllm.language import EngineLanguage
from has.engine.vllm.load import EngineLoad
from has.engine.vllm.metrics import difference, look
from has.engine.vllm.serve import open_service
from has.engine.vllm.urls import Urls
from has.errors import InfeasibleError, InputError, RunError
from has.gateway.descriptors import allow_files
from has.gateway.job import Job
from has.gateway.port import Admit, Command, Event, Lost, Stepped
from has.gateway.service import Service
from has.latency.lookup import LatencyModel
from has.trial.live_records import Answer, LiveRecords
from has.trial.live_service import service_ratios
from has.trial.play import Play

WARM_UP_TOKENS = 4
SAME = 8
"""Answers of so many tokens that are all one and the same token are no answers: NaN logits give them."""


class EngineExecutor:
    """Runs plans on vLLM instances of `model` on this machine (`has.core.trial.Executor`).

    sizes    what instances are made for: the workload's largest item, request and counts
    profile  held against what stages really took, in the telemetry
    fleet    whose instances are used, and left running; default: one of its own
    on_start called with the fleet when a trial's instances run, for tests that meddle with them

    Raises MissingError without vLLM.
    """

    parallel = 1
    live = True
    place = "vllm"
    """What a run's manifest calls it."""

    def __init__(
        self,
        model: str,
        gpus: int,
        sizes: Sizes,
        *,
        profile: Profile | None = None,
        found: Installed | None = None,
        fleet: Fleet | None = None,
        seed: int = 0,
        say: Callable[[str], None] = lambda _: None,
        on_start: Callable[[Fleet], None] = lambda _: None,
    ) -> None:
        allow_files()
        self._language = EngineLanguage(model)
        self._load = EngineLoad(model, self._language, seed)
        self._sizes = sizes
        self._latency = None if profile is None else LatencyModel.from_profile(profile)
        self._on_start = on_start
        self._own = fleet is None
        self.fleet = fleet or Fleet(found or installed(), model, gpus, say=say)

    def run(self, plan: TrialPlan) -> Outcome:
        deployment = plan.deployment
        try:
            needed = self.fleet.plan(deployment, self._sizes)
            requests = self._load.fitted(plan.requests)
            started = self.fleet.started
            urls = self.fleet.arrange(needed)
        except (InfeasibleError, InputError, RunError) as error:
            return Outcome(TrialState.FAILED, reason=str(error))
        trial = _Trial(plan, requests, needed, urls, self.fleet, self._language, self._load)
        outcome = asyncio.run(
            trial.run(self._latency, fresh=self.fleet.started > started, on_start=self._on_start)
        )
        if trial.stuck:
            self.fleet.discard()
        return outcome

    def close(self) -> None:
        if self._own:
            self.fleet.close()


class _Trial:
    def __init__(
        self,
        plan: TrialPlan,
        requests: Requests,
        needed: Plan,
        urls: Urls,
        fleet: Fleet,
        language: EngineLanguage,
        load: EngineLoad,
    ) -> None:
        self.plan, self.requests, self.needed, self.urls = plan, requests, needed, urls
        self.fleet, self.language, self.load = fleet, language, load
        self.log: list[tuple[Command | Event, float]] = []
        self.lost = ""
        self.stuck = False

    async def run(
        self, latency: LatencyModel | None, *, fresh: bool, on_start: Callable[[Fleet], None]
    ) -> Outcome:
        plan, deployment = self.plan, self.plan.deployment
        media_rate = plan.rate * self.requests.media_share if plan.rate else None
        estimate = deployment.rate_estimate or ("known" if plan.rate else "online")
        service, workers = await open_service(
            deployment,
            self.urls,
            model=self.fleet.model,
            name=self.fleet.name,
            media_rate=media_rate or None,
            online=estimate == "online",
            encoder_budget=self.needed.encoder_budget,
            ec_dir=self.fleet.ec_dir,
            seed=plan.seed,
            tap=self._tap,
            language=self.language,
        )
        try:
            if fresh:
                await self._warm_up(service)
            self.log.clear()
            before = await look(self._names())
            play = Play(
                service, replace(plan, watch=self._watch), self.requests, self.load.jobs(self.requests)
            )
            on_start(self.fleet)
            stopped = await play.play()
            self.stuck = play.stuck
            after = await look(self._names())
        finally:
            service.stop("the trial is over")
            await workers.aclose()
        engine = {name: difference(before[name], page) for name, page in after.items() if name in before}
        live = LiveRecords(deployment, self.requests, play.answers, _worth_recording(self.log), play.t0_s)
        _decode_load(live.records, deployment, self.log, play.t0_s, engine)
        telemetry: dict[str, Any] = {
            "engine": engine,
            "load_late_ms": play.late_s * 1e3,
            "instances": len(self.needed.instances),
            "same_answer": _same(play.answers),
        }
        if latency is not None:
            works = [work for work in live.works if work.stage != "decode"]
            telemetry["stages"] = service_ratios(works, latency, streams=True)
        fault = self.lost or play.fault() or _insane(play.answers)
        if fault:
            return Outcome(TrialState.FAILED, reason=fault, records=live.records, telemetry=telemetry)
        state = TrialState.STOPPED if stopped else TrialState.COMPLETE
        shown = figures(live.records, plan.slo, plan.warmup_s)
        return Outcome(state, shown, stopped, live.records, telemetry)

    def _tap(self, entry: Command | Event, now_s: float) -> None:
        self.log.append((entry, now_s))
        if isinstance(entry, Lost) and not self.lost:
            engine = self.fleet.engine_at(entry.reason.rpartition(" at ")[2])
            said = "" if engine is None else f": {engine.why()}"
            self.lost = (
                f"a vLLM instance died in the trial ({entry.pool} {entry.worker}, {entry.reason}){said}"
            )

    def _watch(self, progress: Progress) -> str | None:
        if self.lost:
            return self.lost
        return None if self.plan.watch is None else self.plan.watch(progress)

    def _names(self) -> dict[str, str]:
        return {f"{pool}-{worker}": url for pool, worker, url in self.urls.all()}

    async def _warm_up(self, service: Service) -> None:
        """Each pair of prefill and decode shakes hands at its first request, which takes a second: not in a trial."""
        count = 2 * max(len(self.urls.prefill) * len(self.urls.decode), len(self.urls.mixed), 1)
        first = np.zeros(count, np.int64)
        requests = self.requests[first]
        requests.output_tokens[:] = WARM_UP_TOKENS

        async def one(job: Job) -> None:
            async for _ in await service.submit(replace(job, arrival_s=time.monotonic())):
                pass

        jobs = self.load.jobs(requests)
        await asyncio.gather(*(one(job) for job in jobs), return_exceptions=True)


def _worth_recording(log: list[tuple[Command | Event, float]]) -> list[tuple[Command | Event, float]]:
    """Without steps that brought no token: they only told what was counted."""
    return [(entry, at_s) for entry, at_s in log if not (isinstance(entry, Stepped) and not entry.tokens)]


def _decode_load(
    records: Records,
    deployment: Deployment,
    log: list[tuple[Command | Event, float]],
    t0_s: float,
    engine: dict[str, dict[str, float]],
) -> None:
    """What decode workers did: busy while a request is with them; their steps are the engines' own count."""
    if "decode" not in records.stages:
        return
    spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
    begun: dict[int, tuple[int, float]] = {}
    tokens = 0
    for entry, _ in log:
        if isinstance(entry, Admit):
            begun[entry.request] = (entry.worker, entry.ready_s)
        elif isinstance(entry, Stepped):
            tokens += len(entry.tokens)
            for request in entry.ended:
                worker, ready_s = begun.pop(request, (entry.worker, entry.start_s))
                spans[worker].append((ready_s, entry.end_s))
    busy_s = sum(_union(intervals) for intervals in spans.values())
    pool = "decode" if deployment.topology == "disaggregated" else "mixed"
    steps = sum(figures.get("iterations", 0.0) for name, figures in engine.items() if name.startswith(pool))
    workers = records.stages["decode"].workers
    records.stages["decode"] = StageLoad(
        workers=workers, busy_ns=round(busy_s * 1e9), steps=round(steps), step_seqs=tokens
    )


def _union(intervals: list[tuple[float, float]]) -> float:
    covered, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


def _same(answers: list[Answer]) -> bool:
    """Whether every answer has the same tokens: embeddings that are ignored look so, and so do models of random weights."""
    given = {tuple(answer.tokens) for answer in answers if len(answer.tokens) >= SAME}
    return len(given) == 1 and sum(len(answer.tokens) >= SAME for answer in answers) > 1


def _insane(answers: list[Answer]) -> str:
    long = [answer.tokens for answer in answers if len(answer.tokens) >= SAME]
    if len(long) > 1 and _same(answers) and len(set(long[0])) == 1:
        return "every answer is one and the same token throughout, as NaN logits give"
    return ""

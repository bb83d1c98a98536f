"""One playing of a list of requests against a service: each sent at its time, all answers kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from has.core.requests import Requests
from has.core.trial import Progress, TrialPlan
from has.errors import HasError
from has.gateway.errors import BadRequest, Refused
from has.gateway.job import Job
from has.gateway.service import Service
from has.trial.live_records import Answer

LEAD_S = 0.05
"""From the start of a trial to its time 0, so that the first request is not late."""
WATCH_S = 0.25
STUCK_S = 60.0
"""A trial in which nothing happens for this long has failed."""


class Play:
    """Open loop: requests go out when they are due, whatever has been answered. `known` says whether a token can be."""

    def __init__(
        self,
        service: Service,
        plan: TrialPlan,
        requests: Requests,
        jobs: list[Job],
        known: Callable[[int], bool] = lambda token: token >= 0,
    ) -> None:
        self.service, self.plan, self.requests, self.jobs = service, plan, requests, jobs
        self._known = known
        self.answers = [Answer() for _ in jobs]
        self.t0_s = 0.0
        self.late_s = 0.0
        self.stuck = False
        self._sent = 0
        self._finished = self._met = 0
        self._changed_s = 0.0
        self._faults: list[str] = []

    async def play(self) -> str | None:
        """Send everything at its time and wait for all answers; the reason if it was ended early."""
        self.t0_s = time.monotonic() + LEAD_S - float(self.requests.arrival_ns[0]) / 1e9
        self._changed_s = time.monotonic()
        sender = asyncio.create_task(self._send())
        try:
            while not sender.done():
                await asyncio.wait([sender], timeout=WATCH_S)
                reason = self._watch()
                if reason is not None:
                    return reason
            await sender
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        return None

    def _watch(self) -> str | None:
        if time.monotonic() - self._changed_s > STUCK_S:
            self.stuck = True
            self._faults.append(f"nothing happened for {STUCK_S:.0f} s")
            return self._faults[-1]
        if self.plan.watch is None:
            return None
        return self.plan.watch(
            Progress(
                total=len(self.jobs),
                sent=self._sent,
                finished=self._finished,
                met=self._met,
                missed=self._finished - self._met,
                elapsed_s=time.monotonic() - self.t0_s - float(self.requests.arrival_ns[0]) / 1e9,
            )
        )

    async def _send(self) -> None:
        async with asyncio.TaskGroup() as clients:
            for i, job in enumerate(self.jobs):
                due_s = self.t0_s + float(self.requests.arrival_ns[i]) / 1e9
                wait_s = due_s - time.monotonic()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                self.late_s = max(self.late_s, time.monotonic() - due_s)
                self._sent += 1
                clients.create_task(self._client(i, job, due_s))

    async def _client(self, i: int, job: Job, due_s: float) -> None:
        answer = self.answers[i]
        answer.sent_s = due_s
        try:
            stream = await self.service.submit(replace(job, arrival_s=due_s))
            answer.request = stream.request
            async for event in stream:
                now_s = time.monotonic()
                answer.first_s = answer.first_s or now_s
                answer.last_s = now_s
                answer.tokens.append(event.token_id)
        except Refused:
            answer.refused = True
        except BadRequest as error:
            answer.error = str(error)
            self._faults.append(f"request {i}: {error}")
        except HasError as error:
            answer.error = str(error)
        self._finish(i, answer)

    def _finish(self, i: int, answer: Answer) -> None:
        self._finished += 1
        self._changed_s = time.monotonic()
        wanted = int(self.requests.output_tokens[i])
        if answer.refused or answer.error or answer.first_s is None or answer.last_s is None:
            return
        if len(answer.tokens) != wanted or not all(map(self._known, answer.tokens)):
            self._faults.append(f"request {i}: {len(answer.tokens)} of {wanted} tokens, or one out of range")
            return
        slo = self.plan.slo
        ttft_s, tpot_s = (
            own if not np.isnan(own) else general
            for own, general in (
                (float(self.requests.ttft_slo_s[i]), slo.ttft_s),
                (float(self.requests.tpot_slo_s[i]), slo.tpot_s),
            )
        )
        in_time = answer.first_s - answer.sent_s <= ttft_s
        self._met += in_time and answer.last_s - answer.first_s <= tpot_s * (wanted - 1)

    def fault(self) -> str:
        """Why this run proves nothing about the deployment, or nothing."""
        errors = [answer.error for answer in self.answers if answer.error]
        if self._faults:
            return self._faults[0]
        if errors and len(errors) == len(self.answers):
            return f"every request failed: {errors[0]}"
        return ""

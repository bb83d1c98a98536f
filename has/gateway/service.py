"""The service: jobs in, tokens out. Drives the scheduler in real time over a port to the workers.

    async for event in await service.submit(Job("What is this?", (image,))): ...

Every job ends in exactly one of: an event with a finish reason, an exception, or the caller's
`aclose`. A worker that is lost is replaced by the port; jobs it held start over unseen if none of
their tokens were sent, and end with `Interrupted` if some were.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from has.gateway.context import Context
from has.gateway.errors import BadRequest, Interrupted, Refused, Unavailable
from has.gateway.job import FinishReason, Job, TokenEvent
from has.gateway.observer import Observer, ServiceState
from has.gateway.pace import Pace
from has.gateway.pools import Ticket
from has.gateway.port import (
    Back,
    Broken,
    Command,
    Encode,
    Encoded,
    Event,
    Failed,
    Lost,
    Payload,
    Prefilled,
    Preprocessed,
    Refuse,
    Stepped,
    WorkerPort,
)
from has.gateway.prompt import BundledLanguage, Language
from has.gateway.scheduler import Pool, Scheduler
from has.gateway.snapshot import snapshot
from has.gateway.stream import TokenStream

log = logging.getLogger("has.gateway")
MOST_RETRIES = 3
"""Times a job is started over when workers die under it, before it is given up."""
REPLACED_S = 5.0
"""A pool without a living worker takes requests on for this long: a replacement is there in a fraction of it."""
LOOK_S = 1.0
"""Between two looks, once that time is over, at what waits for a pool that still has no living worker."""
Tap = Callable[[Command | Event, float], None]


@dataclass(slots=True)
class _Running:
    job: Job
    ticket: Ticket
    payload: Payload
    stream: TokenStream


class Service:
    """One deployment, serving (`has.gateway.job.Serving`).

    max_model_len  most prompt, media and output tokens of one request, None without bound but a worker's KV
    eos            the bundled model's end-of-sequence id, None if it never ends by itself
    language       what prompts and tokens mean; default: the bundled models'
    tap            hears every command and event with the real time it passed, for trials' records
    """

    def __init__(
        self,
        scheduler: Scheduler,
        port: WorkerPort,
        *,
        model: str,
        max_model_len: int | None = None,
        eos: int | None = None,
        language: Language | None = None,
        observer: Observer | None = None,
        tap: Tap | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.observer = observer or Observer()
        self._port = port
        self._model = model
        bounds = [most for most in (max_model_len, scheduler.decode.kv_tokens) if most is not None]
        self._context = Context(min(bounds, default=None))
        self._language = language or BundledLanguage(eos)
        self._tap = tap
        self._clock = clock
        self._running: dict[int, _Running] = {}
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._draining = False
        self.broken = ""
        self._idle = asyncio.Event()
        self._idle.set()
        self._lost_s: dict[str, float] = {}
        self._patience: asyncio.TimerHandle | None = None
        self._pace = Pace()
        port.listen(self._handle)

    # -- for the HTTP side -------------------------------------------------------------------------

    @property
    def model(self) -> str:
        return self._model

    @property
    def max_model_len(self) -> int | None:
        return self._context.most

    def not_ready(self) -> str | None:
        if self.broken:
            return self.broken
        if self._draining:
            return "shutting down"
        given_up = self._given_up()
        return _nobody_for(given_up) if given_up else None

    def _without_workers(self) -> list[Pool]:
        """Pools that have workers, of which none lives."""
        scheduler = self.scheduler
        pools: dict[Pool, list[bool]] = {
            "encode": scheduler.to_encoder.alive,
            "prefill": [lane.alive for lane in scheduler.remote.lanes],
            "decode": scheduler.decode.alive,
        }
        return [name for name, alive in pools.items() if alive and not any(alive)]

    def _given_up(self) -> list[Pool]:
        """Those of them that nobody waits for any longer."""
        horizon_s = self._clock() - REPLACED_S
        return [name for name in self._without_workers() if self._lost_s.get(name, horizon_s) <= horizon_s]

    async def submit(self, job: Job) -> TokenStream:
        why = self.not_ready()
        if why is not None:
            raise Unavailable(why, retry_after_s=1.0)
        self._context.check_text(job, self._language.characters_per_token)
        request, now_s = self._next, self._clock()
        arrival_s = now_s if job.arrival_s is None else job.arrival_s
        render = self._language.renderer(job)
        prompt_tokens = len(render([1] * len(job.media))) - len(job.media)
        if prompt_tokens + len(job.media) < 1:
            raise BadRequest("the prompt is empty", "messages")
        if self._language.estimates:
            prompt_tokens = self._context.credible(job, prompt_tokens)
        output_tokens = self._context.output_tokens(job, prompt_tokens)
        payload = Payload(
            media=job.media,
            render=render,
            output_tokens=output_tokens,
            context=self._context.most,
            temperature=job.temperature,
            top_p=job.top_p,
            seed=request if job.seed is None else job.seed,
            ignore_eos=job.ignore_eos,
            job=job,
        )
        media = len(job.media)
        ticket = Ticket(request, arrival_s, bool(media), 0, prompt_tokens, output_tokens, items=max(1, media))
        self.scheduler.first_tokens_rps, self.scheduler.released_tps = self._pace.rates(now_s)
        refusal = self.scheduler.arrive(ticket, arrival_s)
        if refusal is not None:
            raise self._refused(refusal, ticket)
        self._next += 1
        stream = TokenStream(request, prompt_tokens, self._cancel)
        self._running[request] = _Running(job, ticket, payload, stream)
        self._idle.clear()
        self._port.open(request, payload)
        self._advance(arrival_s)
        return stream

    def _refused(self, refusal: Refuse, ticket: Ticket) -> Exception:
        self.observer.refused(refusal.reason)
        if refusal.retry_after_s is None:
            return BadRequest(
                f"the request needs {ticket.kv_tokens} KV tokens; a worker holds"
                f" {self.scheduler.decode.kv_tokens}",
                "messages",
                code="context_length_exceeded",
            )
        return Refused(refusal.retry_after_s, refusal.reason)

    # -- events ------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        now_s = self._clock()
        if self._tap is not None:
            self._tap(event, now_s)
        match event:
            case Preprocessed():
                self._preprocessed(event)
            case Encoded():
                worker = self.scheduler.encoders[event.worker]
                self._stage_done("encode", worker.encoder.those(event.requests), event)
                self.observer.encoded(event.media or worker.media, event.known)
                delays = _delays(event.transfers)
                self.scheduler.encoded(event.worker, event.end_s, delays, event.requests)
            case Prefilled():
                self._counted(event.counted)
                for request, token in event.tokens:
                    if token < 0:
                        self._decode_brings_it(request)
                    elif self._token(request, token, event.end_s):
                        self.scheduler.finish(request)
                        self._over(request)
                if event.remote:
                    stage, lane = "prefill_remote", self.scheduler.remote.lanes[event.worker]
                else:
                    stage, lane = "prefill_local", self.scheduler.encoders[event.worker].prefiller
                self._stage_done(stage, lane.those(event.requests), event)
                self.scheduler.prefilled(
                    event.remote, event.worker, event.end_s, _delays(event.transfers), event.requests
                )
            case Stepped():
                self._counted(event.counted)
                for request, token in event.tokens:
                    self.scheduler.answered(request)
                    self._token(request, token, event.end_s)
                for request in event.ended:
                    self.scheduler.finish(request)
                    self._over(request)
                self.observer.stage_done("decode", 0.0, event.end_s - event.start_s)
            case Failed(unfit=True):
                self._fail(event.request, BadRequest(event.error, "messages"))
            case Failed(transient=True):
                self._fail(event.request, Unavailable(event.error, retry_after_s=1.0))
            case Failed(anew=True) if event.request in self._running:
                ticket = self._running[event.request].ticket
                self.scheduler.withdraw(ticket)
                self._start_over(ticket, "a worker failed", event.error, now_s)
            case Failed():
                self._fail(event.request, Interrupted(f"a worker could not compute it: {event.error}"))
            case Broken():
                self.broken = event.reason
                self.stop(event.reason)
            case Lost():
                self._lost(event, now_s)
            case Back():
                log.warning("%s worker %d is replaced", event.pool, event.worker)
                self.scheduler.back(event.pool, event.worker, now_s)
            case _:
                assert_never(event)
        # A token that is not the last makes room for nobody.
        if not self.broken and not (isinstance(event, Stepped) and not event.ended):
            self._advance(now_s if isinstance(event, Failed | Lost | Back | Broken) else event.end_s)

    def _preprocessed(self, event: Preprocessed) -> None:
        running = self._running.get(event.request)
        if running is not None:
            running.ticket.media_tokens = event.media_tokens
            if event.error:
                param = running.job.media[0].param if running.job.media else None
                self._fail(event.request, BadRequest(event.error, param))
            else:
                self._fit(running)
        self._stage_done("preprocess", self.scheduler.preprocess.lanes[event.server].running, event)
        self.scheduler.preprocessed(event.server, event.end_s)

    def _fit(self, running: _Running) -> None:
        """Hold a request to its context, which a worker's memory bounds too, now that its media are counted."""
        job, ticket, stream = running.job, running.ticket, running.stream
        if self._language.estimates:
            ticket.prompt_tokens = self._context.credible(job, ticket.prompt_tokens, ticket.media_tokens)
        try:
            ticket.output_tokens = self._context.left_after_media(job, ticket.tokens, ticket.output_tokens)
        except BadRequest as error:
            self._fail(ticket.request, error)
            return
        stream.prompt_tokens = ticket.tokens

    def _decode_brings_it(self, request: int) -> None:
        """The first token too: so it is not over, though an estimate left it no more than one."""
        if request in self._running:
            ticket = self._running[request].ticket
            ticket.output_tokens = max(ticket.output_tokens, 2)

    def _counted(self, counted: tuple[tuple[int, int], ...]) -> None:
        """What the workers counted goes before what was estimated."""
        for request, tokens in counted:
            if request in self._running:
                self._running[request].stream.prompt_tokens = tokens

    def _stage_done(self, stage: str, batch: list[Ticket], event: Preprocessed | Encoded | Prefilled) -> None:
        """Report a batch that is about to leave its lane: how long its first request waited, and its service."""
        waited_s = [event.start_s - ticket.ready_s for ticket in batch]
        self.observer.stage_done(stage, max(0.0, *waited_s, 0.0), event.end_s - event.start_s)

    def _token(self, request: int, token: int, end_s: float) -> bool:
        """Hand on a token; True if it is the request's last."""
        running = self._running.get(request)
        if running is None:
            return False
        stream = running.stream
        index = stream.sent + 1
        ended = self._language.end(token, ignore_eos=running.job.ignore_eos)
        counted = not self._language.says_ends and index >= running.ticket.output_tokens
        reason: FinishReason | None = ended or ("length" if counted else None)
        if index == 1:
            self._pace.first_token(self._clock())
        text = self._language.text(token, ended=ended is not None)
        stream.put(TokenEvent(token, text, index, stream.prompt_tokens, reason, end_s))
        return reason is not None

    def _lost(self, event: Lost, now_s: float) -> None:
        log.warning("%s worker %d is lost: %s", event.pool, event.worker, event.reason)
        self._lost_s["decode" if event.pool == "mixed" else event.pool] = now_s
        for ticket in self.scheduler.lost(event.pool, event.worker, now_s):
            self._start_over(ticket, f"a {event.pool} worker failed", event.reason, now_s)
        self._look_again(REPLACED_S)

    def _look_again(self, after_s: float) -> None:
        """See after a while whether requests wait for a pool that does not come back."""
        if self._patience is None and (self._running or not self._draining):
            self._patience = asyncio.get_running_loop().call_later(after_s, self._look)

    def _look(self) -> None:
        """What waits for a pool that is given up is told what new requests are told."""
        self._patience = None
        given_up = self._given_up()
        for pool in given_up:
            for ticket in self.scheduler.waiting_for(pool):
                self._fail(ticket.request, Unavailable(_nobody_for(given_up), retry_after_s=1.0))
        if self._without_workers():
            self._look_again(LOOK_S)

    def _start_over(self, ticket: Ticket, what: str, reason: str, now_s: float) -> None:
        """Unless tokens were sent, or it has failed too often: then it ends, and says so."""
        stream = self._running[ticket.request].stream
        stream.retries += 1
        if stream.sent:
            error = f"{what} after {stream.sent} tokens: {reason}"
            self._fail(ticket.request, Interrupted(error))
        elif stream.retries > MOST_RETRIES:
            error = f"workers failed {stream.retries} times under this request: {reason}"
            self._fail(ticket.request, Interrupted(error))
        else:
            preprocessed = self._port.retain(ticket.request)
            self.scheduler.retry(ticket.request, now_s, preprocessed=preprocessed)

    # -- ends --------------------------------------------------------------------------------------

    def _over(self, request: int) -> None:
        """`request` holds nothing any more, for the workers or us."""
        running = self._running.pop(request, None)
        if running is not None:
            self._pace.released(self._clock(), running.ticket.kv_tokens)
            self._port.close(request)
        if not self._running:
            self._idle.set()

    def _fail(self, request: int, error: Exception) -> None:
        running = self._running.get(request)
        if running is not None:
            running.stream.fail(error)
            self.scheduler.cancel(request)
            self._over(request)

    def _cancel(self, request: int) -> None:
        """The client is gone."""
        self.scheduler.cancel(request)
        self._over(request)
        self._advance(self._clock())

    async def drain(self, timeout_s: float = 30.0) -> bool:
        """Take nothing new, let what runs end; what has not by `timeout_s` fails. True if all ended by itself."""
        self._draining = True
        self.scheduler.drain(self._clock())
        self._advance(self._clock())
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            self.stop("the service is shutting down")
            return False
        return True

    def stop(self, reason: str) -> None:
        """End everything now, with an error for each job that has not ended."""
        self._draining = True
        for request in list(self._running):
            self._fail(request, Unavailable(reason))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    # -- time --------------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> None:
        for command in self.scheduler.advance(now_s):
            if self._tap is not None:
                self._tap(command, now_s)
            if isinstance(command, Encode):
                self.observer.encode_launched(len(command.requests), command.reason)
                routed = () if command.is_fanout else zip(command.requests, command.local, strict=True)
                for request, local in routed:
                    self.observer.routed(not local, self.scheduler.tickets[request].tokens)
            self._port.execute(command)
        self._arm()

    def _arm(self) -> None:
        due_s = self.scheduler.next_due_s()
        if self._timer is not None:
            if due_s is not None and self._timer_due_s == due_s:
                return
            self._timer.cancel()
            self._timer = None
        if due_s is not None:
            self._timer_due_s = due_s
            delay_s = max(0.0, due_s - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._due, due_s)

    def _due(self, due_s: float) -> None:
        # The batch was due at `due_s`, whenever the loop came round to it: that is when it starts.
        self._timer = None
        self._advance(due_s)

    def state(self) -> ServiceState:
        """The service now, for metrics and the status page."""
        return snapshot(self.scheduler, len(self._running), self.not_ready())


def _nobody_for(pools: Sequence[Pool]) -> str:
    return f"no living worker for {' and '.join(pools)}"


def _delays(transfers: tuple[tuple[int, float], ...]) -> Callable[[Ticket], float]:
    seconds = dict(transfers)
    return lambda ticket: seconds.get(ticket.request, 0.0)

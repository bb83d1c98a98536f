"""Workers on a fake clock: what commands become when every stage lasts what a profile says.

Drives the live scheduler, and the live batching of decode and mixed workers, without any process,
so that their decisions can be held against the simulator's. Times are integer nanoseconds.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

from has.core.deployment import Deployment
from has.core.records import COMPLETED, NEVER, REFUSED, Records
from has.core.requests import Requests
from has.core.stage import Beside, Stage
from has.gateway.pools import Ticket
from has.gateway.port import Admit, Encode, Prefill, Preprocess
from has.gateway.scheduler import Scheduler
from has.latency.lookup import LatencyModel
from has.runtime.batching import DecodeBatch, MixedBatch, Sequence

COMPLETION, ARRIVAL, TIMER = 0, 1, 2


@dataclass
class Job:
    """Work in progress on one lane: the fraction left, and how long the whole would take at the present rate."""

    requests: tuple[int, ...]
    tokens: float
    left: float
    since_ns: int
    whole_ns: float
    version: int = 0


class FakeWorkers:
    def __init__(
        self, scheduler: Scheduler, deployment: Deployment, latency: LatencyModel, requests: Requests
    ) -> None:
        self.scheduler, self.deployment, self.latency, self.requests = (
            scheduler,
            deployment,
            latency,
            requests,
        )
        self.records = Records.empty(requests)
        self.heap: list[tuple[int, int, int, Callable[[], None]]] = []
        self.sequence = 0
        self.now_ns = 0
        encoders = len(scheduler.encoders)
        self.encode: list[Job | None] = [None] * encoders
        self.prefill: list[Job | None] = [None] * encoders
        self.encode_share = [0.0] * encoders
        kv, seqs = scheduler.decode.kv_tokens, deployment.max_num_seqs
        self.mixed = deployment.topology != "disaggregated"
        self.batches: list[DecodeBatch | MixedBatch] = [
            MixedBatch(seqs, kv, deployment.prefill_token_budget) if self.mixed else DecodeBatch(seqs, kv)
            for _ in scheduler.decode.held
        ]
        self.stepping = [False] * len(self.batches)
        self.first_by_decode = deployment.topology == "disaggregated" and deployment.first_token == "decode"
        for index in range(len(requests)):
            self.at(int(requests.arrival_ns[index]), ARRIVAL, lambda index=index: self._arrive(index))

    def at(self, time_ns: int, rank: int, call: Callable[[], None]) -> None:
        self.sequence += 1
        heapq.heappush(self.heap, (time_ns, rank, self.sequence, call))

    @property
    def now_s(self) -> float:
        return self.now_ns / 1e9

    def ns(self, stage: Stage, batch: int, tokens: float, share: float = 100.0) -> float:
        return self.latency.seconds(stage, batch, tokens, share) * 1e9 if self.latency.covers(stage) else 0.0

    def run(self) -> Records:
        timer_ns = None
        while True:
            due_s = self.scheduler.next_due_s()
            timer_ns = None if due_s is None else round(due_s * 1e9)
            if not self.heap and timer_ns is None:
                return self.records
            following = [t for t in (timer_ns, self.heap[0][0] if self.heap else None) if t is not None]
            self.now_ns = max(self.now_ns, min(following))
            while self.heap and self.heap[0][0] <= self.now_ns:
                heapq.heappop(self.heap)[3]()
            for command in self.scheduler.advance(self.now_s):
                self._start(command)
            for worker in range(len(self.batches)):
                self._step(worker)

    def _arrive(self, index: int) -> None:
        r = self.requests
        ticket = Ticket(
            index,
            self.now_s,
            bool(r.modality[index] != 0),
            int(r.media_tokens[index]),
            int(r.prompt_tokens[index]),
            int(r.output_tokens[index]),
        )
        refusal = self.scheduler.arrive(ticket, self.now_s)
        if refusal is not None and refusal.reason == "queue":
            self.records.status[index] = REFUSED

    def _start(self, command: Preprocess | Encode | Prefill | Admit) -> None:
        match command:
            case Preprocess():
                media = int(self.requests.media_tokens[command.request])
                end = self.now_ns + round(self.ns(Stage.PREPROCESS, 1, media))
                self.at(end, COMPLETION, lambda: self._preprocessed(command))
            case Encode():
                self._start_encode(command)
            case Prefill():
                self._start_prefill(command)
            case Admit():
                self._admit(command)
        assert command.ready_s if isinstance(command, Admit) else command.start_s <= self.now_s

    def _preprocessed(self, command: Preprocess) -> None:
        self.records.preprocessed_ns[command.request] = self.now_ns
        self.scheduler.preprocessed(command.server, self.now_s)

    # -- encode and local prefill share a GPU ------------------------------------------------------

    def _start_encode(self, command: Encode) -> None:
        assert command.start_s == self.now_s, "work starts at the instant that made it possible"
        requests = list(command.requests)
        for request, local in zip(requests, command.local, strict=True):
            self.records.encode_worker[request] = command.worker
            self.records.encode_start_ns[request] = self.now_ns
            self.records.batch[request] = len(requests)
            if not self.mixed:
                self.records.route[request] = 0 if local else 1
        tokens = float(self.requests.media_tokens[requests].mean())
        self.encode[command.worker] = Job(command.requests, tokens, 1.0, self.now_ns, math.inf)
        self.encode_share[command.worker] = command.share_percent
        self._reprice(command.worker)

    def _start_prefill(self, command: Prefill) -> None:
        assert command.start_s == self.now_s, "work starts at the instant that made it possible"
        requests = list(command.requests)
        self.records.prefill_worker[requests] = command.worker
        self.records.prefill_start_ns[requests] = self.now_ns
        tokens = float(self.requests.total_tokens[requests].mean())
        if command.remote:
            end = self.now_ns + round(self.ns(Stage.PREFILL, len(requests), tokens))
            self.at(end, COMPLETION, lambda: self._prefilled(True, command.worker, command.requests))
            for request in requests:
                self.records.route[request] = 1
            return
        self.records.route[requests] = 0
        self.prefill[command.worker] = Job(command.requests, tokens, 1.0, self.now_ns, math.inf)
        self._reprice(command.worker)

    def _reprice(self, worker: int) -> None:
        """Encode or prefill of `worker` started or stopped: what is left of each goes on at the new rate."""
        encode, prefill = self.encode[worker], self.prefill[worker]
        left_share = 100.0
        if encode is not None and not self.scheduler.streams:
            left_share = 100.0 - self.encode_share[worker]
        prefills = prefill is not None and left_share > 0
        for job, stage, share, beside in (
            (encode, Stage.ENCODE, self.encode_share[worker], Beside.PREFILL if prefills else Beside.NONE),
            (prefill, Stage.PREFILL, left_share, Beside.ENCODE if encode else Beside.NONE),
        ):
            if job is None:
                continue
            if job.whole_ns < math.inf:
                job.left -= (self.now_ns - job.since_ns) / job.whole_ns
            job.since_ns = self.now_ns
            if not self.latency.covers(stage, beside):
                beside = Beside.NONE
            job.whole_ns = (
                self.latency.seconds(stage, len(job.requests), job.tokens, share, beside) * 1e9
                if share > 0
                else math.inf
            )
            job.version += 1
            if job.whole_ns < math.inf:
                end = self.now_ns + round(job.left * job.whole_ns)
                self.at(
                    end,
                    COMPLETION,
                    lambda job=job, stage=stage, version=job.version: self._lane_end(
                        worker, stage, job, version
                    ),
                )

    def _lane_end(self, worker: int, stage: Stage, job: Job, version: int) -> None:
        if job.version != version:
            return
        if stage == Stage.ENCODE:
            self.encode[worker] = None
            for request in job.requests:
                self.records.encode_end_ns[request] = self.now_ns
            self.scheduler.encoded(
                worker,
                self.now_s,
                lambda ticket: round(self.ns(Stage.EMBEDDING_TRANSFER, 1, ticket.media_tokens)) / 1e9,
            )
        else:
            self.prefill[worker] = None
            self._prefilled(False, worker, job.requests)
        self._reprice(worker)

    def _prefilled(self, remote: bool, worker: int, requests: tuple[int, ...]) -> None:
        for request in requests:
            last = self.requests.output_tokens[request] == 1
            if last or not self.first_by_decode:
                self._first_token(request)
            if last:
                self._finish(request)
        self.scheduler.prefilled(
            remote,
            worker,
            self.now_s,
            lambda ticket: round(self.ns(Stage.KV_TRANSFER, 1, ticket.tokens)) / 1e9,
        )

    def _first_token(self, request: int) -> None:
        self.records.first_token_ns[request] = self.now_ns

    def _finish(self, request: int) -> None:
        self.records.finish_ns[request] = self.now_ns
        self.records.status[request] = COMPLETED

    # -- decode and mixed workers ------------------------------------------------------------------

    def _admit(self, command: Admit) -> None:
        request = command.request
        column = self.records.prefill_ready_ns if self.mixed else self.records.decode_ready_ns
        column[request] = round(command.ready_s * 1e9)
        if self.mixed:
            self.records.prefill_worker[request] = command.worker
        else:
            self.records.decode_worker[request] = command.worker
        self.batches[command.worker].add(
            Sequence(
                request,
                int(self.requests.total_tokens[request]),
                int(self.requests.output_tokens[request]),
                media_tokens=int(self.requests.media_tokens[request]),
                ready_s=command.ready_s,
                produced=0 if self.mixed else 1,
            )
        )

    def _step(self, worker: int) -> None:
        if self.stepping[worker]:
            return
        batch = self.batches[worker]
        if isinstance(batch, MixedBatch):
            self._iterate(worker, batch)
            return
        for joined in batch.admit(self.now_s):
            self.records.decode_start_ns[joined.request] = self.now_ns
        if batch.admitted:
            self.stepping[worker] = True
            end = self.now_ns + round(self.ns(Stage.DECODE, len(batch.admitted), batch.mean_context))
            self.at(end, COMPLETION, lambda: self._stepped(worker, batch))

    def _stepped(self, worker: int, batch: DecodeBatch) -> None:
        self.stepping[worker] = False
        for sequence in batch.admitted:
            if self.records.first_token_ns[sequence.request] == NEVER:
                self._first_token(sequence.request)
                self.scheduler.answered(sequence.request)
        for ended in batch.stepped():
            self._finish(ended.request)
            self.scheduler.finish(ended.request)

    def _iterate(self, worker: int, batch: MixedBatch) -> None:
        step = batch.plan(self.now_s)
        if not step.decodes and not step.chunks:
            return
        spent = 0.0
        if step.decodes:
            context = sum(s.context for s in step.decodes) / len(step.decodes)
            spent += self.ns(Stage.DECODE, len(step.decodes), context)
        if step.chunks:
            mean = sum(c.stop - c.start for c in step.chunks) / len(step.chunks)
            spent += self.ns(Stage.PREFILL, len(step.chunks), mean)
        for chunk in step.chunks:
            if chunk.first:
                self.records.prefill_start_ns[chunk.sequence.request] = self.now_ns
                if self.deployment.topology == "monolithic" and chunk.sequence.media_tokens:
                    spent += self.ns(Stage.ENCODE, 1, chunk.sequence.media_tokens)
            else:
                size = chunk.stop - chunk.start
                spent += self.ns(Stage.PREFILL, 1, chunk.stop) - self.ns(Stage.PREFILL, 1, chunk.start)
                spent += self.ns(Stage.PREFILL, 1, 0) - self.ns(Stage.PREFILL, 1, size)
        self.stepping[worker] = True

        def ended() -> None:
            self.stepping[worker] = False
            for chunk in step.chunks:
                if chunk.last:
                    request = chunk.sequence.request
                    self._first_token(request)
                    self.scheduler.answered(request)
                    if chunk.sequence.output_tokens > 1:
                        self.records.decode_ready_ns[request] = self.now_ns
                        self.records.decode_start_ns[request] = self.now_ns
                        self.records.decode_worker[request] = worker
            for sequence in batch.stepped(step):
                self._finish(sequence.request)
                self.scheduler.finish(sequence.request)

        self.at(self.now_ns + round(spent), COMPLETION, ended)

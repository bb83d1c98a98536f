"""From what passed between gateway and workers to the records of a trial: the simulator's columns.

Stages' instants are the virtual ones of the work itself; first and last token are when the client
really had them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from has.core.deployment import POOLS, Deployment
from has.core.records import COMPLETED, NEVER, REFUSED, Records, StageLoad
from has.core.requests import Requests
from has.device.base import Span
from has.gateway.port import (
    Admit,
    Command,
    Encode,
    Encoded,
    Event,
    Lost,
    Prefill,
    Prefilled,
    Preprocessed,
    Stepped,
)


@dataclass(slots=True)
class Answer:
    """What the client of one request saw, on the clock of time.monotonic."""

    request: int = -1
    sent_s: float = float("nan")
    first_s: float | None = None
    last_s: float | None = None
    tokens: list[int] = field(default_factory=list)
    refused: bool = False
    error: str = ""


@dataclass(slots=True)
class _Batch:
    start_s: float
    end_s: float
    size: int
    full: bool = False
    order: int = 0


@dataclass(slots=True)
class Work:
    """One batch as a worker ran it, for comparison with a profile: share is encode's, percent of SMs."""

    stage: str
    worker: int
    requests: tuple[int, ...]
    span: Span
    share_percent: float = 100.0
    tokens: float = 0.0


class LiveRecords:
    """Reads the log of a trial. `t0_s` is the instant of arrival 0 on the workers' clock."""

    def __init__(
        self,
        deployment: Deployment,
        requests: Requests,
        answers: list[Answer],
        log: list[tuple[Command | Event, float]],
        t0_s: float,
    ) -> None:
        self.deployment = deployment
        self.records = Records.empty(requests)
        self.works: list[Work] = []
        self._t0_s = t0_s
        self._index = {answer.request: i for i, answer in enumerate(answers) if answer.request >= 0}
        self._batches: dict[str, list[_Batch]] = defaultdict(list)
        self._launched: dict[tuple[str, int], Encode | Prefill] = {}
        self._produced: dict[int, int] = defaultdict(int)
        self._answers(answers)
        for entry, _ in log:
            self._read(entry)
        self.records.stages = self._stages()

    def spans(self) -> dict[str, list[Span]]:
        """Of every batch and step, by what the validity gate calls their stage."""
        spans: dict[str, list[Span]] = defaultdict(list)
        for work in self.works:
            spans["prefill" if work.stage.startswith("prefill") else work.stage].append(work.span)
        return spans

    def _ns(self, instant_s: float) -> int:
        return round((instant_s - self._t0_s) * 1e9)

    def _answers(self, answers: list[Answer]) -> None:
        records = self.records
        for i, answer in enumerate(answers):
            if answer.first_s is not None:
                records.first_token_ns[i] = self._ns(answer.first_s)
            wanted = int(records.requests.output_tokens[i])
            if answer.refused:
                records.status[i] = REFUSED
            elif answer.last_s is not None and not answer.error and len(answer.tokens) == wanted:
                records.status[i] = COMPLETED
                records.finish_ns[i] = self._ns(answer.last_s)

    def _indices(self, requests: tuple[int, ...]) -> list[int]:
        return [self._index[request] for request in requests if request in self._index]

    def _read(self, entry: Command | Event) -> None:
        match entry:
            case Preprocessed() if not entry.error:
                for i in self._indices((entry.request,)):
                    self.records.preprocessed_ns[i] = self._ns(entry.end_s)
                    self._batches["preprocess"].append(_Batch(entry.start_s, entry.end_s, 1, order=i))
            case Encode():
                self._launched["encode", entry.worker] = entry
            case Encoded():
                self._encoded(entry)
            case Prefill():
                self._launched[_prefill(entry.remote), entry.worker] = entry
            case Prefilled():
                self._prefilled(entry)
            case Admit():
                self._admitted(entry)
            case Stepped() if self.deployment.topology == "disaggregated":
                self._decoded(entry)
            case Stepped():
                self._iterated(entry)
            case Lost():
                for stage in ("encode", "prefill_local", "prefill_remote"):
                    if entry.pool == stage or (entry.pool, stage) in (
                        ("encode", "prefill_local"),
                        ("prefill", "prefill_remote"),
                    ):
                        self._launched.pop((stage, entry.worker), None)
            case _:
                pass

    def _encoded(self, event: Encoded) -> None:
        launch = self._launched.pop(("encode", event.worker), None)
        if not isinstance(launch, Encode):
            return
        records, indices = self.records, self._indices(launch.requests)
        # Where media were dealt to several workers, the last of them says when the request is encoded.
        end_ns = np.maximum(records.encode_end_ns[indices], self._ns(event.end_s))
        disaggregated = self.deployment.topology == "disaggregated"
        records.encode_end_ns[indices] = end_ns
        if disaggregated:
            records.prefill_ready_ns[indices] = end_ns
        if not launch.is_fanout:
            records.encode_worker[indices] = event.worker
            records.encode_start_ns[indices] = self._ns(event.start_s)
            records.batch[indices] = len(launch.requests)
            for request, local in zip(launch.requests, launch.local, strict=True) if disaggregated else ():
                for i in self._indices((request,)):
                    records.route[i] = 0 if local else 1
        full = launch.reason == "full"
        self._batches["encode"].append(_Batch(event.start_s, event.end_s, len(launch.requests), full))
        span = Span(event.start_s, event.end_s, event.ratio)
        tokens = self._encoded_tokens(launch) if indices else 0.0
        self.works.append(Work("encode", event.worker, launch.requests, span, launch.share_percent, tokens))

    def _encoded_tokens(self, launch: Encode) -> float:
        """Mean media tokens of a request in the batch; of requests whose media were dealt out, the part."""
        of = self.records.requests
        here = dict(zip(launch.requests, launch.items, strict=True)) if launch.items else {}
        tokens = []
        for request in launch.requests:
            for i in self._indices((request,)):
                first, beyond = here.get(request, (0, of.items[i]))
                tokens.append(of.media_tokens[i] * (beyond - first) / of.items[i])
        return float(np.mean(tokens))

    def _prefilled(self, event: Prefilled) -> None:
        stage = _prefill(event.remote)
        launch = self._launched.pop((stage, event.worker), None)
        if launch is None:
            return
        records, indices = self.records, self._indices(launch.requests)
        records.prefill_worker[indices] = event.worker
        records.prefill_start_ns[indices] = self._ns(event.start_s)
        for i in indices:
            if records.route[i] == NEVER:  # text: routed on arrival
                records.route[i] = 1 if event.remote else 0
                records.prefill_ready_ns[i] = records.requests.arrival_ns[i]
        self._batches[stage].append(_Batch(event.start_s, event.end_s, len(launch.requests)))
        span = Span(event.start_s, event.end_s, event.ratio)
        tokens = float(np.mean(records.requests.total_tokens[indices])) if indices else 0.0
        self.works.append(Work(stage, event.worker, launch.requests, span, tokens=tokens))

    def _admitted(self, command: Admit) -> None:
        disaggregated = self.deployment.topology == "disaggregated"
        ready = self.records.decode_ready_ns if disaggregated else self.records.prefill_ready_ns
        worker = self.records.decode_worker if disaggregated else self.records.prefill_worker
        for i in self._indices((command.request,)):
            ready[i] = self._ns(command.ready_s)
            worker[i] = command.worker

    def _decoded(self, event: Stepped) -> None:
        indices = self._indices(tuple(request for request, _ in event.tokens))
        records = self.records
        for i in indices:
            if records.decode_start_ns[i] == NEVER:
                records.decode_start_ns[i] = self._ns(event.start_s)
            self._produced[i] += 1
        self._batches["decode"].append(_Batch(event.start_s, event.end_s, len(indices)))
        context = np.mean([records.requests.total_tokens[i] + self._produced[i] for i in indices] or [0])
        span = Span(event.start_s, event.end_s, event.ratio)
        requests = tuple(request for request, _ in event.tokens)
        self.works.append(Work("decode", event.worker, requests, span, tokens=float(context)))

    def _iterated(self, event: Stepped) -> None:
        records = self.records
        whole_s = event.end_s - event.start_s
        for stage, share, requests in event.parts:
            indices = self._indices(requests)
            self._batches[stage].append(_Batch(event.start_s, event.start_s + share * whole_s, len(indices)))
            if stage == "prefill":
                for i in indices:
                    if records.prefill_start_ns[i] == NEVER:
                        records.prefill_start_ns[i] = self._ns(event.start_s)
        for request, _ in event.tokens:
            for i in self._indices((request,)):
                if records.decode_start_ns[i] == NEVER and records.requests.output_tokens[i] > 1:
                    records.decode_ready_ns[i] = records.decode_start_ns[i] = self._ns(event.end_s)
                    records.decode_worker[i] = event.worker
        span = Span(event.start_s, event.end_s, event.ratio)
        requests = tuple(request for request, _ in event.tokens)
        self.works.append(Work("mixed", event.worker, requests, span))

    def _stages(self) -> dict[str, StageLoad]:
        deployment = self.deployment
        last = deployment.workers(POOLS[deployment.topology][-1])
        encoders = deployment.workers("encode") if deployment.topology != "monolithic" else last
        stages = {
            "preprocess": self._load("preprocess", deployment.preprocess_servers),
            "encode": self._load("encode", encoders),
        }
        if deployment.topology == "disaggregated":
            local = encoders if deployment.offload_fraction < 1 else 0
            stages["prefill_local"] = self._load("prefill_local", local)
            stages["prefill_remote"] = self._load("prefill_remote", deployment.workers("prefill"))
        else:
            stages["prefill"] = self._load("prefill", last)
        decode = self._load("decode", last)
        decode.steps = len(decode.size)
        decode.step_seqs = int(decode.size.sum())
        decode.repeats = np.ones(decode.steps, np.int64)
        stages["decode"] = decode
        return stages

    def _load(self, stage: str, workers: int) -> StageLoad:
        batches = sorted(self._batches[stage], key=lambda batch: (batch.order, batch.start_s))

        def column(values: list[int]) -> NDArray[np.int64]:
            return np.array(values, np.int64)

        load = StageLoad(
            workers,
            column([self._ns(batch.start_s) for batch in batches]),
            column([self._ns(batch.end_s) for batch in batches]),
            column([batch.size for batch in batches]),
            np.array([batch.full for batch in batches], np.bool_),
        )
        load.busy_ns = int((load.end_ns - load.start_ns).sum())
        return load


def _prefill(remote: bool) -> str:
    return "prefill_remote" if remote else "prefill_local"

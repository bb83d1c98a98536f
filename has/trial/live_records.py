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
    worker: int = 0


@dataclass(slots=True)
class _Launch:
    """A command whose requests have not all ended."""

    command: Encode | Prefill
    left: set[int]


@dataclass(slots=True)
class Work:
    """One batch as a worker ran it, for comparison with a profile: share is encode's, percent of SMs.

    together  requests the worker had meanwhile, in the mean, where it is an engine that batches by itself
    """

    stage: str
    worker: int
    requests: tuple[int, ...]
    span: Span
    share_percent: float = 100.0
    tokens: float = 0.0
    together: float | None = None

    @property
    def batch(self) -> float:
        return len(self.requests) if self.together is None else self.together


class LiveRecords:
    """Reads the log of a trial. `t0_s` is the instant of arrival 0 on the workers' clock.

    On engines each request of a batch ends by itself, and is listed by itself.
    """

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
        self._launched: dict[tuple[str, int], list[_Launch]] = defaultdict(list)
        self._continuous = False
        self._produced: dict[int, int] = defaultdict(int)
        self._answers(answers)
        for entry, _ in log:
            self._read(entry)
        if self._continuous:
            self._count_together()
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
                    batch = _Batch(entry.start_s, entry.end_s, 1, order=i, worker=entry.server)
                    self._batches["preprocess"].append(batch)
            case Encode():
                self._launch("encode", entry)
            case Encoded():
                self._encoded(entry)
            case Prefill():
                self._launch(_prefill(entry.remote), entry)
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

    def _launch(self, stage: str, command: Encode | Prefill) -> None:
        self._launched[stage, command.worker].append(_Launch(command, set(command.requests)))

    def _ended(
        self, stage: str, event: Encoded | Prefilled
    ) -> tuple[Encode | Prefill, tuple[int, ...]] | None:
        """The command whose work `event` ends, and those of its requests that have ended."""
        launched = self._launched[stage, event.worker]
        ended = set(event.requests)
        self._continuous = self._continuous or bool(ended)
        launch = next((one for one in launched if not ended or ended & one.left), None)
        if launch is None:
            return None
        launch.left -= ended or launch.left
        if not launch.left:
            launched.remove(launch)
        return launch.command, event.requests or launch.command.requests

    def _encoded(self, event: Encoded) -> None:
        found = self._ended("encode", event)
        if found is None or not isinstance(found[0], Encode):
            return
        launch, requests = found[0], found[1]
        records, indices = self.records, self._indices(requests)
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
        batch = _Batch(
            event.start_s, event.end_s, len(requests), launch.reason == "full", worker=event.worker
        )
        self._batches["encode"].append(batch)
        span = Span(event.start_s, event.end_s, event.ratio)
        tokens = self._encoded_tokens(launch, requests) if indices else 0.0
        self.works.append(Work("encode", event.worker, requests, span, launch.share_percent, tokens))

    def _encoded_tokens(self, launch: Encode, requests: tuple[int, ...]) -> float:
        """Mean media tokens of `requests` of the batch; of those whose media were dealt out, the part."""
        of = self.records.requests
        here = dict(zip(launch.requests, launch.items, strict=True)) if launch.items else {}
        tokens = []
        for request in requests:
            for i in self._indices((request,)):
                first, beyond = here.get(request, (0, of.items[i]))
                tokens.append(of.media_tokens[i] * (beyond - first) / of.items[i])
        return float(np.mean(tokens))

    def _prefilled(self, event: Prefilled) -> None:
        stage = _prefill(event.remote)
        found = self._ended(stage, event)
        if found is None:
            return
        requests = found[1]
        records, indices = self.records, self._indices(requests)
        records.prefill_worker[indices] = event.worker
        records.prefill_start_ns[indices] = self._ns(event.start_s)
        for i in indices:
            if records.route[i] == NEVER:  # text: routed on arrival
                records.route[i] = 1 if event.remote else 0
                records.prefill_ready_ns[i] = records.requests.arrival_ns[i]
        self._batches[stage].append(_Batch(event.start_s, event.end_s, len(requests), worker=event.worker))
        span = Span(event.start_s, event.end_s, event.ratio)
        tokens = float(np.mean(records.requests.total_tokens[indices])) if indices else 0.0
        self.works.append(Work(stage, event.worker, requests, span, tokens=tokens))

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
        if self._continuous:
            load.together, load.part = _shared([(b.worker, b.start_s, b.end_s) for b in batches])
        within = load.end_ns - load.start_ns
        load.busy_ns = int((within * load.part if len(load.part) else within).sum())
        return load

    def _count_together(self) -> None:
        for stage in ("encode", "prefill_local", "prefill_remote"):
            works = [work for work in self.works if work.stage == stage]
            together, _ = _shared([(work.worker, work.span.start_s, work.span.end_s) for work in works])
            for work, count in zip(works, together, strict=True):
                work.together = float(count)


def _shared(spans: list[tuple[int, float, float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each (worker, start, end): how many that worker had meanwhile, in the mean, and this one's part of its time."""
    together, part = np.ones(len(spans)), np.ones(len(spans))
    for worker in {worker for worker, *_ in spans}:
        mine = [i for i, (other, *_) in enumerate(spans) if other == worker]
        start, end = np.array([spans[i][1:] for i in mine]).T
        edges = np.unique([start, end])
        count = np.searchsorted(np.sort(start), edges, "right") - np.searchsorted(
            np.sort(end), edges, "right"
        )
        lengths = np.diff(edges)
        long = end > start
        for value, of in ((together, count[:-1]), (part, 1 / np.maximum(1, count[:-1]))):
            integral = np.concatenate(([0.0], np.cumsum(of * lengths)))
            over = np.interp(end, edges, integral) - np.interp(start, edges, integral)
            value[mine] = np.divide(over, end - start, out=np.ones(len(mine)), where=long)
    return together, part


def _prefill(remote: bool) -> str:
    return "prefill_remote" if remote else "prefill_local"

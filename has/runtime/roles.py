"""What a worker does in each of its roles. A role owns its threads; the worker's main thread feeds it messages.

    encode   a lane that encodes, and beside it one that prefills locally what it encoded
    prefill  a lane that prefills from embeddings in the channel
    decode   a lane that steps all its sequences (decoding.py)
    mixed    a lane that runs iterations (decoding.py)

A lane computes, copies its result into the channel, waits for the work's end on the (virtual) GPU,
and only then says so: nothing leaves a worker before the instant at which the device would have
had it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from has.device.base import Iteration, Span, Work
from has.device.cpu import VirtualGpu
from has.device.host import precise_sleep
from has.models.media import Grid, MediaInput
from has.models.sampling import Sampling
from has.models.stage_model import ChunkInput, Prefilled, PromptInput, StageModel
from has.runtime.batching import passes
from has.runtime.channel import Channel, Region
from has.runtime.encoder_cache import EncoderCache
from has.runtime.link import Message, WorkerLink
from has.runtime.priority import go_first, go_last

T = TypeVar("T")


@dataclass(slots=True)
class Bench:
    """What every role works with."""

    model: StageModel
    gpu: VirtualGpu
    channel: Channel
    link: WorkerLink

    def run(self, lane: str, compute: Callable[[], T], work: Work | Iteration) -> tuple[T, Span]:
        """Compute on a lane of the GPU; returns at the work's end."""
        return self.gpu.lanes[lane].run(compute, work)

    def meant_s(self, work: Iteration) -> float:
        return self.gpu.meant_s(work)

    def media(self, described: list[dict[str, Any]]) -> list[MediaInput]:
        """The preprocessed items of a request, viewed in the channel."""
        return [
            MediaInput(
                item["kind"],
                {
                    name: self.channel.view(tuple(region), np.float32, shape)
                    for name, shape, region in item["arrays"]
                },
                item["tokens"],
                Grid(*item["grid"]),
            )
            for item in described
        ]

    def tensor(self, region: Region, shape: tuple[int, ...]) -> Tensor:
        """A view of a tensor of the model's type in the channel."""
        kind = self.model.dtype
        n_bytes = kind.itemsize * int(np.prod(shape, dtype=np.int64))
        raw = self.channel.view(region, np.uint8, (n_bytes,))
        return torch.from_numpy(raw).view(kind).view(shape)

    def put(self, region: Region, tensor: Tensor) -> None:
        self.tensor(region, tuple(tensor.shape)).copy_(tensor)

    def embeddings(self, request: Message, kept: Sequence[Tensor] = ()) -> list[Tensor]:
        """Of every medium of `request`, in order: from the channel, or `kept` where they never left."""
        found: list[Tensor] = []
        for media, region in request["embeddings"]:
            if region is None:
                found += kept
                continue
            counts = request["counts"][len(found) : len(found) + media]
            whole = self.tensor(tuple(region), (sum(counts), self.model.width))
            found += torch.split(whole, counts)
        return found

    def prefill(self, chunks: list[ChunkInput]) -> list[Prefilled]:
        """Prefill prompts, or parts of them; results in their order."""
        results: dict[int, Prefilled] = {}
        for places in passes([chunk.stop - chunk.start for chunk in chunks]):
            found = self.model.prefill_chunk([chunks[place] for place in places])
            results.update(zip(places, found, strict=True))
        return [results[place] for place in range(len(chunks))]

    def kv(self, region: Region, tokens: int) -> Tensor:
        layers, two, heads, size = self.model.kv_shape
        return self.tensor(region, (layers, two, heads, tokens, size))


def lane_thread(name: str, body: Callable[[], None], *, background: bool = False) -> threading.Thread:
    """A daemon thread with precise sleeps and no gradients; `background` lets others go first on a busy core."""

    def run() -> None:
        precise_sleep()
        go_last() if background else go_first()
        with torch.inference_mode():
            body()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def end_lane(gpu: VirtualGpu, lane: str, thread: threading.Thread) -> None:
    """Wait until a lane's thread, which was told to end, has ended, cutting short the work it waits for."""
    while thread.is_alive():
        gpu.cancel(lane)
        thread.join(0.01)


class QueuedLane:
    """A lane that takes messages one after the other."""

    def __init__(self, name: str, gpu: VirtualGpu, work: Callable[[Message], None]) -> None:
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._name, self._gpu, self._work = name, gpu, work
        self._ending = False
        self._thread = lane_thread(name, self._loop, background=True)

    def put(self, message: Message) -> None:
        self._inbox.put(message)

    def _loop(self) -> None:
        while (message := self._inbox.get()) is not None and not self._ending:
            self._work(message)

    def stop(self) -> None:
        """End now; what waits is dropped."""
        self._ending = True
        self._inbox.put(None)
        end_lane(self._gpu, self._name, self._thread)


def fail_all(link: WorkerLink, requests: list[Message], error: Exception) -> None:
    for request in requests:
        link.send({"is": "failed", "id": request["id"], "error": f"{type(error).__name__}: {error}"})


def nothing_done() -> Span:
    now = time.monotonic()
    return Span(now, now, 1.0)


class PrefillRole:
    """Prefills batches. Where embeddings come from is the subclass's or the channel's matter."""

    remote = True

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._prefill = QueuedLane("prefill", bench.gpu, self._prefill_batch)

    def handle(self, message: Message) -> None:
        if message["do"] == "prefill":
            self._prefill.put(message)

    def stop(self) -> None:
        self._prefill.stop()

    def embeddings_of(self, request: Message) -> list[Tensor]:
        return self.bench.embeddings(request)

    def done_with(self, request: Message) -> None:
        """The request's prefill is over, one way or the other."""

    def _prefill_batch(self, message: Message) -> None:
        bench, requests = self.bench, message["requests"]

        def compute() -> list[tuple[int, int]]:
            prompts = [
                PromptInput(r["ids"], self.embeddings_of(r), [Grid(*grid) for grid in r["grids"]])
                for r in requests
            ]
            results = bench.prefill([ChunkInput(prompt, 0, len(prompt.ids)) for prompt in prompts])
            return [
                (self._first_token(request, result), result.next_position)
                for request, result in zip(requests, results, strict=True)
            ]

        tokens = sum(len(r["ids"]) for r in requests) / max(1, len(requests))
        work = Work("prefill", len(requests), tokens, 100.0, message["start"])
        try:
            chosen, span = bench.run("prefill", compute, work) if requests else ([], nothing_done())
        except Exception as error:  # the batch is lost, the worker is not
            fail_all(bench.link, requests, error)
            chosen, span = [(-1, 0)] * len(requests), nothing_done()
        for request in requests:
            self.done_with(request)
        bench.link.send(
            {
                "is": "prefilled",
                "remote": self.remote,
                "start": span.start_s,
                "end": span.end_s,
                "ratio": span.ratio,
                "tokens": [token for token, _ in chosen],
                "next": [position for _, position in chosen],
            }
        )

    def _first_token(self, request: Message, result: Prefilled) -> int:
        if request["kv"] is not None:
            self.bench.put(tuple(request["kv"]), result.kv)
        return Sampling(**request["sampling"]).choose(result.logits.numpy(force=True), 0)


class EncodeRole(PrefillRole):
    """Encodes batches, and prefills locally beside it. Embeddings that stay never leave this process."""

    remote = False

    def __init__(self, bench: Bench, settings: Message) -> None:
        super().__init__(bench)
        self._cache = EncoderCache(settings["encoder_cache_bytes"])
        self._kept: dict[int, list[Tensor]] = {}
        self._wanted: set[int] = set()
        self._lock = threading.Lock()
        self._encode = QueuedLane("encode", bench.gpu, self._encode_batch)

    def handle(self, message: Message) -> None:
        match message["do"]:
            case "encode":
                with self._lock:
                    self._wanted.update(request["id"] for request in message["requests"])
                self._encode.put(message)
            case "prefill":
                # Taken now: a client that leaves before the lane comes to it must not fail the others of its batch.
                with self._lock:
                    for request in message["requests"]:
                        request["kept"] = self._kept.get(request["id"], [])
                super().handle(message)
            case "drop":
                self._forget(message["id"])

    def stop(self) -> None:
        self._encode.stop()
        super().stop()

    def embeddings_of(self, request: Message) -> list[Tensor]:
        return self.bench.embeddings(request, request["kept"])

    def done_with(self, request: Message) -> None:
        self._forget(request["id"])

    def _forget(self, request: int) -> None:
        with self._lock:
            self._wanted.discard(request)
            self._kept.pop(request, None)

    def _keep(self, request: int, embeddings: list[Tensor]) -> None:
        with self._lock:
            if request in self._wanted:  # else its client left while it was encoded
                self._kept[request] = embeddings

    def _encode_batch(self, message: Message) -> None:
        bench, requests = self.bench, message["requests"]
        known = {
            item["digest"]: found
            for request in requests
            for item in request["media"]
            if (found := self._cache.get(item["digest"])) is not None
        }
        new = [[item for item in r["media"] if item["digest"] not in known] for r in requests]

        def compute() -> None:
            encoded = bench.model.encode(bench.media([item for items in new for item in items]))
            made = [item["digest"] for items in new for item in items]
            embeddings = known | dict(zip(made, encoded, strict=True))
            for digest in made:
                self._cache.put(digest, embeddings[digest])
            for request in requests:
                mine = [embeddings[item["digest"]] for item in request["media"]]
                if request["out"] is None:
                    self._keep(request["id"], mine)
                else:
                    bench.put(tuple(request["out"]), torch.cat(mine))

        # What is known costs the device nothing; what is not is a batch of as many requests as bring any of it.
        sizes = [sum(item["tokens"] for item in items) for items in new if items]
        work = Work("encode", len(sizes), sum(sizes) / max(1, len(sizes)), message["share"], message["start"])
        span = nothing_done()
        try:
            if sizes:
                span = bench.run("encode", compute, work)[1]
            elif requests:
                compute()
        except Exception as error:  # the batch is lost, the worker is not
            fail_all(bench.link, requests, error)
            span = nothing_done()
        bench.link.send(
            {
                "is": "encoded",
                "start": span.start_s,
                "end": span.end_s,
                "ratio": span.ratio,
                "known": sum(len(r["media"]) for r in requests) - sum(map(len, new)),
            }
        )

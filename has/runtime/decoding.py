"""The roles that hold sequences: decode steps, and iterations that mix prefill and decode."""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from has.device.base import Iteration, Work
from has.models.media import Grid
from has.models.sampling import Sampling
from has.models.slots import DecodeSlots
from has.models.stage_model import ChunkInput, PromptInput
from has.runtime.batching import Chunk, DecodeBatch, MixedBatch, MixedStep, Sequence
from has.runtime.link import Message
from has.runtime.roles import Bench, end_lane, lane_thread

IDLE_S = 0.030
"""A worker idle for longer than this starts from the arrival that wakes it, not from its last step."""


class _Stepping(ABC):
    """The loop of a worker that holds sequences: take what came, step, say what came of it."""

    def __init__(self, bench: Bench, settings: dict[str, Any]) -> None:
        self.bench = bench
        self.eos = bench.model.eos
        self.slots: DecodeSlots = bench.model.slots(settings["slots"], settings["max_tokens"])
        self._free_slots = list(range(settings["slots"] - 1, -1, -1))
        self._slot: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._sampling: dict[int, Sampling] = {}
        self._never_stop: set[int] = set()
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._free_s = float("-inf")

    def start(self, lane: str) -> None:
        self._lane = lane
        self._thread = lane_thread(lane, self._loop)

    def handle(self, message: Message) -> None:
        if message["do"] in ("admit", "drop"):
            self._inbox.put(message)

    def stop(self) -> None:
        self._inbox.put(None)
        end_lane(self.bench.gpu, self._lane, self._thread)

    def _loop(self) -> None:
        while self._receive():
            start_s = self._next_start_s()
            if start_s is None:
                continue
            wait_s = start_s - time.monotonic()
            if wait_s > 0:
                time.sleep(min(wait_s, IDLE_S))
            else:
                self._step(start_s)

    def _receive(self) -> bool:
        """Take in all messages that are there; with nothing to do, wait for one."""
        block = self._next_start_s() is None
        while True:
            try:
                message = self._inbox.get(block)
            except queue.Empty:
                return True
            block = False
            if message is None:
                return False
            if message["do"] == "admit":
                self._sampling[message["id"]] = Sampling(**message["sampling"])
                if message["ignore_eos"]:
                    self._never_stop.add(message["id"])
                self._admit(message)
            else:
                self._drop(message["id"])

    @abstractmethod
    def _next_start_s(self) -> float | None: ...

    @abstractmethod
    def _admit(self, message: Message) -> None: ...

    @abstractmethod
    def _drop(self, request: int) -> None: ...

    @abstractmethod
    def _step(self, start_s: float) -> None: ...

    def _load(self, request: int, kv: Tensor, next_position: int, token: int) -> None:
        slot = self._free_slots.pop()
        self.slots.load(slot, kv, next_position)
        self._slot[request] = slot
        self._last[request] = token

    def _forget(self, request: int) -> None:
        slot = self._slot.pop(request, None)
        if slot is not None:
            self.slots.free(slot)
            self._free_slots.append(slot)
        self._last.pop(request, None)
        self._sampling.pop(request, None)
        self._never_stop.discard(request)

    def _decode(self, sequences: list[Sequence]) -> dict[int, int]:
        """One token each. `produced` still counts the tokens before it."""
        requests = [sequence.request for sequence in sequences]
        logits = self.slots.step([self._slot[r] for r in requests], [self._last[r] for r in requests]).numpy(
            force=True
        )
        return {
            sequence.request: self._sampling[sequence.request].choose(row, sequence.produced)
            for sequence, row in zip(sequences, logits, strict=True)
        }

    def _stops(self, sequence: Sequence, token: int) -> None:
        """End of sequence: nothing is left to produce."""
        if token == self.eos and sequence.request not in self._never_stop:
            sequence.output_tokens = min(sequence.output_tokens, sequence.produced + 1)

    def _fail(self, sequences: list[Sequence], error: Exception) -> None:
        for sequence in sequences:
            self.bench.link.send(
                {"is": "failed", "id": sequence.request, "error": f"{type(error).__name__}: {error}"}
            )
            self._drop(sequence.request)

    def _say(
        self, span: Any, tokens: dict[int, int], ended: list[Sequence], parts: list[Any], loaded: list[int]
    ) -> None:
        self.bench.link.send(
            {
                "is": "stepped",
                "start": span.start_s,
                "end": span.end_s,
                "ratio": span.ratio,
                "tokens": list(tokens.items()),
                "ended": [sequence.request for sequence in ended],
                "parts": parts,
                "loaded": loaded,
            }
        )
        for sequence in ended:
            self._forget(sequence.request)


class DecodeRole(_Stepping):
    """Continuous batching over slots; KV comes from the channel."""

    def __init__(self, bench: Bench, settings: dict[str, Any]) -> None:
        super().__init__(bench, settings)
        self.batch = DecodeBatch(settings["slots"], settings["kv_tokens"])
        self._incoming: dict[int, Message] = {}
        self.start("decode")

    def _next_start_s(self) -> float | None:
        return self.batch.next_start_s(self._free_s)

    def _admit(self, message: Message) -> None:
        self._incoming[message["id"]] = message
        self.batch.add(
            Sequence(
                message["id"],
                message["tokens"],
                message["output"],
                ready_s=message["ready"],
                produced=1,
            )
        )

    def _drop(self, request: int) -> None:
        self.batch.drop(request)
        self._incoming.pop(request, None)
        self._forget(request)

    def _step(self, start_s: float) -> None:
        joined = self.batch.admit(start_s)
        running = list(self.batch.admitted)

        def compute() -> dict[int, int]:
            for sequence in joined:
                message = self._incoming.pop(sequence.request)
                kv = self.bench.kv(tuple(message["kv"]), sequence.tokens)
                self._load(sequence.request, kv, message["next"], message["first"])
            return self._decode(running)

        work = Work("decode", len(running), self.batch.mean_context, 100.0, start_s)
        try:
            tokens, span = self.bench.run("decode", compute, work)
        except Exception as error:  # these sequences are lost, the worker is not
            self._fail(running, error)
            return
        self._free_s = span.end_s
        for sequence in running:
            self._stops(sequence, tokens[sequence.request])
            self._last[sequence.request] = tokens[sequence.request]
        self._say(span, tokens, self.batch.stepped(), [], [s.request for s in joined])


class MixedRole(_Stepping):
    """Iterations: a token for every running sequence, prompt chunks into what is left, and (monolithic) encodes."""

    def __init__(self, bench: Bench, settings: dict[str, Any]) -> None:
        super().__init__(bench, settings)
        self.batch = MixedBatch(settings["slots"], settings["kv_tokens"], settings["budget"])
        self._encodes = settings["encodes"]
        self._messages: dict[int, Message] = {}
        self._prompts: dict[int, PromptInput] = {}
        self._partial: dict[int, Tensor] = {}
        self.start("mixed")

    def _next_start_s(self) -> float | None:
        return self.batch.next_start_s(self._free_s)

    def _admit(self, message: Message) -> None:
        self._messages[message["id"]] = message
        self.batch.add(
            Sequence(
                message["id"],
                len(message["ids"]),
                message["output"],
                media_tokens=sum(message["counts"]),
                ready_s=message["ready"],
            )
        )

    def _drop(self, request: int) -> None:
        self.batch.drop(request)
        self._messages.pop(request, None)
        self._prompts.pop(request, None)
        self._partial.pop(request, None)
        self._forget(request)

    def _prompt(self, request: int) -> PromptInput:
        """The prompt with its embeddings: encoded now, or copied out of the channel."""
        message = self._messages[request]
        if not message["counts"]:
            embeddings: list[Tensor] = []
        elif self._encodes:
            embeddings = self.bench.model.encode(self.bench.media(message["media"]))
        else:
            embeddings = [e.clone() for e in self.bench.embeddings(message)]
        return PromptInput(message["ids"], embeddings, [Grid(*grid) for grid in message["grids"]])

    def _prefill(self, chunks: list[Chunk]) -> dict[int, int]:
        inputs = [
            ChunkInput(
                self._prompts[c.sequence.request],
                c.start,
                c.stop,
                self._partial.pop(c.sequence.request, None),
            )
            for c in chunks
        ]
        tokens = {}
        for chunk, result in zip(chunks, self.bench.prefill(inputs), strict=True):
            request = chunk.sequence.request
            if chunk.last:
                tokens[request] = self._sampling[request].choose(result.logits.numpy(force=True), 0)
                self._load(request, result.kv, result.next_position, tokens[request])
                del self._prompts[request]
            else:
                self._partial[request] = result.kv
        return tokens

    def _step(self, start_s: float) -> None:
        step = self.batch.plan(start_s)
        begun = [chunk.sequence for chunk in step.chunks if chunk.first]
        encoded = [s for s in begun if s.media_tokens and self._encodes]

        def compute() -> dict[int, int]:
            for sequence in begun:
                self._prompts[sequence.request] = self._prompt(sequence.request)
            decoded = self._decode(step.decodes)
            return decoded | self._prefill(step.chunks)

        work = Iteration(
            decode_batch=len(step.decodes),
            decode_tokens=sum(s.context for s in step.decodes) / max(1, len(step.decodes)),
            chunks=tuple((c.start, c.stop - c.start) for c in step.chunks),
            encodes=tuple(s.media_tokens for s in encoded),
            ready_s=start_s,
        )
        try:
            tokens, span = self.bench.run("mixed", compute, work)
        except Exception as error:  # these sequences are lost, the worker is not
            self._fail(step.decodes + [chunk.sequence for chunk in step.chunks], error)
            return
        self._free_s = span.end_s
        for sequence in (*step.decodes, *(c.sequence for c in step.chunks if c.last)):
            self._stops(sequence, tokens[sequence.request])
            self._last[sequence.request] = tokens[sequence.request]
        parts = self._parts(work, step, encoded)
        loaded = [sequence.request for sequence in begun]
        for request in loaded:
            self._messages.pop(request, None)
        self._say(span, tokens, self.batch.stepped(step), parts, loaded)

    def _parts(self, work: Iteration, step: MixedStep, encoded: list[Sequence]) -> list[Any]:
        """Each stage's own part of the iteration: [stage, share of its time, requests]."""
        parts = {
            "encode": (Iteration(encodes=work.encodes), encoded),
            "prefill": (Iteration(chunks=work.chunks), [chunk.sequence for chunk in step.chunks]),
            "decode": (
                Iteration(decode_batch=work.decode_batch, decode_tokens=work.decode_tokens),
                step.decodes,
            ),
        }
        whole_s = self.bench.meant_s(work)
        return [
            [stage, self.bench.meant_s(part) / whole_s, [s.request for s in sequences]]
            for stage, (part, sequences) in parts.items()
            if sequences
        ]

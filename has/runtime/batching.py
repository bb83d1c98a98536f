"""Who takes part in the next step of a decode worker, or the next iteration of a mixed one.

Pure state over handed-in times, so that the rules can be held against the simulator; the worker
around it computes and paces.

    reservation   prompt + media + output tokens of KV, from admission until the sequence ends
    admission     FCFS at step boundaries, at most `max_seqs`, while the KV fits; the head blocks
    context       prompt + media + tokens produced so far: 1 at a sequence's first decode step
    passes        a batch of prompts of uneven length is computed in several forward passes
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

PASS_TOKENS = 32
"""What one more forward pass costs, in tokens of padding: some 8 ms, where a token costs a quarter of one."""


def passes(lengths: list[int]) -> list[list[int]]:
    """The places of `lengths`, grouped into forward passes, longest first.

    A pass pads its prompts to the longest of them. A batch of 32 prompts of 75 to 190 tokens so took 1.9
    times what as many of their mean length take, which is what profile and pacing know. The next
    shorter prompt joins while the padding of its pass stays cheaper than one more pass.
    """
    groups: list[list[int]] = []
    padding = longest = 0
    for place in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padding += longest - lengths[place]
        if not groups or padding > PASS_TOKENS:
            groups.append([])
            padding, longest = 0, lengths[place]
        groups[-1].append(place)
    return groups


@dataclass(slots=True, eq=False)
class Sequence:
    """One request on its worker. `left` counts the tokens still to come, `done` prefilled tokens."""

    request: int
    tokens: int
    output_tokens: int
    media_tokens: int = 0
    ready_s: float = 0.0
    produced: int = 0
    done: int = 0

    @property
    def reserves(self) -> int:
        return self.tokens + self.output_tokens

    @property
    def left(self) -> int:
        return self.output_tokens - self.produced

    @property
    def context(self) -> int:
        return self.tokens + self.produced


class _Admitting:
    """The queue before a worker and its KV book."""

    def __init__(self, max_seqs: int, kv_tokens: int | None) -> None:
        self.max_seqs = max_seqs
        self.kv_tokens = kv_tokens
        self.waiting: deque[Sequence] = deque()
        self.admitted: list[Sequence] = []
        self.reserved = 0

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def _head(self, at_s: float) -> Sequence | None:
        """Admit the head if it is ready at `at_s` and fits."""
        if not self.waiting or len(self.admitted) >= self.max_seqs:
            return None
        head = self.waiting[0]
        full = self.kv_tokens is not None and self.reserved + head.reserves > self.kv_tokens
        if full or head.ready_s > at_s:
            return None
        self.waiting.popleft()
        self.admitted.append(head)
        self.reserved += head.reserves
        return head

    def end(self, sequence: Sequence) -> None:
        self.admitted.remove(sequence)
        self.reserved -= sequence.reserves

    def drop(self, request: int) -> Sequence | None:
        """Forget `request`, waiting or admitted."""
        for sequence in self.waiting:
            if sequence.request == request:
                self.waiting.remove(sequence)
                return sequence
        for sequence in self.admitted:
            if sequence.request == request:
                self.end(sequence)
                return sequence
        return None

    def next_start_s(self, free_s: float) -> float | None:
        """When the next step starts on a worker that was last free at `free_s`; None: nothing to do."""
        if self.admitted:
            return free_s
        return max(free_s, self.waiting[0].ready_s) if self.waiting else None


class DecodeBatch(_Admitting):
    """Continuous batching of one decode worker."""

    def admit(self, at_s: float) -> list[Sequence]:
        """The sequences that join the step that starts at `at_s`."""
        joined = []
        while (head := self._head(at_s)) is not None:
            joined.append(head)
        return joined

    @property
    def mean_context(self) -> float:
        return sum(sequence.context for sequence in self.admitted) / len(self.admitted)

    def stepped(self) -> list[Sequence]:
        """Every admitted sequence got a token; those that have all theirs end and are returned."""
        for sequence in self.admitted:
            sequence.produced += 1
        ended = [sequence for sequence in self.admitted if sequence.left <= 0]
        for sequence in ended:
            self.end(sequence)
        return ended


@dataclass(slots=True)
class Chunk:
    """Prompt tokens [start, stop) of one sequence; `last` completes its prefill, `first` begins it."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def first(self) -> bool:
        return self.start == 0

    @property
    def last(self) -> bool:
        return self.stop == self.sequence.tokens


@dataclass(slots=True)
class MixedStep:
    """One iteration: sequences that decode a token, then prompt chunks in order."""

    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)


class MixedBatch(_Admitting):
    """Iterations of a worker that prefills and decodes: decodes first, chunks into what is left of the budget."""

    def __init__(self, max_seqs: int, kv_tokens: int | None, token_budget: int) -> None:
        super().__init__(max_seqs, kv_tokens)
        self.token_budget = token_budget

    def plan(self, at_s: float) -> MixedStep:
        """What the iteration that starts at `at_s` does. Every running sequence decodes one token."""
        step = MixedStep([s for s in self.admitted if s.produced > 0])
        left = self.token_budget - len(step.decodes)
        partial = next((s for s in self.admitted if s.produced == 0), None)
        while left > 0:
            sequence, partial = (partial, None) if partial else (self._head(at_s), None)
            if sequence is None:
                break
            size = min(left, sequence.tokens - sequence.done)
            step.chunks.append(Chunk(sequence, sequence.done, sequence.done + size))
            left -= size
        return step

    def stepped(self, step: MixedStep) -> list[Sequence]:
        """The iteration is over; returns the sequences that ended with it."""
        for sequence in step.decodes:
            sequence.produced += 1
        for chunk in step.chunks:
            chunk.sequence.done = chunk.stop
            if chunk.last:
                chunk.sequence.produced = 1
        ended = [s for s in self.admitted if s.produced > 0 and s.left <= 0]
        for sequence in ended:
            self.end(sequence)
        return ended

"""The queues of a deployment: what waits where, who takes it next. Plain state, time handed in.

Each class is one station on a request's way and follows the numbered rules of the semantics:
preprocessing (2), assignment (3), micro-batching and encode (4, 5), routing (6), remote and local
prefill (7, 8), decode and mixed workers (10, 11). `Scheduler` strings them together.

Instants are seconds. A command's start is the *virtual* instant at which its work could begin: the
latest of the worker's last end, its members becoming ready and, for encode, the batch being due. On
a clock without lag that is always now; on a real one it takes the lag out.

Workers of ours run one batch at a time, which ends as one. Engines batch by themselves (`continuous`):
requests join what runs as long as the same bounds hold for all that is there, and each ends by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from has.gateway.port import Encode, Prefill, Preprocess
from has.policy import DeficitRouter, MicroBatcher

State = Literal["waiting", "preprocess", "encode", "local", "remote", "transfer", "decode", "over"]


@dataclass(slots=True, eq=False)
class Ticket:
    """A request as the scheduler sees it. `state` names the station that holds it.

    items   media it brings
    parts   batches that still encode some of them
    landed_s  when the last embeddings that left their encoder are where prefill finds them
    """

    request: int
    arrival_s: float
    is_media: bool
    media_tokens: int
    prompt_tokens: int
    output_tokens: int
    ready_s: float = 0.0
    state: State = "waiting"
    encode_worker: int = -1
    last_worker: int = -1
    answered: bool = False
    items: int = 1
    parts: int = 0
    landed_s: float = float("-inf")

    @property
    def tokens(self) -> int:
        """What prefill sees."""
        return self.prompt_tokens + self.media_tokens

    @property
    def kv_tokens(self) -> int:
        """What decode reserves."""
        return self.tokens + self.output_tokens


class Dispatch:
    """Rule 3: which of the living workers gets the next request.

    `load` answers how much a worker already has to do (shortest_queue takes the least, lowest index
    first). Random draws come from a generator shared by all of a deployment's dispatches.
    """

    def __init__(
        self, rule: str, workers: int, generator: np.random.Generator, load: Callable[[int], int]
    ) -> None:
        self.rule = rule
        self.alive = [True] * workers
        self._generator = generator
        self._load = load
        self._turn = 0

    def pick(self) -> int | None:
        """The worker, or None while none lives."""
        living = [w for w, alive in enumerate(self.alive) if alive]
        if not living:
            return None
        if self.rule == "random":
            return living[int(self._generator.integers(len(living)))]
        if self.rule == "shortest_queue":
            return min(living, key=lambda w: (self._load(w), w))
        worker = living[self._turn % len(living)]
        self._turn += 1
        return worker


@dataclass(frozen=True, slots=True)
class Caps:
    """What a prefill worker has at once, in tokens and requests; a request that is alone always fits."""

    tokens: int
    requests: int | None

    def allow(self, count: int, tokens: int) -> bool:
        within = tokens <= self.tokens and (self.requests is None or count <= self.requests)
        return count <= 1 or within


def take_batch(queue: deque[Ticket], caps: Caps, beside: Sequence[Ticket] = ()) -> list[Ticket]:
    """Rules 7 and 8: the head, then whole requests while both caps hold with what runs. Never skips, never waits."""
    batch: list[Ticket] = []
    tokens = sum(ticket.tokens for ticket in beside)
    while queue:
        tokens += queue[0].tokens
        if not caps.allow(len(beside) + len(batch) + 1, tokens):
            break
        batch.append(queue.popleft())
    return batch


@dataclass(slots=True)
class Lane:
    """One worker's lane of work: what runs on it, and when it was last free."""

    running: list[Ticket] = field(default_factory=list)
    free_s: float = float("-inf")
    alive: bool = True

    @property
    def idle(self) -> bool:
        return self.alive and not self.running

    @property
    def tokens(self) -> int:
        return sum(ticket.tokens for ticket in self.running)

    def start(self, batch: list[Ticket]) -> float:
        """Occupy the lane with `batch`, beside what runs; returns its virtual start."""
        self.running = [*self.running, *batch]
        return max(self.free_s, *(ticket.ready_s for ticket in batch))

    def those(self, requests: Sequence[int] = ()) -> list[Ticket]:
        """What runs of `requests`, none given: all. Of a request that runs twice, disowned and anew, the older."""
        if not requests:
            return self.running
        first = {ticket.request: ticket for ticket in reversed(self.running)}
        return [first[request] for request in requests if request in first]

    def end(self, now_s: float, requests: Sequence[int] = ()) -> list[Ticket]:
        ended, self.free_s = self.those(requests), now_s
        self.running = [ticket for ticket in self.running if ticket not in ended]
        return ended

    def disown(self, ticket: Ticket) -> None:
        """What runs here of `ticket` is for nothing: it is started over elsewhere."""
        self.running = [replace(one, state="over") if one is ticket else one for one in self.running]

    def lose(self) -> list[Ticket]:
        """The worker is gone: what it ran has to be done again."""
        batch, self.running, self.alive = self.running, [], False
        return batch

    def back(self, now_s: float) -> None:
        self.alive, self.free_s = True, now_s


class PreprocessPool:
    """Rule 2: one FCFS queue, several servers."""

    def __init__(self, servers: int) -> None:
        self.lanes = [Lane() for _ in range(servers)]
        self.queue: deque[Ticket] = deque()

    def start(self) -> list[Preprocess]:
        commands = []
        for index, lane in enumerate(self.lanes):
            if self.queue and lane.idle:
                ticket = self.queue.popleft()
                commands.append(Preprocess(ticket.request, index, lane.start([ticket])))
        return commands


class EncodeWorker:
    """Rules 4 to 6 and 8: a micro-batcher, an encoder, a deficit router and a local prefill lane."""

    def __init__(
        self,
        index: int,
        batcher: MicroBatcher[Ticket],
        router: DeficitRouter | None,
        share_of: Callable[[int], float],
        observe: Callable[[float], float | None] | None,
        *,
        continuous: bool = False,
    ) -> None:
        self.index = index
        self.batcher = batcher
        self.router = router
        self.encoder = Lane()
        self.prefiller = Lane()
        self.waiting: list[Ticket] = []
        self.local_queue: deque[Ticket] = deque()
        self._share_of = share_of
        self._observe = observe
        self._continuous = continuous
        self.media = 0
        self._clock_s = float("-inf")
        self._prefill_barred_until_s = float("-inf")
        self._share = 0.0

    @property
    def load(self) -> int:
        return len(self.batcher) + len(self.encoder.running)

    @property
    def room(self) -> int:
        """Requests it may be sent now: a batch where it is idle; an engine's encoder has B at once, however they came."""
        if self._continuous and self.encoder.alive:
            return self.batcher.batch_bound - len(self.encoder.running)
        return self.batcher.batch_bound if self.encoder.idle else 0

    @property
    def rests(self) -> bool:
        """Whether the encoder has nothing to do, nor anything to wait for."""
        return self.encoder.idle and not len(self.batcher)

    @property
    def share_percent(self) -> float:
        """SMs that encode holds now."""
        return self._share if self.encoder.running else 0.0

    def _advance(self, now_s: float) -> float:
        # Messages of a real system may overtake each other by a little; a batcher's clock may not turn back.
        self._clock_s = max(self._clock_s, now_s)
        return self._clock_s

    def add(self, ticket: Ticket, now_s: float) -> None:
        now_s = self._advance(now_s)
        if self._observe is not None:
            self.batcher.set_rate(self._observe(now_s), now_s=now_s)
        ticket.ready_s = now_s
        self.waiting.append(ticket)
        self.batcher.add(ticket, now_s=now_s)

    def remove(self, ticket: Ticket) -> None:
        """Take `ticket` back if it waits here, in front of either lane."""
        if ticket in self.waiting:
            self.waiting.remove(ticket)
            self.batcher.remove(ticket)
        if ticket in self.local_queue:
            self.local_queue.remove(ticket)

    def due_s(self) -> float | None:
        """When a timer must wake this worker; None while nothing waits or the encoder is busy."""
        return self.batcher.next_due_s(self.room) if self.room > 0 else None

    def start_encode(self, now_s: float) -> Encode | None:
        due_s = self.due_s()
        now_s = self._advance(now_s)
        if due_s is None:
            return None
        batch = self.batcher.take(now_s=now_s, room=self.room)
        if batch is None:
            return None
        for ticket in batch.items:
            self.waiting.remove(ticket)
            ticket.parts = 1
        self.media = sum(ticket.items for ticket in batch.items)
        start_s = min(now_s, max(due_s, self.encoder.start(list(batch.items))))
        self._share = self._share_of(len(batch.items))
        return Encode(
            worker=self.index,
            requests=tuple(ticket.request for ticket in batch.items),
            local=tuple(self.stays(ticket) for ticket in batch.items),
            share_percent=self._share,
            reason=batch.reason,
            start_s=start_s,
        )

    def lend(self, batch: list[Ticket], start_s: float) -> float:
        """Encode media of `batch`, which another worker launches; returns the virtual start. Only when it rests."""
        start_s = max(start_s, self.encoder.start(batch))
        self._share = self._share_of(len(batch))
        return start_s

    def stays(self, ticket: Ticket) -> bool:
        """Rule 6: whether this request's prefill is done here. Steps the router."""
        local = self.router is not None and self.router.route(cost=ticket.tokens) == "local"
        ticket.state = "local" if local else "remote"
        return local

    def encoded(self, now_s: float, requests: Sequence[int] = ()) -> list[Ticket]:
        if self._share >= 100:
            self._prefill_barred_until_s = now_s
        return self.encoder.end(now_s, requests)

    def start_prefill(self, caps: Caps, streams: bool) -> Prefill | None:
        barred = bool(self.encoder.running) and self._share >= 100 and not streams
        free = self.prefiller.alive if self._continuous else self.prefiller.idle
        if not self.local_queue or not free or barred:
            return None
        batch = take_batch(self.local_queue, caps, self.prefiller.running)
        if not batch:
            return None
        start_s = self.prefiller.start(batch)
        if not streams:
            start_s = max(start_s, self._prefill_barred_until_s)
        return Prefill(False, self.index, tuple(ticket.request for ticket in batch), start_s)

    def lose(self, now_s: float) -> list[Ticket]:
        """Everything on or before this worker, to be assigned anew."""
        self._advance(now_s)
        waiting = list(self.waiting)
        for ticket in waiting:
            self.remove(ticket)
        lost = self.encoder.lose() + self.prefiller.lose() + list(self.local_queue) + waiting
        self.local_queue.clear()
        return lost

    def back(self, now_s: float) -> None:
        self.encoder.back(now_s)
        self.prefiller.back(now_s)


class PrefillPool:
    """Rule 7: the remote pool, one FCFS queue."""

    def __init__(self, workers: int, *, continuous: bool = False) -> None:
        self.lanes = [Lane() for _ in range(workers)]
        self.queue: deque[Ticket] = deque()
        self._continuous = continuous

    def start(self, caps: Caps) -> list[Prefill]:
        if self._continuous:
            return self._join(caps)
        commands = []
        for index, lane in enumerate(self.lanes):
            if self.queue and lane.idle:
                commands.append(self._prefill(index, take_batch(self.queue, caps)))
        return commands

    def _join(self, caps: Caps) -> list[Prefill]:
        """One request after the other to the worker that has the fewest tokens, of those where the head fits."""
        commands = []
        while self.queue:
            tokens = self.queue[0].tokens
            fits = [
                (lane.tokens, index)
                for index, lane in enumerate(self.lanes)
                if lane.alive and caps.allow(len(lane.running) + 1, lane.tokens + tokens)
            ]
            if not fits:
                break
            commands.append(self._prefill(min(fits)[1], [self.queue.popleft()]))
        return commands

    def _prefill(self, index: int, batch: list[Ticket]) -> Prefill:
        return Prefill(True, index, tuple(ticket.request for ticket in batch), self.lanes[index].start(batch))


class DecodePool:
    """Rule 10: sequences go to the worker with most free KV, or fewest sequences where KV is unlimited."""

    def __init__(self, workers: int, kv_tokens: int | None) -> None:
        self.kv_tokens = kv_tokens
        self.alive = [True] * workers
        self.held: list[dict[int, Ticket]] = [{} for _ in range(workers)]

    def reserved(self, worker: int) -> int:
        return sum(ticket.kv_tokens for ticket in self.held[worker].values())

    def assign(self, ticket: Ticket) -> int | None:
        living = [w for w, alive in enumerate(self.alive) if alive]
        if not living:
            return None
        if self.kv_tokens is None:
            worker = min(living, key=lambda w: (len(self.held[w]), w))
        else:
            worker = min(living, key=lambda w: (self.reserved(w), w))
        self.held[worker][ticket.request] = ticket
        return worker

    def free(self, ticket: Ticket) -> None:
        if ticket.last_worker >= 0:
            self.held[ticket.last_worker].pop(ticket.request, None)

    def lose(self, worker: int) -> list[Ticket]:
        lost = list(self.held[worker].values())
        self.held[worker].clear()
        self.alive[worker] = False
        return lost

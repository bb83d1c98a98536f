"""Which request is worked on when, where and with what: the live twin of the simulator.

A pure state machine over handed-in times: events in (`arrive`, `preprocessed`, `encoded`, ...),
then `advance(now)` for the commands that follow, and `next_due_s()` for when to come back. It holds
no clock, no I/O and no randomness but the seeded draw of `dispatch: random`, so that the same class
is driven by workers in real time and by a fake clock in tests, where its records must equal the
simulator's.

At one instant hand in all completions, then all arrivals, then advance: starts are then decided in
the order preprocess, encode, local prefill, remote prefill, decode, by worker index. A caller that
cannot know what else happens at an instant simply advances after each event.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, assert_never

import numpy as np

from has.core.deployment import Deployment, SmRow
from has.gateway.fanout import spread
from has.gateway.pools import (
    Caps,
    DecodePool,
    Dispatch,
    EncodeWorker,
    PrefillPool,
    PreprocessPool,
    Ticket,
)
from has.gateway.port import Admit, Command, Encode, PoolName, Refuse
from has.policy import Admission, DeficitRouter, MicroBatcher, SmPartitioner
from has.policy.admission import Load
from has.policy.arguments import not_before_s, time_ns

Pool = Literal["encode", "prefill", "decode"]
"""A pool that requests wait for, whatever the topology calls it: mixed workers decode too."""
SmTable = Literal["streams"] | Iterable[SmRow] | Mapping[int, float]


class Scheduler:
    """All queues and decisions of one deployment.

    media_rate       media requests per second in all, or None: no gap rule until an estimate exists
    observe          called per encode worker to make an online rate estimator: a function of the
                     instant of an arrival that returns the rate now in force (None: rate is known)
    sm_table         the table in force where the deployment leaves it to the profile
    preprocesses     whether media pass the preprocessing servers
    kv_tokens        what one decode or mixed worker can hold, None without bound
    max_queue        requests without a first token beyond which an arrival is refused
    backpressure     also refuse what would wait for KV behind more than the decode pool holds
    continuous       workers are engines that batch by themselves: requests join what runs there, within
                     the bounds of one batch, and each ends by itself; decode brings their first token
    seed             of `dispatch: random`, drawn as the simulator draws
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        media_rate: float | None = None,
        observe: Callable[[], Callable[[float], float | None]] | None = None,
        sm_table: SmTable = "streams",
        preprocesses: bool = True,
        kv_tokens: int | None = None,
        max_queue: int | None = None,
        backpressure: bool = False,
        continuous: bool = False,
        seed: int = 0,
    ) -> None:
        self.deployment = deployment
        self.tickets: dict[int, Ticket] = {}
        self.unanswered = 0
        self.first_tokens_rps = 0.0
        self.released_tps = 0.0
        self._backpressure = backpressure
        self._preprocesses = preprocesses
        self._continuous = continuous
        self._caps = Caps(deployment.prefill_token_budget, deployment.max_prefill_requests)
        # Kept in nanoseconds, like every instant that is computed: a sum of floats might never be reached.
        self._transfers: list[tuple[int, int, Ticket]] = []
        self._sequence = 0
        self._stranded: list[Ticket] = []
        self._arrivals_at_decode: list[Ticket] = []
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed).spawn(3)[2]))
        topology = deployment.topology
        self.preprocess = PreprocessPool(deployment.preprocess_servers)
        n_encode = 0 if topology == "monolithic" else deployment.workers("encode")
        shares = SmPartitioner(deployment.sm_table or sm_table)
        self.streams = shares.streams or topology != "disaggregated"
        encodes_alone = topology != "disaggregated" or deployment.offload_fraction == 1
        routes = topology == "disaggregated"
        self.encoders = [
            EncodeWorker(
                index,
                MicroBatcher(
                    deployment.encode_batch or 1,
                    media_rate / n_encode if media_rate else None,
                    deployment.fill_probability,
                    deployment.max_wait_s,
                ),
                DeficitRouter(deployment.offload_fraction, unit=deployment.offload_unit) if routes else None,
                (lambda batch: 100.0) if encodes_alone else shares.encode_share,
                observe() if observe is not None else None,
                continuous=continuous,
            )
            for index in range(n_encode)
        ]
        self.to_encoder = Dispatch(deployment.dispatch, n_encode, generator, lambda w: self.encoders[w].load)
        self.remote = PrefillPool(
            deployment.workers("prefill") if topology == "disaggregated" else 0, continuous=continuous
        )
        pool = {"disaggregated": "decode", "e_pd": "prefill_decode", "monolithic": "all"}[topology]
        self.decode = DecodePool(deployment.workers(pool), kv_tokens)
        self.admission = Admission(
            max_queue=max_queue, kv_tokens=kv_tokens, decode_workers=deployment.workers(pool)
        )
        self.to_mixed = Dispatch(
            deployment.dispatch, deployment.workers(pool), generator, lambda w: len(self.decode.held[w])
        )

    # -- events ------------------------------------------------------------------------------------

    def arrive(self, ticket: Ticket, now_s: float) -> Refuse | None:
        """A new request. A refusal is final; otherwise it will end by `finish` or `cancel`."""
        decision = self.admission.decide(ticket.kv_tokens, self.load)
        if decision.reason is not None:
            retry_after_s = None if decision.reason == "too_long" else decision.retry_after_s
            return Refuse(ticket.request, decision.reason, retry_after_s)
        self.tickets[ticket.request] = ticket
        self.unanswered += 1
        self._enter(ticket, now_s)
        return None

    @property
    def load(self) -> Load:
        """What the pools announce to admission. `first_tokens_rps` and `released_tps` are the caller's to keep."""
        kv_tokens, workers = self.decode.kv_tokens, len(self.decode.held)
        if kv_tokens is None or not self._backpressure:
            return Load(unanswered=self.unanswered, first_tokens_rps=self.first_tokens_rps)
        held = sum(self.decode.reserved(worker) for worker in range(workers))
        wanted = sum(ticket.kv_tokens for ticket in self.tickets.values())
        return Load(
            unanswered=self.unanswered,
            promised_kv_tokens=max(0, wanted - held),
            free_kv_tokens=max(0, kv_tokens * workers - held),
            first_tokens_rps=self.first_tokens_rps,
            released_tps=self.released_tps,
        )

    def _enter(self, ticket: Ticket, now_s: float) -> None:
        ticket.ready_s = now_s
        if ticket.is_media and self._preprocesses:
            ticket.state = "preprocess"
            self.preprocess.queue.append(ticket)
        else:
            self._assign(ticket, now_s)

    def preprocessed(self, server: int, now_s: float, media_tokens: int | None = None) -> None:
        """A preprocessing server is done; it may know better how many LM tokens the media are."""
        for ticket in self.preprocess.lanes[server].end(now_s):
            if ticket.state == "over":
                continue
            if media_tokens is not None:
                ticket.media_tokens = media_tokens
            self._assign(ticket, now_s)

    def _assign(self, ticket: Ticket, now_s: float) -> None:
        ticket.ready_s = now_s
        topology = self.deployment.topology
        if topology == "monolithic" or (topology == "e_pd" and not ticket.is_media):
            ticket.state = "decode"
            self._arrivals_at_decode.append(ticket)
            return
        worker = self.to_encoder.pick()
        if worker is None:
            ticket.state = "waiting"
            self._stranded.append(ticket)
            return
        ticket.encode_worker = worker
        encoder = self.encoders[worker]
        if ticket.is_media:
            ticket.state = "encode"
            encoder.add(ticket, now_s)
        elif encoder.stays(ticket):
            encoder.local_queue.append(ticket)
        else:
            self.remote.queue.append(ticket)

    def encoded(
        self,
        worker: int,
        now_s: float,
        transfer_s: Callable[[Ticket], float] | None = None,
        requests: Sequence[int] = (),
    ) -> None:
        """A batch was encoded, or `requests` of what runs; embeddings that leave are there `transfer_s` later.

        A request goes on when the last of its parts is there.
        """
        for ticket in self.encoders[worker].encoded(now_s, requests):
            if ticket.state == "over":
                continue
            stays = ticket.state == "local" and ticket.encode_worker == worker
            delay_s = transfer_s(ticket) if transfer_s is not None and not stays else 0.0
            ticket.landed_s = max(ticket.landed_s, now_s + delay_s)
            ticket.parts -= 1
            if ticket.parts:
                continue
            if ticket.state != "local":
                ticket.state = "remote" if self.deployment.topology == "disaggregated" else "decode"
            elif stays and ticket.landed_s <= now_s:
                ticket.ready_s = now_s
                self.encoders[worker].local_queue.append(ticket)
                continue
            self._under_way(ticket, ticket.landed_s)

    def prefilled(
        self,
        remote: bool,
        worker: int,
        now_s: float,
        transfer_s: Callable[[Ticket], float] | None = None,
        requests: Sequence[int] = (),
    ) -> list[Ticket]:
        """A prefill batch is done, or `requests` of what runs: their KV goes to decode.

        Returns those. Workers of ours bring the first token; requests with nothing left to decode are over.
        """
        lane = self.remote.lanes[worker] if remote else self.encoders[worker].prefiller
        batch = lane.end(now_s, requests)
        for ticket in batch:
            if ticket.state == "over":
                continue
            if ticket.output_tokens == 1:
                self._end(ticket)
            else:
                if not self._continuous:  # what an engine prefills gets its first token from decode
                    self.answered(ticket.request)
                ticket.state = "decode"
                self._under_way(ticket, now_s + (transfer_s(ticket) if transfer_s is not None else 0.0))
        return batch

    def answered(self, request: int) -> None:
        """`request` got its first token."""
        ticket = self.tickets.get(request)
        if ticket is not None and not ticket.answered:
            ticket.answered = True
            self.unanswered -= 1

    def finish(self, request: int) -> None:
        """`request` got its last token, and holds nothing on its worker any more."""
        if request in self.tickets:
            self._end(self.tickets[request])

    def cancel(self, request: int) -> None:
        """Forget `request` wherever it is. What already runs with it in a batch runs on without effect."""
        ticket = self.tickets.get(request)
        if ticket is not None:
            self.withdraw(ticket)
            self._end(ticket)

    def withdraw(self, ticket: Ticket) -> None:
        """Take `ticket` out of every queue and out of decode; it stays known until `retry` or `cancel`."""
        queues = [self.preprocess.queue, self.remote.queue, self._arrivals_at_decode, self._stranded]
        if ticket.encode_worker >= 0:
            self.encoders[ticket.encode_worker].remove(ticket)
        for queue in queues:
            if ticket in queue:
                queue.remove(ticket)
        self._recall(ticket)
        self.decode.free(ticket)

    def _recall(self, ticket: Ticket) -> None:
        """Whatever of `ticket` is under way arrives nowhere."""
        self._transfers = [entry for entry in self._transfers if entry[2] is not ticket]
        heapq.heapify(self._transfers)

    def _end(self, ticket: Ticket) -> None:
        self.answered(ticket.request)
        self.decode.free(ticket)
        ticket.state = "over"
        del self.tickets[ticket.request]

    def lost(self, pool: PoolName, worker: int, now_s: float) -> list[Ticket]:
        """A worker is gone. Returns the living requests it held, which stay known until `retry` or `cancel`."""
        match pool:
            case "preprocess":
                held = self.preprocess.lanes[worker].lose()
            case "encode":
                self.to_encoder.alive[worker] = False
                held = self.encoders[worker].lose(now_s)
                held += [ticket for ticket in self._half_encoded_at(worker) if ticket not in held]
            case "prefill":
                held = self.remote.lanes[worker].lose()
            case "decode" | "mixed":
                self.to_mixed.alive[worker] = False
                held = self.decode.lose(worker)
            case _:
                assert_never(pool)
        return [ticket for ticket in held if ticket.state != "over"]

    def _half_encoded_at(self, worker: int) -> list[Ticket]:
        """Requests whose prefill would be done at `worker`, with media that others still encode or send."""
        sent = [ticket for _, _, ticket in self._transfers]
        return [
            ticket
            for ticket in self.tickets.values()
            if ticket.encode_worker == worker and ticket.state == "local" and (ticket.parts or ticket in sent)
        ]

    def back(self, pool: PoolName, worker: int, now_s: float) -> None:
        """A lost worker was replaced; requests that found nobody alive are assigned now."""
        match pool:
            case "preprocess":
                self.preprocess.lanes[worker].back(now_s)
            case "encode":
                self.to_encoder.alive[worker] = True
                self.encoders[worker].back(now_s)
            case "prefill":
                self.remote.lanes[worker].back(now_s)
            case "decode" | "mixed":
                self.to_mixed.alive[worker] = self.decode.alive[worker] = True
            case _:
                assert_never(pool)
        stranded, self._stranded = self._stranded, []
        for ticket in stranded:
            self._assign(ticket, now_s)

    def waiting_for(self, pool: Pool) -> list[Ticket]:
        """Requests that no worker of `pool` has taken: while any lives, those alone that find no room at prefill."""
        queues = {"encode": self._stranded, "prefill": self.remote.queue, "decode": self._arrivals_at_decode}
        return list(queues[pool])

    def retry(self, request: int, now_s: float, *, preprocessed: bool) -> None:
        """Start `request` over, from its preprocessed media where they are still at hand."""
        ticket = self.tickets[request]
        prefillers = [encoder.prefiller for encoder in self.encoders] + self.remote.lanes
        for lane in [encoder.encoder for encoder in self.encoders] + prefillers:
            lane.disown(ticket)
        self._recall(ticket)
        if ticket.answered:  # by a worker; nobody has seen it
            ticket.answered = False
            self.unanswered += 1
        ticket.parts, ticket.landed_s = 0, float("-inf")
        ticket.encode_worker = ticket.last_worker = -1
        if preprocessed:
            self._assign(ticket, now_s)
        else:
            self._enter(ticket, now_s)

    def drain(self, now_s: float) -> None:
        """What waits in a batcher no longer waits for company."""
        for encoder in self.encoders:
            encoder.batcher.drain(now_s=now_s)

    # -- time --------------------------------------------------------------------------------------

    def next_due_s(self) -> float | None:
        """The next instant at which `advance` may have something to do without any event."""
        instants = [due for encoder in self.encoders if (due := encoder.due_s()) is not None]
        if self._transfers:
            instants.append(not_before_s(self._transfers[0][0]))
        return min(instants, default=None)

    def advance(self, now_s: float) -> list[Command]:
        """Everything that starts at `now_s`, in the order of the semantics."""
        self._land_transfers(now_s)
        commands: list[Command] = [*self.preprocess.start()]
        for encoder in self.encoders:
            launch = encoder.start_encode(now_s)
            if launch is not None:
                commands += self._spread(launch)
        for encoder in self.encoders:
            local = encoder.start_prefill(self._caps, self.streams)
            if local is not None:
                commands.append(local)
        commands += self.remote.start(self._caps)
        commands += self._admit()
        return commands

    def _spread(self, launch: Encode) -> list[Encode]:
        most = self.deployment.encode_fanout or 1
        home = self.encoders[launch.worker]
        return [launch] if most == 1 else spread(launch, home, self.encoders, most)

    def _under_way(self, ticket: Ticket, landing_s: float) -> None:
        self._sequence += 1
        heapq.heappush(self._transfers, (time_ns(landing_s), self._sequence, ticket))

    def _land_transfers(self, now_s: float) -> None:
        now_ns = time_ns(now_s)
        while self._transfers and self._transfers[0][0] <= now_ns:
            ready_ns, _, ticket = heapq.heappop(self._transfers)
            ticket.ready_s = ready_ns / 1e9
            if ticket.state == "remote":
                self.remote.queue.append(ticket)
            elif ticket.state == "local":
                self.encoders[ticket.encode_worker].local_queue.append(ticket)
            else:
                self._arrivals_at_decode.append(ticket)

    def _admit(self) -> list[Admit]:
        commands = []
        waiting, self._arrivals_at_decode = self._arrivals_at_decode, []
        for ticket in waiting:
            if self.deployment.topology == "disaggregated":
                worker = self.decode.assign(ticket)
            else:
                worker = self.to_mixed.pick()
                if worker is not None:
                    self.decode.held[worker][ticket.request] = ticket
            if worker is None:
                self._arrivals_at_decode.append(ticket)
                continue
            ticket.last_worker = worker
            commands.append(Admit(worker, ticket.request, ticket.ready_s))
        return commands

"""Whatever dies and whoever leaves, no request is lost and nothing stays reserved."""

from __future__ import annotations

import heapq
import random
from collections import Counter

import pytest

from has.core.deployment import Deployment
from has.gateway.pools import Ticket
from has.gateway.port import Admit, Encode, Prefill, Preprocess
from has.gateway.scheduler import Scheduler

PLANS = {
    "disaggregated": {
        "alloc": {"encode": 2, "prefill": 2, "decode": 2},
        "encode_batch": 3,
        "prefill_offload": 0.4,
    },
    "e_pd": {"alloc": {"encode": 2, "prefill_decode": 2}, "encode_batch": 2},
    "monolithic": {"alloc": {"all": 3}},
    "fanned out": {
        "topology": "disaggregated",
        "alloc": {"encode": 3, "prefill": 1, "decode": 2},
        "encode_batch": 2,
        "prefill_offload": 0.4,
        "encode_fanout": 3,
    },
}
POOLS = {
    "disaggregated": {"preprocess": 2, "encode": 2, "prefill": 2, "decode": 2},
    "e_pd": {"preprocess": 2, "encode": 2, "mixed": 2},
    "monolithic": {"preprocess": 2, "mixed": 3},
    "fanned out": {"preprocess": 2, "encode": 3, "prefill": 1, "decode": 2},
}


class Chaos:
    """Workers that take random times, die at random instants and come back; clients that leave."""

    def __init__(self, name: str, seed: int, continuous: bool = False) -> None:
        self.random = random.Random(seed)
        self.continuous = continuous
        plan = PLANS[name]
        self.deployment = Deployment.model_validate(
            {
                "version": 1,
                "model": "m",
                "topology": name,
                "gpus": sum(plan["alloc"].values()),
                "slo": {"ttft_ms": 1000, "tpot_ms": 50},
                "preprocess_workers": 2,
                **plan,
            }
        )
        self.scheduler = Scheduler(
            self.deployment, media_rate=8.0, kv_tokens=5000, continuous=continuous, seed=seed
        )
        self.pools = POOLS[name]
        self.epoch: Counter = Counter()
        self.down: set = set()
        self.heap: list = []
        self.count = 0
        self.now_s = 0.0
        self.ends: Counter = Counter()
        self.fanned_out = 0

    def later(self, delay_s: float, call) -> None:
        self.count += 1
        heapq.heappush(self.heap, (self.now_s + delay_s, self.count, call))

    def run(self, requests: int, kills: int) -> None:
        for i in range(requests):
            self.later(self.random.uniform(0, 6), lambda i=i: self.arrive(i))
        for _ in range(kills):
            self.later(self.random.uniform(0, 8), self.kill)
        while self.heap or self.scheduler.next_due_s() is not None:
            due_s = self.scheduler.next_due_s()
            if due_s is not None and (not self.heap or due_s <= self.heap[0][0]):
                self.now_s = max(self.now_s, due_s)
            else:
                self.now_s, _, call = heapq.heappop(self.heap)
                call()
            for command in self.scheduler.advance(self.now_s):
                self.start(command)
            waiting = [ticket for ticket in self.scheduler.tickets.values() if not ticket.answered]
            assert self.scheduler.unanswered == len(waiting)

    def arrive(self, i: int) -> None:
        media = self.random.random() < 0.8
        items = self.random.randint(1, 4) if self.deployment.encode_fanout else 1
        tokens = self.random.choice([1, 5, 9])
        ticket = Ticket(i, self.now_s, media, 64 * items * media, 30, tokens, items=items)
        assert self.scheduler.arrive(ticket, self.now_s) is None
        if self.random.random() < 0.15:
            self.later(self.random.uniform(0, 3), lambda: self.leave(i))

    def leave(self, i: int) -> None:
        if i in self.scheduler.tickets:
            self.scheduler.cancel(i)
            self.ends[i] += 1

    def kill(self) -> None:
        pool = self.random.choice(list(self.pools))
        worker = self.random.randrange(self.pools[pool])
        if (pool, worker) in self.down:
            return
        self.epoch[pool, worker] += 1
        self.down.add((pool, worker))
        for ticket in self.scheduler.lost(pool, worker, self.now_s):
            if ticket.answered and self.random.random() < 0.5:  # tokens of it were sent
                self.scheduler.cancel(ticket.request)
                self.ends[ticket.request] += 1
            else:
                self.scheduler.retry(ticket.request, self.now_s, preprocessed=self.random.random() < 0.5)
                assert not ticket.answered
        self.later(self.random.uniform(0.1, 1.5), lambda: self.back(pool, worker))

    def back(self, pool: str, worker: int) -> None:
        self.down.discard((pool, worker))
        self.scheduler.back(pool, worker, self.now_s)

    def start(self, command) -> None:
        match command:
            case Preprocess():
                place, ended = (
                    ("preprocess", command.server),
                    lambda: self.scheduler.preprocessed(command.server, self.now_s),
                )
            case Encode():
                self.fanned_out += command.is_fanout
                place = ("encode", command.worker)
                ended = lambda requests=(): self.encoded(command, requests)  # noqa: E731  # as in the cases around it
                running = self.scheduler.encoders[command.worker].encoder.running
                assert len(running) <= self.deployment.encode_batch
            case Prefill():
                place = ("prefill" if command.remote else "encode", command.worker)
                ended = lambda requests=(): self.prefilled(command, requests)  # noqa: E731  # as in the cases around it
            case Admit():
                place = ("decode" if "decode" in self.pools else "mixed", command.worker)
                ended = lambda: self.finished(command.request)  # noqa: E731  # as in the cases around it
        assert place not in self.down, "work is given to the living"
        epoch = self.epoch[place]
        each = self.continuous and isinstance(command, Encode | Prefill)
        for requests in [((r,),) for r in command.requests] if each else [()]:
            self.later(
                self.random.uniform(0.01, 0.6),
                lambda of=requests: ended(*of) if self.epoch[place] == epoch else None,
            )
        if isinstance(command, Admit) and ("mixed" in place or self.continuous):
            self.later(0.005, lambda: self.scheduler.answered(command.request))

    def encoded(self, command: Encode, requests: tuple[int, ...]) -> None:
        self.scheduler.encoded(command.worker, self.now_s, lambda _: self.random.uniform(0, 0.1), requests)

    def prefilled(self, command: Prefill, requests: tuple[int, ...]) -> None:
        batch = self.scheduler.prefilled(command.remote, command.worker, self.now_s, requests=requests)
        for ticket in batch:
            if ticket.output_tokens == 1 and not self.ends[ticket.request]:
                self.ends[ticket.request] += 1

    def finished(self, request: int) -> None:
        if request in self.scheduler.tickets:
            self.scheduler.finish(request)
            self.ends[request] += 1


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("seed", range(25))
def test_every_request_ends_exactly_once(name: str, seed: int, continuous: bool) -> None:
    chaos = Chaos(name, seed, continuous)
    chaos.run(requests=60, kills=12)
    assert chaos.ends == Counter(range(60))
    assert bool(chaos.fanned_out) == (name == "fanned out")
    scheduler = chaos.scheduler
    assert scheduler.tickets == {}
    assert scheduler.unanswered == 0
    assert sum(map(scheduler.decode.reserved, range(len(scheduler.decode.held)))) == 0
    assert not any(lane.running for lane in (*scheduler.remote.lanes, *scheduler.preprocess.lanes))
    assert not any(
        e.waiting or e.local_queue or len(e.batcher) or e.encoder.running for e in scheduler.encoders
    )


def test_each_router_keeps_the_floor_law() -> None:
    chaos = Chaos("disaggregated", 3)
    chaos.run(requests=80, kills=0)
    for encoder in chaos.scheduler.encoders:
        router = encoder.router
        assert router.remote == router.total * 2 // 5

"""Whatever engines do and whoever leaves, every request ends exactly once and nothing is left running.

Random histories of the gateway over the fake protocol: instances die, come back, answer late, once wrongly or not
to be read; clients leave. An event loop without waits makes seconds of it in no time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from has.core.deployment import Deployment
from has.engine.vllm.language import TEMPLATE_TOKENS, EngineLanguage
from has.engine.vllm.urls import Urls
from has.engine.vllm.workers import EngineWorkers
from has.errors import HasError
from has.gateway.job import Job, MediaBytes
from has.gateway.scheduler import Scheduler
from has.gateway.service import Service
from has.models.tokens import token_rule
from tests.engine.fake_vllm import FakeAnswer, FakeVllm, said, whole
from tests.engine.test_workers import png

PICTURE = MediaBytes("image", png(), "image/png", param="messages.0")
CONTEXT = 512
REQUESTS = 25
UNREADABLE = ("no JSON", "[]", "{}", '{"choices": []}', '{"ec_transfer_params": {"a": 3}}', "data: [1]\n\n")
ALLOC: dict[str, dict[str, tuple[int, ...]]] = {
    "disaggregated": {"encode": (1, 2, 3), "prefill": (1, 2), "decode": (1, 2)},
    "e_pd": {"encode": (1, 2), "prefill_decode": (2,)},
    "monolithic": {"all": (2,)},
}


class NoWaits(asyncio.SelectorEventLoop):
    """Its time is that of the next timer, as soon as nothing else is to be done."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def at_once(timeout: float | None) -> Any:
            assert timeout is not None, "everybody waits, and for nothing"
            self.now_s += max(0.0, timeout)
            return select(0)

        self._selector.select = at_once  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now_s


class Moody(FakeVllm):
    """Late, at times wrong, at times unreadable."""

    def __init__(self, generator: random.Random) -> None:
        super().__init__()
        self.random = generator

    async def _answer(self, host: str, path: str, content: bytes | None) -> FakeAnswer:
        if path == "/health" or host in self.dead:
            return await super()._answer(host, path, content)
        await asyncio.sleep(self.random.choice([0.0, 0.01, 0.1, 0.5]))
        mood = self.random.random()
        if mood < 0.05:
            return said({"error": {"message": "a hiccup"}}, 500)
        if mood < 0.07:
            return said({"error": "unfit"}, 400)
        if mood < 0.10:
            return FakeAnswer(whole(self.random.choice(UNREADABLE).encode()))
        return await super()._answer(host, path, content)


class History:
    def __init__(self, seed: int, loop: NoWaits) -> None:
        self.random = random.Random(seed)
        self.fake = Moody(self.random)
        plan = self.plan()
        alloc, pools = plan.alloc, {"prefill_decode": "mixed", "all": "mixed"}
        urls = {
            pools.get(pool, pool): tuple(f"http://{pools.get(pool, pool)[0]}{i}" for i in range(alloc[pool]))
            for pool in alloc.pools
        }
        if plan.topology == "disaggregated" and plan.offload_fraction < 1:
            urls["local_prefill"] = tuple(f"http://l{i}" for i in range(alloc["encode"]))
        language = EngineLanguage("tiny")
        self.workers = EngineWorkers(
            Urls(**urls),  # type: ignore[arg-type]
            language,
            model="tiny",
            rule=token_rule("qwen2.5-vl"),
            clock=loop.time,
            connections=self.fake,
        )
        self.scheduler = Scheduler(
            plan,
            media_rate=5.0,
            max_queue=self.random.choice([None, 3, 10]),
            backpressure=True,
            continuous=True,
            seed=seed,
        )
        self.service = Service(
            self.scheduler,
            self.workers,
            model="tiny",
            max_model_len=CONTEXT,
            language=language,
            clock=loop.time,
        )

    def plan(self) -> Deployment:
        pick = self.random.choice
        topology = pick(["disaggregated", "disaggregated", "e_pd", "monolithic"])
        alloc = {pool: pick(counts) for pool, counts in ALLOC[topology].items()}
        plan: dict[str, Any] = {"version": 1, "model": "tiny", "topology": topology, "alloc": alloc}
        plan |= {"gpus": sum(alloc.values()), "slo": {"ttft_ms": 2000.0, "tpot_ms": 200.0}}
        plan |= {"dispatch": pick(["round_robin", "random", "shortest_queue"])}
        if topology != "monolithic":
            plan |= {"encode_batch": pick([1, 2, 4]), "max_wait_ms": pick([0.0, 20.0, 400.0])}
        if alloc.get("encode", 0) > 1 and pick([True, False]):
            plan |= {"encode_fanout": 2}
        if topology == "disaggregated":
            plan |= {"prefill_offload": pick([1.0, 0.5])}
            plan |= pick([{}, {"max_num_batched_tokens": 200, "max_prefill_requests": 2}])
        return Deployment.model_validate(plan)

    async def ask(self) -> str:
        pick = self.random.choice
        await asyncio.sleep(self.random.uniform(0, 4))
        images, most = pick([0, 1, 1, 2, 4]), pick([1, 3, 9, None])
        filling = CONTEXT - TEMPLATE_TOKENS - 64 * images - 1  # leaves an answer one token
        prompt = "x" * 4 * pick([1, 10, *([filling] if most is None else [])])
        stays_s = self.random.uniform(0, 2) if self.random.random() < 0.15 else None
        try:
            stream = await self.service.submit(Job(prompt, (PICTURE,) * images, max_tokens=most))
        except HasError as error:
            return type(error).__name__
        try:
            async with asyncio.timeout(stays_s):
                events = [event async for event in stream]
        except HasError as error:
            return type(error).__name__
        except TimeoutError:
            await stream.aclose()
            return "left"
        assert [event.index for event in events] == list(range(1, len(events) + 1))
        assert [event.finish_reason is None for event in events] == [True] * (len(events) - 1) + [False]
        return "answered"

    async def trouble(self) -> None:
        """An instance that dies or says that it is dead, for a while, or one that loses the KV it has promised."""
        await asyncio.sleep(self.random.uniform(0, 6))
        if self.random.random() < 0.3:
            self.fake.forget[self.random.choice(["p0", "l0"])] = self.random.randint(1, 6)
            return
        _, _, url = self.random.choice(self.workers.urls.all())
        ill, host = self.random.choice([self.fake.dead, self.fake.broken]), url.removeprefix("http://")
        ill.add(host)
        await asyncio.sleep(self.random.uniform(0.1, 4))
        ill.discard(host)

    async def run(self) -> Counter[str]:
        """How its requests ended."""
        troubles = [self.trouble() for _ in range(self.random.choice([0, 2, 5]))]
        doings: list[Coroutine[Any, Any, str | None]] = [*(self.ask() for _ in range(REQUESTS)), *troubles]
        async with asyncio.timeout(200):
            done = await asyncio.gather(*doings)
        await asyncio.sleep(5)  # what was lost is found again, what was left is read to its end
        self.nothing_is_left()
        self.service.stop("over")
        await self.workers.aclose()
        return Counter(filter(None, done))

    def nothing_is_left(self) -> None:
        scheduler, workers = self.scheduler, self.workers
        assert not any([self.service._running, scheduler.tickets, scheduler.unanswered, workers._held])
        assert len(workers._tasks) == 1, "the watch alone"
        assert not workers.watch.lost
        lanes = [lane for e in scheduler.encoders for lane in (e.encoder, e.prefiller)]
        lanes += scheduler.remote.lanes + scheduler.preprocess.lanes
        assert all(lane.alive and not lane.running for lane in lanes)
        assert not any(scheduler.decode.held)
        assert not any(e.waiting or len(e.batcher) or e.local_queue for e in scheduler.encoders)
        queues = [scheduler.preprocess.queue, scheduler.remote.queue, scheduler._transfers]
        assert not any([*queues, scheduler._stranded, scheduler._arrivals_at_decode])


async def history(seed: int, loop: NoWaits) -> Counter[str]:
    return await History(seed, loop).run()


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_every_request_ends_once_and_nothing_is_left(first, caplog) -> None:
    caplog.set_level("CRITICAL")  # what cannot be read is logged, and here there is much of it
    ends: Counter[str] = Counter()
    for seed in range(first, first + 10):
        loop = NoWaits()
        try:
            told = loop.run_until_complete(history(seed, loop))
        finally:
            loop.close()
        assert told.total() == REQUESTS
        ends += told
    assert set(ends) - {"Unavailable"} == {"answered", "left", "Refused", "BadRequest", "Interrupted"}
    assert ends["answered"] > 100

"""A pool without a living worker: what waits for it is told in bounded time, unless a replacement comes before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from has.core.deployment import Deployment
from has.gateway.errors import Unavailable
from has.gateway.job import Job
from has.gateway.port import Back, Command, Event, Lost, Payload, PoolName, Prefilled, Stepped
from has.gateway.scheduler import Scheduler
from has.gateway.service import LOOK_S, REPLACED_S, Service
from tests.engine.test_histories import NoWaits

ALLOC = {"monolithic": {"all": 1}, "disaggregated": {"encode": 1, "prefill": 1, "decode": 1}}
TEXT = Job("hello", max_tokens=3)


class Hand:
    """Workers that do nothing; what happens to them is handed in (`has.gateway.port.WorkerPort`)."""

    def listen(self, handle: Callable[[Event], None]) -> None:
        self.handle = handle

    def open(self, request: int, payload: Payload) -> None: ...

    def execute(self, command: Command) -> None: ...

    def retain(self, request: int) -> bool:
        return True

    def close(self, request: int) -> None: ...


def end_of(*events: tuple[float, Event], topology: str = "monolithic") -> tuple[str, float]:
    """(text or error of one request, when it came), where (instant, event) pass."""
    alloc = ALLOC[topology]
    plan: dict[str, Any] = {"version": 1, "model": "m", "topology": topology, "alloc": alloc}
    plan |= {"gpus": sum(alloc.values()), "slo": {"ttft_ms": 1000, "tpot_ms": 50}}
    if topology == "disaggregated":
        plan |= {"encode_batch": 1, "prefill_offload": 1.0}
    loop, port = NoWaits(), Hand()

    async def main() -> tuple[str, float]:
        scheduler = Scheduler(Deployment.model_validate(plan), continuous=True)
        service = Service(scheduler, port, model="m", max_model_len=512, clock=loop.time)
        stream = await service.submit(TEXT)
        for at_s, event in events:
            loop.call_at(at_s, port.handle, event)
        try:
            said = "".join([event.text async for event in stream])
        except Unavailable as error:
            said = error.message
        end_s, not_ready = loop.time(), service.not_ready()
        service.stop("over")
        assert said in ("abc", not_ready), "as a new request is told"
        return said, end_s

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def lost(pool: PoolName = "mixed") -> Lost:
    return Lost(pool, 0, "killed")


def answer(at_s: float) -> tuple[float, Event]:
    """All three tokens at once."""
    tokens = tuple((0, ord(letter) + 16) for letter in "abc")
    return at_s, Stepped(0, at_s, at_s, 1.0, tokens, (0,))


def test_what_waits_for_a_worker_that_does_not_come_back_is_told() -> None:
    said, at_s = end_of((1.0, lost()))
    assert said == "no living worker for decode"
    assert 1.0 + REPLACED_S <= at_s <= 1.0 + REPLACED_S + LOOK_S


def test_a_worker_that_is_replaced_in_time_fails_nobody() -> None:
    back_s = 1.0 + 0.99 * REPLACED_S
    assert end_of((1.0, lost()), (back_s, Back("mixed", 0)), answer(60.0)) == ("abc", 60.0)


def test_every_loss_has_its_own_patience() -> None:
    said, at_s = end_of((1.0, lost()), (2.0, Back("mixed", 0)), (4.0, lost()))
    assert said == "no living worker for decode"
    assert 4.0 + REPLACED_S <= at_s <= 4.0 + REPLACED_S + LOOK_S


@pytest.mark.parametrize(
    ("pools", "names"),
    [(["prefill"], "prefill"), (["encode", "prefill"], "encode and prefill")],
    ids=["at prefill", "before an encoder"],
)
def test_no_pool_keeps_what_waits_for_it(pools: list[PoolName], names: str) -> None:
    said, at_s = end_of(*((1.0, lost(pool)) for pool in pools), topology="disaggregated")
    assert said == f"no living worker for {names}"
    assert 1.0 + REPLACED_S <= at_s <= 1.0 + REPLACED_S + LOOK_S


def test_what_comes_to_wait_later_is_told_too() -> None:
    """Decode is long given up when prefill, which lives, is done."""
    prefilled = Prefilled(True, 0, 0.0, 100.0, 1.0, ((0, -1),))
    said, at_s = end_of((1.0, lost("decode")), (100.0, prefilled), topology="disaggregated")
    assert said == "no living worker for decode"
    assert 100.0 <= at_s <= 100.0 + LOOK_S

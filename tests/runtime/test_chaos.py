"""Workers die at random under load: the short form of benchmarks/runtime/chaos.py, on the shared pool."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator

import psutil
import pytest

from benchmarks.runtime.chaos import TOKENS, ExplicitError, Question, Tally, load, questions
from has.gateway.errors import Interrupted, Unavailable
from has.gateway.job import Job, MediaBytes, MediaRef, Message
from has.runtime.start import open_service
from tests.runtime.live import deployment

pytestmark = pytest.mark.live
MODEL = "tiny-image"


def test_every_request_is_answered_rightly_or_with_an_error(pools) -> None:
    pool, rng, tally = pools(MODEL), random.Random(4), Tally()
    asked = questions(6)
    me = psutil.Process()

    def kill() -> None:
        victim = rng.choice([key for key in pool.pids if key != "zygote"])
        os.kill(pool.pids[victim], signal.SIGKILL)

    async def run() -> None:
        service = await open_service(deployment(MODEL), pool, media_rate=5.0, online=True)
        descriptors = me.num_fds()
        members = set(pool.pids)

        async def ask(question: Question) -> AsyncIterator[str]:
            job = Job(
                (Message("user", (MediaRef(0), question.text)),),
                (MediaBytes("image", question.png),),
                max_tokens=TOKENS,
                ignore_eos=True,
            )
            try:
                async for event in await service.submit(job):
                    yield event.text
            except (Interrupted, Unavailable) as error:
                raise ExplicitError(str(error)) from error

        await load(ask, asked, tally, rate=4.0, seconds=8.0, every_s=1.2, kill=kill)
        try:
            assert await service.drain(30)
            assert service.state().running == service.state().waiting == service.state().kv_tokens_used == 0
            async with asyncio.timeout(30):  # what died last comes back, and gives back what it wrote to
                while pool.arena.used_bytes or not all(
                    worker.alive for one in service.state().pools for worker in one.workers
                ):
                    await asyncio.sleep(0.01)
            assert set(pool.pids) == members
            assert me.num_fds() == descriptors
        finally:
            service.stop("the test is over")
            await pool.rest()

    asyncio.run(run())
    assert len(tally.kills_s) >= 5
    assert tally.outcomes.total() == 32
    assert set(tally.outcomes) <= {"right", "error"}, tally.outcomes
    assert tally.outcomes["right"] >= 16
    # Tokens had been sent; workers failed again and again; or none came back in time, as on a host that stands still.
    told = ("after", "times", "no living worker")
    assert all(any(word in error for word in told) for error in tally.errors), tally.errors

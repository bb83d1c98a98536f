"""Workers that die or hang, clients that leave, media that are none: everyone gets an answer or an error."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable

import psutil
import pytest

import has.runtime.pool as pool_module
from has.errors import RunError
from has.gateway.errors import BadRequest, Interrupted, Refused, Unavailable
from has.gateway.job import Job, MediaBytes
from has.gateway.port import Back, Encode, Lost, Prefill, Preprocess, Stepped
from has.runtime.pool import WarmPool
from has.runtime.start import open_service
from tests.runtime.live import answer, deployment, job, reference, table
from tests.runtime.test_pool import gone

pytestmark = pytest.mark.live
MODEL = "tiny-image"


class Trial:
    """A service on the shared pool, its log, and what to do when something passes for the first time."""

    def __init__(
        self, pool, plan=None, *, when: Callable | None = None, then: Callable | None = None, **options
    ):
        self.pool, self.plan, self.options = pool, plan or deployment(MODEL), options
        self.log: list = []
        self._when, self._then = when, then

    def _tap(self, entry, _: float) -> None:
        self.log.append(entry)
        if self._when is not None and self._when(entry):
            self._when = None
            self._then(entry)

    async def __aenter__(self):
        options = {"media_rate": 50.0, "online": False, **self.options}
        self.service = await open_service(self.plan, self.pool, tap=self._tap, **options)
        return self.service

    async def __aexit__(self, *_) -> None:
        self.service.stop("the test is over")
        await self.pool.rest()

    async def seen(self, kind: type) -> None:
        async with asyncio.timeout(30):
            while not any(isinstance(entry, kind) for entry in self.log):
                await asyncio.sleep(0.01)


async def outcome(service, asked: Job):
    try:
        return await answer(service, asked)
    except (Interrupted, Unavailable) as error:
        return error


def killer(pool, place: str, index: int = 0, number: int = signal.SIGKILL) -> Callable:
    def kill(_) -> None:
        os.kill(pool.pids[pool.member(place, index).key], number)

    return kill


@pytest.mark.parametrize(
    ("place", "when"),
    [
        ("preprocess", lambda entry: isinstance(entry, Preprocess)),
        ("encode", lambda entry: isinstance(entry, Encode)),
        ("encode", lambda entry: isinstance(entry, Prefill) and not entry.remote),
        ("prefill", lambda entry: isinstance(entry, Prefill) and entry.remote),
    ],
)
def test_a_worker_killed_before_the_first_token_is_not_noticed(pools, place: str, when: Callable) -> None:
    pool = pools(MODEL)
    jobs = [job(MODEL, i) for i in range(5)]

    async def run() -> list:
        trial = Trial(pool, when=when, then=killer(pool, place))
        async with trial as service:
            answers = await asyncio.gather(*(answer(service, one) for one in jobs))
            await trial.seen(Back)
            [lost] = [entry for entry in trial.log if isinstance(entry, Lost)]
            assert "SIGKILL" in lost.reason
            assert pool.arena.used_bytes == 0
            return answers

    assert asyncio.run(run()) == [reference(MODEL, one) for one in jobs]


@pytest.mark.parametrize("topology", ["disaggregated", "monolithic"])
def test_a_decode_worker_killed_ends_its_own_requests_with_an_error(pools, topology: str) -> None:
    pool = pools(MODEL)
    jobs = [job(MODEL, i, max_tokens=24) for i in range(6)]
    place = "decode" if topology == "disaggregated" else "mixed"

    async def run() -> list:
        stepped = lambda entry: isinstance(entry, Stepped) and entry.worker == 0  # noqa: E731  # one line, one use
        trial = Trial(pool, deployment(MODEL, topology), when=stepped, then=killer(pool, place))
        async with trial as service:
            results = await asyncio.gather(*(outcome(service, one) for one in jobs))
            await trial.seen(Back)
            results.append(await answer(service, jobs[0]))
            assert service.state().kv_tokens_used == 0
            assert pool.arena.used_bytes == 0
            return results

    *results, after = asyncio.run(run())
    failed = [result for result in results if isinstance(result, Interrupted)]
    assert failed
    assert "after" in str(failed[0])
    for one, result in zip(jobs, results, strict=True):
        assert isinstance(result, Interrupted) or result == reference(MODEL, one)
    assert len(failed) < len(jobs), "the other worker's requests go on"
    assert after == reference(MODEL, jobs[0])


def test_a_worker_that_hangs_is_replaced(pools, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pools(MODEL)
    monkeypatch.setattr(pool_module, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(pool_module, "UNANSWERED_DEFAULT", 40)
    monkeypatch.setattr(pool_module, "UNANSWERED", {"preprocess": 2400})
    jobs = [job(MODEL, i) for i in range(3)]

    async def run() -> list:
        prefill = lambda entry: isinstance(entry, Prefill) and entry.remote  # noqa: E731  # one line, one use
        trial = Trial(pool, when=prefill, then=killer(pool, "prefill", number=signal.SIGSTOP))
        async with trial as service:
            answers = await asyncio.gather(*(answer(service, one) for one in jobs))
            await trial.seen(Back)
            return answers

    assert asyncio.run(run()) == [reference(MODEL, one) for one in jobs]


def test_a_gateway_that_was_held_up_holds_it_against_no_worker(
    pools, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pools(MODEL)
    heartbeat_s, unanswered = 0.05, 40
    monkeypatch.setattr(pool_module, "HEARTBEAT_S", heartbeat_s)
    monkeypatch.setattr(pool_module, "UNANSWERED_DEFAULT", unanswered)
    monkeypatch.setattr(pool_module, "UNANSWERED", {"preprocess": 2400})
    monkeypatch.setattr(pool_module, "HELD_UP_S", heartbeat_s)

    async def run() -> list:
        trial = Trial(pool)
        async with trial as service:
            before = dict(pool.pids)
            await asyncio.sleep(2 * heartbeat_s)  # workers are being asked, and answer
            time.sleep(1.5 * unanswered * heartbeat_s)  # all stands still: the loop, as on a paused machine
            await asyncio.sleep(2 * heartbeat_s)
            assert pool.pids == before
            assert not [entry for entry in trial.log if isinstance(entry, Lost)]
            return await answer(service, job(MODEL, 1))

    assert asyncio.run(run()) == reference(MODEL, job(MODEL, 1))
    assert "this process was held up for" in caplog.text


def test_a_client_that_leaves_frees_everything_it_held(pools) -> None:
    pool = pools(MODEL)

    async def run() -> None:
        trial = Trial(pool)
        async with trial as service:
            streams = [await service.submit(job(MODEL, i, max_tokens=200)) for i in range(4)]
            await streams[0].aclose()  # before anything was done for it
            async for event in streams[1]:
                if event.index == 3:
                    await streams[1].aclose()
            async for _ in streams[2]:
                await streams[2].aclose()
                await streams[2].aclose()
            await streams[3].aclose()
            assert service.state().kv_tokens_used == 0
            assert service.state().running == service.state().waiting == 0
            # What was in a batch when its client left runs on; then its memory comes back too.
            async with asyncio.timeout(20):
                while pool.arena.used_bytes:
                    await asyncio.sleep(0.01)
            assert await answer(service, job(MODEL, 5)) == reference(MODEL, job(MODEL, 5))

    asyncio.run(run())


def test_a_client_that_does_not_read_holds_no_kv(pools) -> None:
    pool = pools(MODEL)

    async def run() -> list[int]:
        async with Trial(pool) as service:
            stream = await service.submit(job(MODEL, 1, max_tokens=30))
            async with asyncio.timeout(30):
                while service.state().running or service.state().waiting:
                    await asyncio.sleep(0.01)
            assert service.state().kv_tokens_used == 0
            assert pool.arena.used_bytes == 0
            return [event.token_id async for event in stream]

    assert asyncio.run(run()) == reference(MODEL, job(MODEL, 1, max_tokens=30))


def test_media_that_are_none_are_the_clients_fault_and_nobody_elses(pools) -> None:
    pool = pools(MODEL)

    async def run() -> list:
        async with Trial(pool) as service:
            bad = Job("What?", (MediaBytes("image", b"no image", param="messages.0"),), max_tokens=4)
            results = await asyncio.gather(
                answer(service, bad), answer(service, job(MODEL, 1)), return_exceptions=True
            )
            assert pool.arena.used_bytes == 0
            return results

    refused, good = asyncio.run(run())
    assert isinstance(refused, BadRequest)
    assert refused.param == "messages.0"
    assert good == reference(MODEL, job(MODEL, 1))


def test_beyond_max_queue_a_request_is_refused_at_once(pools) -> None:
    async def run() -> None:
        async with Trial(pools(MODEL), max_queue=2) as service:
            kept = [await service.submit(job(MODEL, i)) for i in range(2)]
            with pytest.raises(Refused) as refusal:
                await service.submit(job(MODEL, 3))
            assert refusal.value.reason == "queue"
            assert 1 <= refusal.value.retry_after_s <= 60
            for stream in kept:
                assert len([event async for event in stream]) == 10
            assert await answer(service, job(MODEL, 3)) == reference(MODEL, job(MODEL, 3))

    asyncio.run(run())


def test_what_can_never_fit_is_refused_for_good(pools) -> None:
    async def run() -> None:
        async with Trial(pools(MODEL), context=128) as service:
            with pytest.raises(BadRequest, match="context"):
                await service.submit(Job("x" * 200, max_tokens=4))
            with pytest.raises(BadRequest, match="context"):
                await answer(service, job(MODEL, 1, media=2))  # known once the media are decoded
            unbounded = job(MODEL, 1, max_tokens=None)
            events = [event async for event in await service.submit(unbounded)]
            assert events[-1].finish_reason == "length"
            assert events[-1].prompt_tokens + len(events) == 128

    asyncio.run(run())


def test_draining_hurries_what_waits_and_takes_nothing_new(pools) -> None:
    async def run() -> str:
        trial = Trial(pools(MODEL), media_rate=0.001)  # a gap of hours
        async with trial as service:
            task = asyncio.create_task(answer(service, job(MODEL, 1)))
            async with asyncio.timeout(20):
                while not service.state().queues["encode"]:
                    await asyncio.sleep(0.01)
            assert await service.drain(20)
            assert await task == reference(MODEL, job(MODEL, 1))
            with pytest.raises(Unavailable):
                await service.submit(job(MODEL, 2))
            return next(entry.reason for entry in trial.log if isinstance(entry, Encode))

    assert asyncio.run(run()) == "drain"


def test_what_does_not_end_in_time_is_given_up_with_an_error(pools) -> None:
    async def run() -> None:
        async with Trial(pools(MODEL)) as service:
            task = asyncio.create_task(answer(service, job(MODEL, 1, max_tokens=1000)))
            await asyncio.sleep(0)
            assert not await service.drain(0.0)
            with pytest.raises(Unavailable):
                await task

    asyncio.run(run())


def test_when_workers_can_no_longer_be_replaced_everyone_is_told_and_nothing_is_left() -> None:
    me = psutil.Process()
    asyncio.run(asyncio.sleep(0))  # the first loop of a process keeps a descriptor or two
    before = me.num_fds()
    pool = WarmPool(MODEL, 4, nominal=table(MODEL))
    pids = list(pool.pids.values())

    async def run() -> list:
        encode = lambda entry: isinstance(entry, Encode)  # noqa: E731  # one line, one use
        trial = Trial(pool, when=encode, then=lambda _: os.kill(pool.pids["zygote"], signal.SIGKILL))
        async with trial as service:
            results = await asyncio.gather(*(outcome(service, job(MODEL, i)) for i in range(3)))
            assert service.not_ready()
            with pytest.raises(Unavailable):
                await service.submit(job(MODEL, 4))
            return results

    try:
        results = asyncio.run(run())
    finally:
        pool.close()
        pool.close()
    assert all(isinstance(result, Unavailable | Interrupted) for result in results)
    assert gone(pids)
    assert me.num_fds() == before


def test_a_pool_that_is_killed_while_it_loads_says_so_and_leaves_nothing() -> None:
    me = psutil.Process()
    before = {child.pid for child in me.children()}

    def kill_the_loader() -> None:
        while True:
            for child in me.children():
                if child.pid not in before and "has.runtime.zygote" in child.cmdline():
                    child.kill()
                    return
            time.sleep(0.01)

    killing = threading.Thread(target=kill_the_loader, daemon=True)
    killing.start()
    with pytest.raises(RunError, match="SIGKILL, as the kernel does where memory runs out"):
        WarmPool(MODEL, 4, nominal=table(MODEL))
    killing.join(30)
    assert {child.pid for child in me.children()} <= before

"""Serving until told to stop: who waits is let end, who insists is obeyed, and nobody's ear is needed."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import httpx
import pytest

from has.core.deployment import Deployment
from has.gateway import front
from has.gateway.front import Front, serve_deployment, unfailing, url_of
from has.gateway.metrics import Metrics
from has.gateway.port import Preprocess
from has.gateway.scheduler import Scheduler
from has.gateway.server import http_server, listen
from has.gateway.service import Service

PLAN = Deployment.model_validate(
    {
        "version": 1,
        "model": "tiny-image",
        "topology": "monolithic",
        "gpus": 1,
        "alloc": {"all": 1},
        "slo": {"ttft_ms": 1000, "tpot_ms": 50},
    }
)
CHAT = {"model": "tiny-image", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


class Deaf:
    """Workers that never answer (`has.gateway.port.WorkerPort`)."""

    def listen(self, handle: Any) -> None: ...

    def open(self, request: int, payload: Any) -> None: ...

    def execute(self, command: Preprocess) -> None: ...

    def retain(self, request: int) -> bool:
        return True

    def close(self, request: int) -> None: ...


class Serving:
    """A deployment served with workers that never answer, and one chat that therefore never ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, say: Any, drain_s: float) -> None:
        self.servers: list = []
        self.services: list[Service] = []

        def made(*given: Any, **named: Any) -> Any:
            self.servers.append(http_server(*given, **named))
            return self.servers[0]

        monkeypatch.setattr(front, "http_server", made)
        monkeypatch.setattr(front.signal, "signal", lambda *_: None)
        self.sock = listen("127.0.0.1", 0)
        self.front = Front(self.sock, say, drain_s=drain_s, on_ready=lambda _: self.ready.set())

    async def start(self, metrics: Metrics, max_queue: int) -> Service:
        service = Service(
            Scheduler(PLAN, max_queue=max_queue),
            Deaf(),
            model=PLAN.model,
            max_model_len=512,
            observer=metrics,
        )
        self.services.append(service)
        return service

    async def run(self, *, insist: bool) -> httpx.Response | Exception:
        self.ready = asyncio.Event()
        async with asyncio.timeout(60), httpx.AsyncClient(base_url=url_of(self.sock), timeout=60) as client:
            served = asyncio.create_task(serve_deployment(PLAN, self.front, self.start, on="no workers"))
            await self.ready.wait()
            asked = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
            while not self.services[0].scheduler.tickets:
                await asyncio.sleep(0.01)
            self.servers[0].should_exit = True
            if insist:
                await asyncio.sleep(0.2)
                self.servers[0].force_exit = True
            await served
            self.sock.close()
            return (await asyncio.gather(asked, return_exceptions=True))[0]


def test_what_does_not_end_is_told_so_when_the_time_to_drain_is_over(monkeypatch) -> None:
    said: list[str] = []
    answer = asyncio.run(Serving(monkeypatch, said.append, drain_s=0.2).run(insist=False))
    assert isinstance(answer, httpx.Response)
    assert answer.status_code == 503
    assert "no workers serves tiny-image" in said[0]
    assert said[-1].startswith("some requests had not ended")


def test_a_second_word_ends_it_at_once(monkeypatch) -> None:
    said: list[str] = []
    asyncio.run(Serving(monkeypatch, said.append, drain_s=3600.0).run(insist=True))
    assert said[-1].startswith("draining")


def test_it_serves_where_nothing_can_be_said(monkeypatch) -> None:
    def full(_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    answer = asyncio.run(Serving(monkeypatch, unfailing(full), drain_s=0.2).run(insist=False))
    assert isinstance(answer, httpx.Response)
    assert answer.status_code == 503


def test_an_address_of_six_has_brackets() -> None:
    try:
        sock = listen("::1", 0)
    except Exception as error:
        pytest.skip(f"no IPv6 here: {error}")
    with sock:
        assert url_of(sock).startswith("http://[::1]:")

"""A service without workers: a task per job puts its tokens into an asyncio queue, the job's iterator takes them out.

The answer repeats the words of the last message, one token a word, up to `max_tokens`. Its ways to
go wrong are asked for by the first word of the prompt.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import httpx

from has.errors import InputError
from has.gateway.errors import Interrupted, Refused, Unavailable
from has.gateway.http import create_app
from has.gateway.job import Job, TokenEvent
from has.gateway.observer import EncodeWorkerState, Observer, ServiceState
from has.gateway.server import http_server, listen

MODEL = "tiny-image"


class QueueTokens:
    def __init__(self, service: QueueService, job: Job) -> None:
        self._service = service
        self._queue: asyncio.Queue[TokenEvent | Exception | None] = asyncio.Queue()
        self._producer = asyncio.create_task(self._produce(job))

    @property
    def more(self) -> bool:
        waiting = self._queue._queue  # type: ignore[attr-defined]
        return bool(waiting) and isinstance(waiting[0], TokenEvent)

    def __aiter__(self):
        return self

    async def __anext__(self) -> TokenEvent:
        item = await self._queue.get()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            raise item
        return item

    async def aclose(self) -> None:
        if not self._producer.done():
            self._producer.cancel()
            self._service.cancelled.set()

    async def _produce(self, job: Job) -> None:
        words = job.messages[-1].text.split(" ")
        how = words[0]
        if how == "undecodable":
            await self._queue.put(InputError("the image cannot be decoded", field="image"))
            return
        most = 10**6 if how == "endless" or job.ignore_eos else len(words)
        count = min(job.max_tokens or most, most)
        prompt_tokens = len(words) + 64 * len(job.media)
        for i in range(count):
            if how == "breaks" and i == 2:
                await self._queue.put(Interrupted("a decode worker failed"))
                return
            if how == "vanishes" and i == 2:
                await self._queue.put(None)
                return
            if how == "explodes" and i == 2:
                await self._queue.put(ZeroDivisionError("a fault of our own"))
                return
            reason = None if i < count - 1 else "length" if count == job.max_tokens else "stop"
            text = words[i % len(words)] + ("" if reason else " ")
            await self._queue.put(TokenEvent(i, text, i + 1, prompt_tokens, reason))
            await asyncio.sleep(0.001 if how in ("endless", "slow") else 0)
        await self._queue.put(None)


class QueueService:
    model = MODEL
    max_model_len = 8192

    def __init__(self, observer: Observer | None = None) -> None:
        self.observer = observer or Observer()
        self.jobs: list[Job] = []
        self.cancelled = threading.Event()
        self.why_not: str | None = None

    def not_ready(self) -> str | None:
        return self.why_not

    def state(self) -> ServiceState:
        worker = EncodeWorkerState(3, 0.25, 2.5, 40.0, 60.0, 5, 10, -0.5)
        return ServiceState(2, 3, {"encode": 3}, [worker], kv_tokens_used=50, kv_tokens_total=200)

    async def submit(self, job: Job) -> QueueTokens:
        first = job.messages[-1].text.split(" ")[0]
        if first == "refused":
            self.observer.refused("queue")
            raise Refused(2.4, "queue")
        if first == "unavailable":
            raise Unavailable("no decode worker is left")
        self.jobs.append(job)
        return QueueTokens(self, job)


@contextmanager
def serving(app):
    """`app` on a free loopback port, in a thread with its own event loop; yields the base URL."""
    server = http_server(app, drain_s=1)
    sock = listen("127.0.0.1", 0)
    up = threading.Event()
    startup = server.startup

    async def announced(sockets=None):
        await startup(sockets=sockets)
        up.set()

    server.startup = announced
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])), daemon=True)
    thread.start()
    assert up.wait(30)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        sock.close()
        assert not thread.is_alive()


@contextmanager
def serving_queue(**options):
    """A QueueService behind HTTP: (service, client)."""
    service = QueueService()
    with serving(create_app(service, **options)) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield service, client


def chat(text: str, **fields) -> dict:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}

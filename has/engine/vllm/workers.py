"""vLLM instances as the gateway's workers: commands become requests, answers become events.

Every instance is watched: one that refuses connections, or whose engine has died and answers 500 for
ever, is lost as soon as it shows; the service then starts its requests over elsewhere unless tokens
were sent. A single failure of a healthy instance is tried once more on the spot.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

import httpx

from has.engine.vllm.language import EngineLanguage
from has.engine.vllm.media_count import tokens_of
from has.engine.vllm.protocol import (
    PATH,
    Encoded,
    PrefillAnswer,
    decode_body,
    encode_body,
    language_body,
    messages,
    prefill_body,
    read_chunk,
    read_encoded,
    read_prefilled,
)
from has.gateway.port import (
    Admit,
    Back,
    Command,
    Encode,
    Event,
    Failed,
    Lost,
    Payload,
    PoolName,
    Prefill,
    Prefilled,
    Preprocess,
    Preprocessed,
    Stepped,
)
from has.gateway.port import Encoded as EncodedEvent
from has.models.rules import TokenRule

log = logging.getLogger("has.engine.vllm")
HEALTH_S = 1.0
"""Between two looks at an idle instance's health."""
HEALTH_TIMEOUT_S = 5.0
UNHEALTHY = 3
"""Looks in a row that must fail before an instance that still takes connections is given up: it may just be busy."""
KEEPALIVE_S = 2.5
"""vLLM drops idle connections after 5 s; ours are retired before."""
REQUEST_S = 600.0


@dataclass(frozen=True, slots=True)
class Urls:
    """Base URLs of the instances of each role, by index; `span` encode workers share a local prefill instance."""

    encode: tuple[str, ...] = ()
    local_prefill: tuple[str, ...] = ()
    prefill: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()
    span: int = 1

    def all(self) -> list[tuple[PoolName, int, str]]:
        """(pool, worker index, URL). A local prefill instance belongs to the encode worker it serves first."""
        named: list[tuple[PoolName, tuple[str, ...]]] = [
            ("encode", self.encode),
            ("prefill", self.prefill),
            ("decode", self.decode),
            ("mixed", self.mixed),
        ]
        listed = [(pool, i, url) for pool, urls in named for i, url in enumerate(urls)]
        return listed + [("encode", i * self.span, url) for i, url in enumerate(self.local_prefill)]


class _Dead(Exception):
    """The instance is gone."""


class _Refused(Exception):
    """The instance says the request is at fault."""


class _Failure(Exception):
    """The instance lives, and could not do it."""


@dataclass(slots=True)
class _Held:
    payload: Payload
    names: list[str]
    encoded: Encoded | None = None
    kv: Any = None
    attempt: int = 0
    sent: int = 0
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)


class EngineWorkers:
    """Instances at `urls` (`has.gateway.port.WorkerPort`).

    rule            counts an image's tokens before it is sent, None where nobody knows
    encoder_budget  most tokens of one medium that encoders take (`max_num_batched_tokens`); larger are
                    refused by that name
    ec_dir          where embeddings pass as files, if that is on this machine: a request's are removed
                    when it is over
    """

    def __init__(
        self,
        urls: Urls,
        language: EngineLanguage,
        *,
        model: str,
        rule: TokenRule | None = None,
        encoder_budget: int | None = None,
        ec_dir: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.urls = urls
        self._language = language
        self._model = model
        self._rule = rule
        self._budget = encoder_budget
        self._ec_dir = ec_dir
        self._clock = clock
        self._session = uuid.uuid4().hex[:8]
        self._held: dict[int, _Held] = {}
        self.lost: set[tuple[PoolName, int]] = set()
        self._losses: Counter[tuple[PoolName, int]] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._handle: Callable[[Event], None] = lambda _: None
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(REQUEST_S, connect=HEALTH_TIMEOUT_S),
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEPALIVE_S
            ),
            trust_env=False,
            transport=transport,
        )

    # -- the port ----------------------------------------------------------------------------------

    def listen(self, handle: Callable[[Event], None]) -> None:
        self._handle = handle
        for pool, worker, url in self.urls.all():
            self._spawn(self._watch(pool, worker, url))

    def open(self, request: int, payload: Payload) -> None:
        self._held[request] = _Held(payload, self._names(request, 0, len(payload.media)))

    def execute(self, command: Command) -> None:
        match command:
            case Preprocess():
                self._preprocess(command)
            case Encode():
                self._spawn(self._encode(command))
            case Prefill():
                self._spawn(self._prefill(command))
            case Admit():
                self._begin(command.request, self._decode(command))
            case _:
                assert_never(command)

    def retain(self, request: int) -> bool:
        held = self._held[request]
        self._cancel(held)
        self._remove(held)
        held.attempt += 1
        held.names = self._names(request, held.attempt, len(held.payload.media))
        held.encoded = held.kv = None
        return True

    def close(self, request: int) -> None:
        held = self._held.pop(request, None)
        if held is not None:
            self._cancel(held)
            self._remove(held)

    async def aclose(self) -> None:
        """End what runs, and the connections."""
        tasks = [*self._tasks, *(task for held in self._held.values() for task in held.tasks)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()

    # -- commands ----------------------------------------------------------------------------------

    def _preprocess(self, command: Preprocess) -> None:
        """Engines preprocess; here only sizes are read, so that what cannot be encoded is refused before it waits."""
        held = self._held.get(command.request)
        counts = [] if held is None else [tokens_of(medium, self._rule) for medium in held.payload.media]
        error = ""
        for count in counts:
            if count is not None and self._budget is not None and count > self._budget:
                error = f"a medium of {count} tokens is larger than the encoders' max_num_batched_tokens = {self._budget}"
        done = Preprocessed(
            command.request,
            command.server,
            command.start_s,
            self._clock(),
            sum(c or 0 for c in counts),
            error,
        )
        asyncio.get_running_loop().call_soon(self._handle, done)

    async def _encode(self, command: Encode) -> None:
        losses = self._losses["encode", command.worker]
        spans = dict(zip(command.requests, command.items, strict=False))

        async def one(request: int, held: _Held) -> None:
            await self._encode_items(self.urls.encode[command.worker], held, spans.get(request))

        if self.urls.encode:
            await self._each("encode", command.worker, command.requests, one)
        # A batch of a worker that was lost meanwhile is no batch of the one that came back.
        if self._losses["encode", command.worker] == losses:
            self._handle(EncodedEvent(command.worker, command.start_s, self._clock(), 1.0))

    async def _encode_items(self, url: str, held: _Held, span: tuple[int, int] | None) -> None:
        """Have media [first, beyond) of a request encoded; others may be elsewhere at the same time."""
        first, beyond = span or (0, len(held.payload.media))
        media, names = held.payload.media[first:beyond], held.names[first:beyond]
        answer = await self._post(url, encode_body(self._model, media, names), f"{names[0]}-e")
        part = read_encoded(answer, len(media))
        held.encoded = held.encoded or Encoded()
        held.encoded.handles |= part.handles
        held.encoded.grids |= {first + index: grid for index, grid in part.grids.items()}

    async def _prefill(self, command: Prefill) -> None:
        pool: PoolName = "prefill" if command.remote else "encode"
        if command.remote:
            url = self.urls.prefill[command.worker]
        else:
            url = self.urls.local_prefill[command.worker // self.urls.span]
        answers: dict[int, PrefillAnswer] = {}
        losses = self._losses[pool, command.worker]

        async def one(_: int, held: _Held) -> None:
            # With one token to make, prefill's answer is the whole.
            body = prefill_body(self._common(held), held.encoded, transfer=held.payload.output_tokens > 1)
            answer = read_prefilled(await self._post(url, body, self._id(held)))
            held.kv = answer.kv
            answers[id(held)] = answer

        helds = {request: self._held.get(request) for request in command.requests}
        await self._each(pool, command.worker, command.requests, one)
        if self._losses[pool, command.worker] != losses:
            return
        tokens, counted = [], []
        for request, held in helds.items():
            answer = None if held is None else answers.get(id(held))
            last = held is not None and held.payload.output_tokens == 1 and answer is not None
            tokens.append(
                (request, self._language.id_of(answer.text, answer.finish) if last and answer else -1)
            )
            if answer is not None and answer.prompt_tokens is not None:
                counted.append((request, answer.prompt_tokens))
        done = Prefilled(
            command.remote,
            command.worker,
            command.start_s,
            self._clock(),
            1.0,
            tuple(tokens),
            counted=tuple(counted),
        )
        self._handle(done)

    async def _decode(self, command: Admit) -> None:
        mixed = bool(self.urls.mixed)
        pool: PoolName = "mixed" if mixed else "decode"
        url = (self.urls.mixed if mixed else self.urls.decode)[command.worker]
        held = self._held.get(command.request)
        if held is None:
            return
        body = decode_body(self._common(held), held.encoded, held.kv)
        for attempt in (1, 2):
            try:
                await self._stream(command, url, body, held)
            except _Dead as error:
                self._lose(pool, command.worker, str(error))
            except _Refused as error:
                self._handle(Failed(command.request, str(error), unfit=True))
            except _Failure as error:
                if attempt == 1 and command.request in self._held and not held.sent:
                    continue
                self._handle(Failed(command.request, str(error)))
            return

    async def _stream(self, command: Admit, url: str, body: dict[str, Any], held: _Held) -> None:
        request, worker = command.request, command.worker
        since_s = command.ready_s
        ended = False
        try:
            async with self._client.stream(
                "POST", url + PATH, json=body, headers={"x-request-id": self._id(held)}
            ) as response:
                if response.status_code != 200:
                    await response.aread()
                    await self._fault(url, response)
                async for line in response.aiter_lines():
                    chunk = read_chunk(line)
                    if chunk is None:
                        continue
                    if chunk.error:
                        raise _Failure(chunk.error)
                    now_s = self._clock()
                    pieces = max(chunk.tokens, int(chunk.finish is not None))
                    texts = [chunk.text, *[""] * (pieces - 1)][:pieces]
                    ids = tuple(
                        (request, self._language.id_of(text, chunk.finish if i == pieces - 1 else None))
                        for i, text in enumerate(texts)
                    )
                    counted = () if chunk.prompt_tokens is None else ((request, chunk.prompt_tokens),)
                    if not ids and not counted:
                        continue
                    held.sent += pieces
                    ended = ended or chunk.finish is not None
                    self._handle(
                        Stepped(
                            worker,
                            since_s,
                            now_s,
                            1.0,
                            ids,
                            (request,) if chunk.finish else (),
                            counted=counted,
                        )
                    )
                    since_s = now_s
                    if ended:
                        return
        except (httpx.TransportError, OSError) as error:
            await self._ask_whether_it_lives(url, error)
        if not ended and request in self._held:
            raise _Failure("the answer ended before its last token")

    # -- requests ----------------------------------------------------------------------------------

    async def _each(
        self,
        pool: PoolName,
        worker: int,
        requests: tuple[int, ...],
        one: Callable[[int, _Held], Coroutine[Any, Any, None]],
    ) -> None:
        """Do `one` for every request of a batch at the same time; those that fail are told of, each by itself."""

        async def guarded(request: int) -> None:
            held = self._held.get(request)
            if held is None:
                return
            for attempt in (1, 2):
                try:
                    await one(request, held)
                except _Dead as error:
                    self._lose(pool, worker, str(error))
                except _Refused as error:
                    self._handle(Failed(request, str(error), unfit=True))
                except _Failure as error:
                    if attempt == 1:
                        continue
                    self._handle(Failed(request, str(error)))
                return

        tasks = [self._begin(request, guarded(request)) for request in requests]
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)

    async def _post(self, url: str, body: dict[str, Any], name: str) -> dict[str, Any]:
        try:
            response = await self._client.post(url + PATH, json=body, headers={"x-request-id": name})
        except (httpx.TransportError, OSError) as error:
            await self._ask_whether_it_lives(url, error)
            raise _Failure(f"{type(error).__name__}: {error}") from error
        if response.status_code != 200:
            await self._fault(url, response)
        answer = response.json()
        assert isinstance(answer, dict)
        return answer

    async def _fault(self, url: str, response: httpx.Response) -> None:
        said = _message(response)
        if response.status_code in (400, 413, 422):
            raise _Refused(said)
        if not await self._healthy(url):
            raise _Dead(f"its engine has died: {said} at {url}")
        raise _Failure(f"{response.status_code}: {said}")

    async def _ask_whether_it_lives(self, url: str, error: Exception) -> None:
        if not await self._healthy(url):
            raise _Dead(f"{type(error).__name__} at {url}") from error

    async def _healthy(self, url: str) -> bool:
        try:
            return (await self._client.get(url + "/health", timeout=HEALTH_TIMEOUT_S)).status_code == 200
        except httpx.TimeoutException:
            return True  # busy, or on its way out: the watch will tell
        except (httpx.TransportError, OSError):
            return False

    async def _watch(self, pool: PoolName, worker: int, url: str) -> None:
        """Look after one instance: lost when its engine is dead, back when it answers again."""
        silent = 0
        while True:
            await asyncio.sleep(HEALTH_S)
            try:
                status = (await self._client.get(url + "/health", timeout=HEALTH_TIMEOUT_S)).status_code
                reason, silent = ("", 0) if status == 200 else (f"/health answers {status}", UNHEALTHY)
            except httpx.TimeoutException:
                reason, silent = "/health does not answer", silent + 1
            except (httpx.TransportError, OSError) as error:
                reason, silent = type(error).__name__, UNHEALTHY
            lost = (pool, worker) in self.lost
            if reason and silent >= UNHEALTHY and not lost:
                self._lose(pool, worker, f"{reason} at {url}")
            elif not reason and lost:
                self.lost.discard((pool, worker))
                self._handle(Back(pool, worker))

    def _lose(self, pool: PoolName, worker: int, reason: str) -> None:
        if (pool, worker) not in self.lost:
            self.lost.add((pool, worker))
            self._losses[pool, worker] += 1
            self._handle(Lost(pool, worker, reason))

    # -- bookkeeping -------------------------------------------------------------------------------

    def _common(self, held: _Held) -> dict[str, Any]:
        job = held.payload.job
        assert job is not None
        return language_body(self._model, held.payload, messages(job, held.names, held.encoded))

    def _names(self, request: int, attempt: int, items: int) -> list[str]:
        return [f"has-{self._session}-{request}-{attempt}-{item}" for item in range(max(1, items))]

    def _id(self, held: _Held) -> str:
        return held.names[0].rpartition("-")[0]

    def _begin(self, request: int, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """`work` for `request`, ended with it."""
        held = self._held.get(request)
        if held is None:
            work.close()
            return None
        task = self._spawn(work)
        held.tasks.add(task)
        task.add_done_callback(held.tasks.discard)
        return task

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the engine port failed", exc_info=error)

    def _cancel(self, held: _Held) -> None:
        current = asyncio.current_task()
        for task in list(held.tasks):
            if task is not current:
                task.cancel()

    def _remove(self, held: _Held) -> None:
        if self._ec_dir is None or not held.payload.media:
            return
        for name in held.names:
            shutil.rmtree(self._ec_dir / name, ignore_errors=True)


def _message(response: httpx.Response) -> str:
    try:
        error = response.json()
        error = error.get("error", error)
        return str(error.get("message", error))[:500]
    except (ValueError, AttributeError):
        return response.text[:500]

"""vLLM instances as the gateway's workers: commands become requests, answers become events.

An engine batches what it is sent by itself, so every request of a batch is a request of its own: it goes on as
soon as its own answer is there. A worker that is lost is said as soon as that shows; the service then starts its
requests over elsewhere unless tokens were sent. A single failure of a healthy instance is tried once more on
the spot; a second one of what builds on other instances' work (prefill on embeddings, decode on KV) may mean that
they took it with them, and the request is started over, once.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

from has.engine.vllm.client import Dead, EngineClient, Failure, Unfit
from has.engine.vllm.connections import Connections
from has.engine.vllm.language import EngineLanguage
from has.engine.vllm.media_count import tokens_of
from has.engine.vllm.protocol import (
    Chunk,
    Encoded,
    PrefillAnswer,
    decode_body,
    encode_body,
    language_body,
    messages,
    prefill_body,
    read_encoded,
    read_prefilled,
)
from has.engine.vllm.urls import Urls
from has.engine.vllm.watch import Watch
from has.gateway.port import (
    Admit,
    Command,
    Encode,
    Event,
    Failed,
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
Work = Callable[[], Coroutine[Any, Any, Any]]

SWEEP_S = 30.0
"""Between two looks for embeddings of requests that are over. An engine's step ends in much less."""


@dataclass(slots=True)
class _Held:
    """A request: what it is, what engines have said of it so far, and what is being asked for it now."""

    payload: Payload
    names: list[str]
    encoded: Encoded | None = None
    kv: Any = None
    attempt: int = 0
    sent: int = 0
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    @property
    def id(self) -> str:
        return self.names[0].rpartition("-")[0]


class EngineWorkers:
    """Instances at `urls` (`has.gateway.port.WorkerPort`).

    rule            counts an image's tokens before it is sent, None where nobody knows
    encoder_budget  most tokens of one medium that encoders take (`max_num_batched_tokens`); larger are
                    refused by that name
    ec_dir          where embeddings pass as files, if that is on this machine: a request's are removed
                    when it is over, within a minute where its client left before that
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
        connections: Connections | None = None,
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
        self._tasks: set[asyncio.Task[Any]] = set()
        self._handle: Callable[[Event], None] = lambda _: None
        self._client = EngineClient(clock=clock, connections=connections)
        self.watch = Watch(urls, self._client)

    # -- the port ----------------------------------------------------------------------------------

    def listen(self, handle: Callable[[Event], None]) -> None:
        self._handle = handle
        self._spawn(self.watch.keep(handle))
        if self._ec_dir is not None:
            self._spawn(self._sweep(self._ec_dir))

    def open(self, request: int, payload: Payload) -> None:
        self._held[request] = _Held(payload, self._names(request, 0, len(payload.media)))

    def execute(self, command: Command) -> None:
        match command:
            case Preprocess():
                self._preprocess(command)
            case Encode():
                for request in command.requests:
                    self._encode(command, request)
            case Prefill():
                for request in command.requests:
                    self._prefill(command, request)
            case Admit():
                self._decode(command)
            case _:
                assert_never(command)

    def retain(self, request: int) -> bool:
        held = self._held[request]
        self._leave(held)
        held.attempt += 1
        held.names = self._names(request, held.attempt, len(held.payload.media))
        held.encoded = held.kv = None
        return True

    def close(self, request: int) -> None:
        held = self._held.pop(request, None)
        if held is not None:
            self._leave(held)

    async def aclose(self) -> None:
        """End what runs, and the connections."""
        self._handle = lambda _: None
        tasks = list(self._tasks)
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

    def _encode(self, command: Encode, request: int) -> None:
        worker, held = command.worker, self._held[request]
        items = dict(zip(command.requests, command.items, strict=False))
        first, beyond = items.get(request, (0, len(held.payload.media)))

        async def encode() -> None:
            """Have media [first, beyond) of the request encoded; others may be elsewhere at the same time."""
            if not self.urls.encode:
                return  # encode and prefill are one process: it is sent the media themselves
            media, names = held.payload.media[first:beyond], held.names[first:beyond]
            body = encode_body(self._model, media, names)
            part = read_encoded(
                await self._client.post(self.urls.encode[worker], body, f"{names[0]}-e"), len(media)
            )
            held.encoded = held.encoded or Encoded()
            held.encoded.handles |= part.handles
            held.encoded.grids |= {first + index: grid for index, grid in part.grids.items()}

        def ended(_: Any) -> Event:
            return EncodedEvent(
                worker,
                command.start_s,
                self._clock(),
                1.0,
                requests=(request,),
                media=beyond - first,
            )

        self._ask("encode", worker, request, encode, ended)

    def _prefill(self, command: Prefill, request: int) -> None:
        held = self._held[request]
        url = self.urls.prefill_of(command.worker, remote=command.remote)

        async def prefill() -> PrefillAnswer:
            body = prefill_body(self._common(held), held.encoded, transfer=held.payload.output_tokens > 1)
            answer = read_prefilled(await self._client.post(url, body, held.id))
            held.kv = answer.kv
            return answer

        def ended(answer: PrefillAnswer | None) -> Event:
            tokens: tuple[tuple[int, int], ...] = ()
            counted = None
            if answer is not None:
                token, counted = -1, answer.prompt_tokens
                if held.payload.output_tokens == 1:  # prefill's answer is the whole
                    token = self._language.id_of(answer.text, answer.finish)
                tokens = ((request, token),)
            return Prefilled(
                command.remote,
                command.worker,
                command.start_s,
                self._clock(),
                1.0,
                tokens,
                counted=() if counted is None else ((request, counted),),
                requests=(request,),
            )

        self._ask("prefill" if command.remote else "encode", command.worker, request, prefill, ended)

    def _decode(self, command: Admit) -> None:
        pool: PoolName = "mixed" if self.urls.mixed else "decode"
        url = (self.urls.mixed or self.urls.decode)[command.worker]
        held = self._held[command.request]
        body = decode_body(self._common(held), held.encoded, held.kv)

        async def decode() -> None:
            async with aclosing(self._client.stream(url, body, held.id)) as chunks:
                await self._read(command, held, chunks)

        self._ask(pool, command.worker, command.request, decode, None)

    async def _read(self, command: Admit, held: _Held, chunks: AsyncGenerator[Chunk, None]) -> None:
        """Hand on what decode streams; Failure if it ends before its last token."""
        request, since_s = command.request, command.ready_s
        async for chunk in chunks:
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
            now_s = self._clock()
            ended = (request,) if chunk.finish else ()
            self._handle(Stepped(command.worker, since_s, now_s, 1.0, ids, ended, counted=counted))
            since_s = now_s
            if ended:
                # To the end: a connection that is left in the middle is closed, and the engine told to abort.
                async for _ in chunks:
                    pass
                return
        if request in self._held:
            raise Failure("the answer ended before its last token")

    # -- requests ----------------------------------------------------------------------------------

    def _ask(
        self,
        pool: PoolName,
        worker: int,
        request: int,
        work: Work,
        ended: Callable[[Any], Event] | None,
    ) -> None:
        """Do `work` for `request` at `worker`; when it has ended, however it did, the worker is told to have room.

        `ended` makes the event of that from the answer, None where there is none; what failed is said before, by itself.
        """
        held = self._held[request]
        losses = self.watch.losses[pool, worker]
        task = self._spawn(self._guarded(pool, worker, request, held, work))
        held.tasks.add(task)

        def done(_: asyncio.Task[Any]) -> None:
            held.tasks.discard(task)
            # A request of a worker that was lost meanwhile is none of the one that came back.
            if ended is not None and self.watch.losses[pool, worker] == losses:
                failed = task.cancelled() or task.exception() is not None
                self._handle(ended(None if failed else task.result()))

        task.add_done_callback(done)

    async def _guarded(
        self,
        pool: PoolName,
        worker: int,
        request: int,
        held: _Held,
        work: Work,
    ) -> Any:
        builds_on_others = held.encoded is not None or held.kv is not None
        for attempt in (1, 2):
            try:
                return await work()
            except Dead as error:
                self.watch.lose(pool, worker, error.url, str(error))
            except Unfit as error:
                self._handle(Failed(request, str(error), unfit=True))
            except Failure as error:
                if attempt == 1 and not held.sent:
                    continue
                anew = builds_on_others and not held.sent and held.attempt == 0
                self._handle(Failed(request, str(error), anew=anew))
            except Exception as error:
                log.exception("an answer for %s that cannot be read", held.id)
                self._handle(Failed(request, f"an answer that cannot be read: {error!r}"))
            break
        return None

    # -- bookkeeping -------------------------------------------------------------------------------

    def _common(self, held: _Held) -> dict[str, Any]:
        job = held.payload.job
        assert job is not None
        return language_body(self._model, held.payload, messages(job, held.names, held.encoded))

    def _names(self, request: int, attempt: int, items: int) -> list[str]:
        return [f"has-{self._session}-{request}-{attempt}-{item}" for item in range(max(1, items))]

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the engine port failed", exc_info=error)

    def _leave(self, held: _Held) -> None:
        """End what is asked for a request, and remove its embeddings.

        A step that runs is not ended with its request. It may be about to write embeddings, or to read them before
        the first token, and an engine whose files go away under it dies: then they are left to the sweep.
        """
        current = asyncio.current_task()
        running = [task for task in held.tasks if task is not current]
        for task in running:
            task.cancel()
        if self._ec_dir is None or not held.payload.media or (running and not held.sent):
            return
        for name in held.names:
            shutil.rmtree(self._ec_dir / name, ignore_errors=True)

    async def _sweep(self, folder: Path) -> None:
        """Remove what engines wrote for requests that had left, until cancelled: what is nobody's at two looks in a row."""
        before: set[Path] = set()
        while True:
            await asyncio.sleep(SWEEP_S)
            held = {held.id for held in self._held.values()}
            found = folder.glob(f"has-{self._session}-*")
            nobodys = {entry for entry in found if entry.name.rpartition("-")[0] not in held}
            for entry in before & nobodys:  # large files take a while to go, and tokens wait for this loop
                await asyncio.to_thread(shutil.rmtree, entry, ignore_errors=True)
            before = nobodys

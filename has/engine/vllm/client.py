"""Requests to vLLM instances over HTTP, and whose fault it is when one fails: the instance's life, the request's, or neither's."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, NoReturn

from has.engine.vllm.connections import Answer, Broke, Connections, HttpConnections
from has.engine.vllm.protocol import PATH, Chunk, cut_short, read_chunk

HEALTH_TIMEOUT_S = 5.0
KEEPALIVE_S = 2.5
"""vLLM drops idle connections after 5 s; ours are retired before."""
REQUEST_S = 600.0
UNFIT = (400, 413, 422)
"""Statuses by which an instance says that the request is at fault."""


class Dead(Exception):
    """The instance at `url` is gone."""

    def __init__(self, reason: str, url: str) -> None:
        super().__init__(reason)
        self.url = url


class Unfit(Exception):
    """The instance says the request is at fault."""


class Failure(Exception):
    """The instance lives, and could not do it."""


class EngineClient:
    """Connections to all instances of a deployment, kept alive. Each call raises Dead, Unfit or Failure."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        connections: Connections | None = None,
    ) -> None:
        self._clock = clock
        self._heard_s: dict[str, float] = {}
        self._connections = connections or HttpConnections(
            connect_s=HEALTH_TIMEOUT_S, keepalive_s=KEEPALIVE_S
        )

    async def post(self, url: str, body: dict[str, Any], name: str) -> dict[str, Any]:
        """The answer to `body`, which the instance knows as `name`."""
        try:
            async with self._connections.ask(
                url + PATH, _json(body), {"x-request-id": name}, timeout_s=REQUEST_S
            ) as response:
                said = await response.read()
        except Broke as error:
            await self._broke(url, error)
        if response.status != 200:
            await self._refused(url, response.status, said)
        answer = json.loads(said)
        assert isinstance(answer, dict)
        if reason := cut_short(answer):
            raise Failure(reason)
        self._heard_s[url] = self._clock()
        return answer

    async def stream(self, url: str, body: dict[str, Any], name: str) -> AsyncGenerator[Chunk, None]:
        """The chunks of the answer to `body`, as they come."""
        try:
            async with self._connections.ask(
                url + PATH, _json(body), {"x-request-id": name}, timeout_s=REQUEST_S
            ) as response:
                if response.status != 200:
                    await self._refused(url, response.status, await response.read())
                async with aclosing(_lines(response)) as lines:
                    async for line in lines:
                        chunk = read_chunk(line)
                        if chunk is None:
                            continue
                        if chunk.error:
                            raise Failure(chunk.error)
                        self._heard_s[url] = self._clock()
                        yield chunk
        except Broke as error:
            await self._broke(url, error)

    async def look(self, url: str) -> tuple[str, bool]:
        """What is wrong with the instance's health, "" if nothing; and whether that is certain: it may only be busy.

        Raises Broke where it could not even be asked, for want of something on this machine.
        """
        try:
            async with self._connections.ask(url + "/health", timeout_s=HEALTH_TIMEOUT_S) as response:
                await response.read()
        except Broke as error:
            if error.here:
                raise
            return (str(error), True) if error.certain else ("/health does not answer", False)
        return ("" if response.status == 200 else f"/health answers {response.status}"), True

    def silent_s(self, url: str) -> float:
        """Seconds since the instance last did what it was asked to."""
        return self._clock() - self._heard_s.get(url, float("-inf"))

    async def aclose(self) -> None:
        await self._connections.aclose()

    async def _dead(self, url: str) -> bool:
        try:
            wrong, certain = await self.look(url)
        except Broke:
            return False
        return bool(wrong) and certain

    async def _refused(self, url: str, status: int, answer: bytes) -> NoReturn:
        said = _message(answer)
        if status in UNFIT:
            raise Unfit(said)
        if await self._dead(url):
            raise Dead(f"its engine has died: {said}", url)
        raise Failure(f"{status}: {said}")

    async def _broke(self, url: str, error: Broke) -> NoReturn:
        if await self._dead(url):
            raise Dead(str(error), url) from error
        raise Failure(str(error)) from error


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


async def _lines(answer: Answer) -> AsyncGenerator[bytes, None]:
    """The lines of a stream of server-sent events, without what ends them."""
    rest = b""
    async with aclosing(answer.pieces()) as pieces:
        async for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line
    if rest:
        yield rest


def _message(answer: bytes) -> str:
    try:
        error = json.loads(answer)
        error = error.get("error", error)
        return str(error.get("message", error))[:500]
    except (ValueError, AttributeError):
        return answer.decode(errors="replace")[:500]

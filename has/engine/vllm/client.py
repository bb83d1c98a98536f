"""Requests to vLLM instances over HTTP, and whose fault it is when one fails: the instance's life, the request's, or neither's."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, NoReturn

import httpx

from has.engine.vllm.protocol import PATH, Chunk, read_chunk
from has.engine.vllm.transport import AiohttpTransport

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
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._clock = clock
        self._heard_s: dict[str, float] = {}
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(REQUEST_S, connect=HEALTH_TIMEOUT_S),
            trust_env=False,
            transport=transport or AiohttpTransport(keepalive_s=KEEPALIVE_S),
        )

    async def post(self, url: str, body: dict[str, Any], name: str) -> dict[str, Any]:
        """The answer to `body`, which the instance knows as `name`."""
        try:
            response = await self._client.post(url + PATH, json=body, headers={"x-request-id": name})
        except (httpx.TransportError, OSError) as error:
            await self._broke(url, error)
        if response.status_code != 200:
            await self._refused(url, response)
        self._heard_s[url] = self._clock()
        answer = response.json()
        assert isinstance(answer, dict)
        return answer

    async def stream(self, url: str, body: dict[str, Any], name: str) -> AsyncGenerator[Chunk, None]:
        """The chunks of the answer to `body`, as they come."""
        headers = {"x-request-id": name}
        try:
            async with self._client.stream("POST", url + PATH, json=body, headers=headers) as response:
                if response.status_code != 200:
                    await response.aread()
                    await self._refused(url, response)
                async for line in response.aiter_lines():
                    chunk = read_chunk(line)
                    if chunk is None:
                        continue
                    if chunk.error:
                        raise Failure(chunk.error)
                    self._heard_s[url] = self._clock()
                    yield chunk
        except (httpx.TransportError, OSError) as error:
            await self._broke(url, error)

    async def look(self, url: str) -> tuple[str, bool]:
        """What is wrong with the instance's health, "" if nothing; and whether that is certain: it may only be busy."""
        try:
            status = (await self._client.get(url + "/health", timeout=HEALTH_TIMEOUT_S)).status_code
        except httpx.TimeoutException:
            return "/health does not answer", False
        except (httpx.TransportError, OSError) as error:
            return type(error).__name__, True
        return ("" if status == 200 else f"/health answers {status}"), True

    def silent_s(self, url: str) -> float:
        """Seconds since the instance last did what it was asked to."""
        return self._clock() - self._heard_s.get(url, float("-inf"))

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _dead(self, url: str) -> bool:
        wrong, certain = await self.look(url)
        return bool(wrong) and certain

    async def _refused(self, url: str, response: httpx.Response) -> NoReturn:
        said = _message(response)
        if response.status_code in UNFIT:
            raise Unfit(said)
        if await self._dead(url):
            raise Dead(f"its engine has died: {said}", url)
        raise Failure(f"{response.status_code}: {said}")

    async def _broke(self, url: str, error: Exception) -> NoReturn:
        if await self._dead(url):
            raise Dead(type(error).__name__, url) from error
        raise Failure(f"{type(error).__name__}: {error}") from error


def _message(response: httpx.Response) -> str:
    try:
        error = response.json()
        error = error.get("error", error)
        return str(error.get("message", error))[:500]
    except (ValueError, AttributeError):
        return response.text[:500]

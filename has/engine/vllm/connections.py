"""HTTP connections to instances, as far as a gateway needs them.

Three requests to engines are most of what a request costs a gateway, so nothing stands between it and aiohttp,
which writes head and body at once and parses answers in C.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import aiohttp

JSON = {"content-type": "application/json"}
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
"""What this machine has no more of: descriptors, memory, ports."""


class Broke(Exception):
    """No answer, or not all of it.

    certain  not because it took too long
    here     for want of something on this machine: it says nothing of the instance
    """

    def __init__(self, reason: str, *, certain: bool = True, here: bool = False) -> None:
        super().__init__(reason)
        self.certain = certain
        self.here = here


class Answer(Protocol):
    """What an instance says. Reading raises Broke; a connection is kept if the answer was read to its end."""

    status: int

    async def read(self) -> bytes:
        """All of it."""

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """It, as it comes."""


class Connections(Protocol):
    """Ways to instances."""

    def ask(
        self,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float,
    ) -> AbstractAsyncContextManager[Answer]:
        """The answer to a POST of JSON `body`, to a GET without one. Raises Broke, also when nothing comes for `timeout_s`."""

    async def aclose(self) -> None:
        """End all."""


class HttpConnections:
    """As many connections as there are requests, kept for `keepalive_s` when idle. No proxy, no cookies, no redirects."""

    def __init__(self, *, connect_s: float, keepalive_s: float) -> None:
        self._connect_s = connect_s
        self._keepalive_s = keepalive_s
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def ask(
        self,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float,
    ) -> AsyncIterator[Answer]:
        timeout = aiohttp.ClientTimeout(total=None, connect=self._connect_s, sock_read=timeout_s)
        method, sent = ("GET", {}) if body is None else ("POST", JSON)
        if headers is not None:
            sent = {**sent, **headers}
        try:
            async with asyncio.timeout(timeout_s):  # aiohttp's own begins when all of the body is taken
                response = await self._open().request(
                    method, url, data=body, headers=sent, allow_redirects=False, timeout=timeout
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _broke(error) from error
        try:
            yield _HttpAnswer(response)
        finally:
            if response.content.at_eof():
                response.release()
            else:
                response.close()  # so that the engine stops

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        """Made on first use: a session belongs to the loop that runs."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=self._keepalive_s),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


class _HttpAnswer:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status

    async def read(self) -> bytes:
        try:
            return await self._response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _broke(error) from error

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            async for piece in self._response.content.iter_any():
                yield piece
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _broke(error) from error


def _broke(error: Exception) -> Broke:
    if isinstance(error, OSError) and error.errno in EXHAUSTED:
        return Broke(f"no connection can be made from here ({error.strerror})", certain=False, here=True)
    late = isinstance(error, TimeoutError)
    nobody = isinstance(error, aiohttp.ClientConnectorError)
    what = "no answer in time" if late else "no connection" if nobody else "the connection broke"
    return Broke(f"{what} ({type(error).__name__})", certain=not late)

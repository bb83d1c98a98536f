"""httpx over aiohttp's connections.

Three requests to engines are most of what a request costs a gateway. httpx's own connections write the
head and the body of each one apart and parse answers in Python; aiohttp writes both at once and parses in C.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import aiohttp
import httpx

_ERRORS: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    (aiohttp.ConnectionTimeoutError, httpx.ConnectTimeout),
    (aiohttp.SocketTimeoutError, httpx.ReadTimeout),
    (TimeoutError, httpx.TimeoutException),
    (aiohttp.ClientConnectorError, httpx.ConnectError),
    (aiohttp.ClientError, httpx.ReadError),
)
"""What is raised by aiohttp and by httpx for the same; the first that fits counts, the most special first."""


class AiohttpTransport(httpx.AsyncBaseTransport):
    """As many connections as there are requests, kept for `keepalive_s` when idle. No proxy, no cookies, no redirects."""

    def __init__(self, *, keepalive_s: float) -> None:
        self._keepalive_s = keepalive_s
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        timeout = request.extensions.get("timeout", {})
        with _as_httpx():
            response = await self._open().request(
                request.method,
                str(request.url),
                headers=request.headers.multi_items(),
                data=await request.aread() or None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=timeout.get("connect"), sock_read=timeout.get("read")
                ),
            )
        return httpx.Response(
            response.status, headers=list(response.raw_headers), stream=_Body(response), request=request
        )

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        """Made on first use: a session belongs to the loop that runs."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=self._keepalive_s),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx():
            async for piece in self._response.content.iter_any():
                yield piece

    async def aclose(self) -> None:
        """A connection whose answer was read to its end is kept; else it is closed, so that the engine stops."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


@contextmanager
def _as_httpx() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        for theirs, ours in _ERRORS:
            if isinstance(error, theirs):
                raise ours(str(error) or type(error).__name__) from error
        raise

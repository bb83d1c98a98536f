"""The tokens of one job, on their way from the service to whoever asked."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from has.gateway.job import TokenEvent


class TokenStream:
    """The tokens of one job (`has.gateway.job.Tokens`)."""

    def __init__(self, request: int, prompt_tokens: int, close: Callable[[int], None]) -> None:
        self.request = request
        self.prompt_tokens = prompt_tokens
        self.sent = 0
        self.retries = 0
        self._close = close
        self._events: deque[TokenEvent] = deque()
        self._error: Exception | None = None
        self._over = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def more(self) -> bool:
        return bool(self._events)

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> TokenEvent:
        while not self._events:
            if self._error is not None:
                error, self._error = self._error, None
                try:
                    raise error
                finally:
                    del error  # its traceback holds this frame, and that the request and its media
            if self._over:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._events.popleft()

    async def aclose(self) -> None:
        if not self._over:
            self._over = True
            self._close(self.request)
        self._events.clear()
        self._wake()

    def put(self, event: TokenEvent) -> None:
        self.sent = event.index
        self._over = self._over or event.finish_reason is not None
        self._events.append(event)
        self._wake()

    def fail(self, error: Exception) -> None:
        if not self._over:
            self._over = True
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None

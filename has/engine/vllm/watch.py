"""Which instances live: told by requests that find one dead, and looked after while nothing is asked of it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from has.engine.vllm.client import EngineClient
from has.engine.vllm.connections import Broke
from has.engine.vllm.urls import Urls
from has.gateway.port import Back, Event, Lost, PoolName

log = logging.getLogger("has.engine.vllm")

HEALTH_S = 1.0
"""Between two looks at an instance; none is due while it answers requests, as looks are work for it too."""
UNHEALTHY = 3
"""Looks in a row that must fail before an instance that still takes connections is given up: it may just be busy."""


class Watch:
    """Says once of each instance that it is lost, and of its worker that it is back once all of its instances are.

    lost    worker -> those of its instances that are lost
    losses  counts by worker: an answer that was asked for before a loss is none of the worker that came back
    """

    def __init__(self, urls: Urls, client: EngineClient) -> None:
        self.lost: dict[tuple[PoolName, int], set[str]] = {}
        self.losses: Counter[tuple[PoolName, int]] = Counter()
        self._urls = urls
        self._client = client
        self._handle: Callable[[Event], None] = lambda _: None

    async def keep(self, handle: Callable[[Event], None]) -> None:
        """Look after all instances until cancelled."""
        self._handle = handle
        await asyncio.gather(*(self._look_after(*entry) for entry in self._urls.all()))

    def lose(self, pool: PoolName, worker: int, url: str, reason: str) -> None:
        if not self._is_lost(pool, worker, url):
            self.lost.setdefault((pool, worker), set()).add(url)
            self.losses[pool, worker] += 1
            self._handle(Lost(pool, worker, f"{reason} at {url}"))

    def _found(self, pool: PoolName, worker: int, url: str) -> None:
        if self._is_lost(pool, worker, url):
            self.lost[pool, worker].discard(url)
            if not self.lost[pool, worker]:
                del self.lost[pool, worker]
                self._handle(Back(pool, worker))

    def _is_lost(self, pool: PoolName, worker: int, url: str) -> bool:
        return url in self.lost.get((pool, worker), ())

    async def _look_after(self, pool: PoolName, worker: int, url: str) -> None:
        failed = 0
        while True:
            await asyncio.sleep(HEALTH_S)
            if not self._is_lost(pool, worker, url) and self._client.silent_s(url) < HEALTH_S:
                failed = 0
                continue
            try:
                wrong, certain = await self._client.look(url)
            except Broke as error:
                log.warning("nobody can tell whether %s lives: %s", url, error)
                continue
            failed = 0 if not wrong else UNHEALTHY if certain else failed + 1
            if failed >= UNHEALTHY:
                self.lose(pool, worker, url, wrong)
            elif not wrong:
                self._found(pool, worker, url)

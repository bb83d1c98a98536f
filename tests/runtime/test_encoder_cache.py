"""What was encoded before is not encoded again, and makes no difference to the answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

from has.gateway.observer import Observer
from has.gateway.port import Encoded
from has.runtime.encoder_cache import EncoderCache
from has.runtime.start import open_service
from tests.runtime.live import answer, deployment, job, medium, reference

MODEL = "tiny-image"


def test_the_least_recently_used_goes_first() -> None:
    cache = EncoderCache(2 * 40)
    for name in "ab":
        cache.put(name, torch.zeros(5, 2))
    assert cache.get("a") is not None
    cache.put("c", torch.ones(5, 2))
    assert cache.get("b") is None
    assert cache.get("a") is not None
    assert cache.get("c").eq(1).all()  # type: ignore[union-attr]
    assert cache.used_bytes == 80


def test_what_is_too_large_or_kept_already_changes_nothing() -> None:
    cache = EncoderCache(40)
    cache.put("a", torch.zeros(5, 2))
    cache.put("a", torch.ones(5, 2))
    cache.put("b", torch.zeros(50, 2))
    assert cache.get("a").eq(0).all()  # type: ignore[union-attr]
    assert cache.get("b") is None
    assert cache.used_bytes == 40
    nothing = EncoderCache(0)
    nothing.put("a", torch.zeros(1, 1))
    assert nothing.get("a") is None


def test_it_does_not_keep_a_whole_batch_alive() -> None:
    batch = torch.zeros(100, 4)
    cache = EncoderCache(1 << 20)
    cache.put("a", batch[:2])
    assert cache.get("a").untyped_storage().nbytes() == 2 * 4 * 4  # type: ignore[union-attr]


class Counting(Observer):
    def __init__(self) -> None:
        self.media = self.known = 0

    def encoded(self, media: int, known: int) -> None:
        self.media += media
        self.known += known


@pytest.mark.live
def test_a_medium_sent_again_is_known_and_its_answers_are_the_same(pools) -> None:
    pool, seen, log = pools(MODEL), Counting(), []
    first = job(MODEL, 1)
    again = replace(
        first, media=(medium(MODEL, 100), medium(MODEL, 777)), prompt=job(MODEL, 2, media=2).prompt
    )
    text = replace(first, max_tokens=4)

    async def run(cache_bytes: int) -> list[list[int]]:
        seen.media = seen.known = 0
        service = await open_service(
            deployment(MODEL),
            pool,
            media_rate=50.0,
            online=False,
            encoder_cache_bytes=cache_bytes,
            observer=seen,
            tap=lambda entry, _: log.append(entry),
        )
        try:
            return [await answer(service, one) for one in (first, first, again, text)]
        finally:
            service.stop("the test is over")
            await pool.rest()

    expected = [reference(MODEL, one) for one in (first, first, again, text)]
    assert asyncio.run(run(1 << 20)) == expected
    assert (seen.media, seen.known) == (5, 3), "all but the two that were new"
    assert [entry.known for entry in log if isinstance(entry, Encoded)] == [0, 1, 1, 1]
    assert asyncio.run(run(0)) == expected
    assert (seen.media, seen.known) == (5, 0), "off: as in trials"

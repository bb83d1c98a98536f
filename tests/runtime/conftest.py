"""Warm pools that tests share: loading a model takes seconds, giving it another role milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from has.runtime.pool import WarmPool
from tests.runtime.live import table


@pytest.fixture(scope="session")
def pools() -> Iterator:
    started: list[WarmPool] = []

    @cache
    def pool(model: str) -> WarmPool:
        started.append(WarmPool(model, 4, nominal=table(model)))
        return started[-1]

    yield pool
    for one in started:
        one.close()

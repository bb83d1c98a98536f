"""The event loop a gateway runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import uvloop


def run(work: Coroutine[Any, Any, None]) -> None:
    """As `asyncio.run`, on uvloop: what is written in one turn of the loop leaves in one system call."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)

"""Threads that have time go behind; nobody else's priority changes."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from has.runtime.priority import NICE, go_first, go_last


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_only_the_thread_that_asks_goes_behind() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    seen: list[int] = []

    def ask() -> None:
        go_last()
        go_first()
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen == [NICE]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before

"""The shared memory and its book."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has.runtime.channel import Arena, Channel


def test_what_is_written_is_what_another_mapping_sees() -> None:
    channel = Channel.create(1 << 20)
    other = Channel(os.dup(channel.fd), channel.n_bytes)
    array = np.arange(1000, dtype=np.float32).reshape(10, 100)
    channel.write((4096, 4096), array)
    np.testing.assert_array_equal(other.view((4096, 4096), np.float32, (10, 100)), array)
    channel.write_bytes((8192, 4096), b"media")
    assert bytes(other.view((8192, 4096), np.uint8, (5,))) == b"media"
    other.close()
    channel.close()
    channel.close()


def test_a_region_that_is_too_small_is_refused() -> None:
    channel = Channel.create(1 << 16)
    with pytest.raises(ValueError, match="do not fit"):
        channel.write((0, 4096), np.zeros(2000, np.float32))
    channel.close()


def test_the_memory_has_no_name() -> None:
    before = set(Path("/dev/shm").iterdir())
    channel = Channel.create(1 << 20)
    assert set(Path("/dev/shm").iterdir()) == before
    channel.close()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 90_000), max_size=60), st.randoms(use_true_random=False))
def test_regions_never_overlap_and_all_room_comes_back(sizes: list[int], random) -> None:
    arena = Arena(1 << 20)
    held = []
    for size in sizes:
        region = arena.put(size)
        if region is not None:
            assert region[1] >= size
            assert all(region[0] + region[1] <= o or o + n <= region[0] for o, n in held)
            held.append(region)
        assert arena.used_bytes == sum(length for _, length in held)
        if held and random.random() < 0.5:
            arena.release(held.pop(random.randrange(len(held))))
    for region in held:
        arena.release(region)
    assert arena.put(1 << 20) == (0, 1 << 20)
    assert arena.put(1) is None

"""How long moving embeddings or KV to another process takes: through shared memory, as the runtime's channel does it.

In host memory bytes are copied in, told, and copied out. The runtime serves no GPUs yet; of a model on one they take the way they
would take with it: from the GPU into the shared memory, told, and from there into the GPU's memory, which is not pinned.
"""

from __future__ import annotations

import itertools
import mmap
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from has.device import host
from has.errors import RunError

Moves = tuple[Callable[[int], object], Callable[[int], object]]
"""What puts so many bytes into the shared memory, and what takes them out of it."""
PIECE_BYTES = 2**28
"""More goes in pieces of this through the same memory, as it would through a ring: KV of a long prompt is gigabytes, and no host need
have that three times over. It is beyond every cache, so that pieces are no faster than the whole."""
TIMES = ((2**24, 50), (2**30, 10))
"""(bytes up to which, how often for each sample that is wanted); beyond, once. What takes microseconds is cheap to repeat, and
needs it."""


def time_each(run: Callable[[], object], times: int) -> list[float]:
    run()
    samples = []
    for _ in range(times):
        begun = time.perf_counter()
        run()
        samples.append(time.perf_counter() - begun)
    return samples


def time_transfers(
    size: int, least: int, moves: Callable[[mmap.mmap], Moves | None] = lambda _: None
) -> list[float]:
    """Seconds to hand `size` (> 0) bytes to another process, `least` times or more.

    moves: of the shared memory, for bytes that are in a GPU's; None where the two processes copy theirs themselves.
    """
    piece = min(size, PIECE_BYTES)
    lengths = [piece] * (size // piece) + [size % piece] * (size % piece > 0)
    shared = mmap.mmap(-1, piece)
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    staged = moves(shared)
    child = os.fork()
    if child == 0:
        host.die_with_parent(parent)
        ours.close()
        _receive(shared, theirs, lengths if staged is None else [0])
        os._exit(0)
    theirs.close()
    try:
        times = least * next((times for most, times in TIMES if size <= most), 1)
        return time_each(_transfer(ours, lengths, staged or _copied(shared, piece)), times)
    finally:
        ours.close()
        os.waitpid(child, 0)
        with suppress(BufferError):  # what moves it may still see it, and goes with it
            shared.close()


def _copied(shared: mmap.mmap, most: int) -> Moves:
    """Copies from this process's own memory; the other process takes them out."""
    # Written, for pages that never were are all one page of zeros, which stays in the cache.
    source = memoryview(bytearray(b"\1") * most)

    def put(count: int) -> None:
        shared.seek(0)
        shared.write(source[:count])

    return put, lambda count: None


def _transfer(line: socket.socket, lengths: Sequence[int], moves: Moves) -> Callable[[], None]:
    put, take = moves

    def transfer() -> None:
        for count in lengths:
            put(count)
            line.sendall(b"x")
            if not line.recv(1):
                raise RunError("the receiving process of a transfer ended")
            take(count)

    return transfer


def _receive(shared: mmap.mmap, line: socket.socket, lengths: Sequence[int]) -> None:
    source, target = memoryview(shared), memoryview(bytearray(max(lengths)))
    for count in itertools.cycle(lengths):
        if not line.recv(1):
            return
        target[:count] = source[:count]
        line.sendall(b"x")

"""Tensors between processes: one shared memory, mapped by all, handed out by the gateway alone.

The memory is an anonymous file (memfd) that has no name to leave behind: it is gone when the last
process that maps it is, however that process ended. Who writes where is decided by the gateway,
which knows the size of everything before it is made (an embedding is tokens x width, a KV cache
tokens x bytes per token), so there is no lock and no message but the one that goes anyway, and a
worker that dies takes nothing with it.

    gateway   region = arena.put(n_bytes)        a Region to name in commands
    producer  channel.write(region, array)       one contiguous copy
    consumer  channel.view(region, dtype, shape) no copy
    gateway   arena.release(region)

Pages are only really taken when written, lowest addresses first, so the size is a bound, not a cost.
"""

from __future__ import annotations

import bisect
import contextlib
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Region = tuple[int, int]
"""Offset and length, in bytes."""

_ALIGN = 4096


class Channel:
    """A process's view of the shared memory."""

    def __init__(self, fd: int, n_bytes: int) -> None:
        self.fd = fd
        self.n_bytes = n_bytes
        self._map = mmap.mmap(fd, n_bytes)
        self._bytes = np.frombuffer(self._map, np.uint8)

    @classmethod
    def create(cls, n_bytes: int) -> Channel:
        fd = os.memfd_create("has-channel", os.MFD_CLOEXEC)
        os.ftruncate(fd, n_bytes)
        return cls(fd, n_bytes)

    def view(self, region: Region, dtype: DTypeLike, shape: Sequence[int]) -> NDArray[Any]:
        """The array that stands in `region`; valid until the region is released."""
        offset, length = region
        kind = np.dtype(dtype)
        needed = kind.itemsize * int(np.prod(shape, dtype=np.int64))
        if needed > length:
            raise ValueError(f"{needed} bytes do not fit a region of {length}")
        return self._bytes[offset : offset + needed].view(kind).reshape(tuple(shape))

    def write(self, region: Region, array: NDArray[Any]) -> None:
        self.view(region, array.dtype, array.shape)[...] = array

    def write_bytes(self, region: Region, data: bytes) -> None:
        self.view(region, np.uint8, (len(data),))[...] = np.frombuffer(data, np.uint8)

    def close(self) -> None:
        """Unmap and close. Arrays still viewing the memory keep it mapped until they go."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            del self._bytes
            with contextlib.suppress(BufferError):  # a view is alive somewhere; the mapping goes with it
                self._map.close()


class Arena:
    """The gateway's book of which parts of a channel are in use: first fit, lowest address."""

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self.used_bytes = 0
        self._free: list[Region] = [(0, n_bytes)]

    def put(self, n_bytes: int) -> Region | None:
        """A region of at least `n_bytes`, or None where there is no room."""
        need = max(_ALIGN, -(-n_bytes // _ALIGN) * _ALIGN)
        for i, (offset, length) in enumerate(self._free):
            if length >= need:
                if length == need:
                    del self._free[i]
                else:
                    self._free[i] = (offset + need, length - need)
                self.used_bytes += need
                return (offset, need)
        return None

    def release(self, region: Region) -> None:
        """Give `region` back and join it with free neighbours."""
        offset, length = region
        self.used_bytes -= length
        i = bisect.bisect_left(self._free, region)
        if i < len(self._free) and self._free[i][0] == offset + length:
            length += self._free[i][1]
            del self._free[i]
        if i and sum(self._free[i - 1]) == offset:
            offset, before = self._free[i - 1]
            length += before
            i -= 1
            del self._free[i]
        self._free.insert(i, (offset, length))

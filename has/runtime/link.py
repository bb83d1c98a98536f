"""Control messages between the gateway and one worker: framed JSON over a socket pair.

Frames are a four-byte length and a JSON object; nothing is ever unpickled. Tensors do not travel
here but through the channel. The gateway's end never blocks: what the kernel does not take at once
is kept and written when it can be. The worker's end blocks. Either end sees the death of the other
as the end of the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

Message = dict[str, Any]
_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 18


def _frame(message: Message) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


class _Frames:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            end = at + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            yield json.loads(bytes(self._buffer[at + _LENGTH.size : end]))
            at = end
        del self._buffer[:at]


class WorkerLink:
    """The worker's end. `send` may be called from any of its threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._frames = _Frames()

    def send(self, message: Message) -> None:
        data = _frame(message)
        with self._lock:
            self._sock.sendall(data)

    def messages(self) -> Iterator[Message]:
        """Every message until the gateway is gone."""
        while data := self._sock.recv(_READ_BYTES):
            yield from self._frames.feed(data)


class GatewayLink:
    """The gateway's end, read by whichever event loop it is attached to."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setblocking(False)
        self._frames = _Frames()
        self._outbox = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_message: Callable[[Message], None] = lambda _: None
        self._on_end: Callable[[], None] = lambda: None
        self.closed = False

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[Message], None],
        on_end: Callable[[], None],
    ) -> None:
        """Deliver messages in `loop` from now on; `on_end` is called once, when the worker is gone."""
        self.detach()
        self._loop, self._on_message, self._on_end = loop, on_message, on_end
        loop.add_reader(self._sock, self._readable)
        if self._outbox:
            loop.add_writer(self._sock, self._flush)

    def detach(self) -> None:
        if self._loop is not None and not self._loop.is_closed() and not self.closed:
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
        self._loop = None

    def send(self, message: Message) -> None:
        """Never blocks, never fails: a worker that is gone is reported by `on_end`."""
        if self.closed:
            return
        self._outbox += _frame(message)
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: self._sock.send(self._outbox)]
        except BlockingIOError:
            if self._loop is not None:
                self._loop.add_writer(self._sock, self._flush)
            return
        except OSError:
            self._outbox.clear()  # the reader sees the end of the stream
        if self._loop is not None:
            self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            on_end = self._on_end
            self.close()
            on_end()
            return
        for message in self._frames.feed(data):
            self._on_message(message)

    def close(self) -> None:
        if not self.closed:
            self.detach()
            self.closed = True
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._sock.close()

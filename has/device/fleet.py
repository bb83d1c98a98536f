"""Worker processes for measuring: one loads a model, the others are forked from it and share its memory.

Messages are lines of JSON over socket pairs; nothing is unpickled. Everything ends with the process that made
the fleet, however that ends: the kernel kills the loader with it, and the workers with the loader.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, Self

from has.device import host
from has.device.patience import Patience
from has.errors import RunError

Handler = Callable[[dict[str, Any]], Any]
"""What a worker does with a message; the result goes back as JSON."""
WAKE_S = 1.0
"""How long answers are waited for without a look at whether they are still worth it."""


class Fleet:
    """`size` workers. `opener` names a function "module:name" that the loader calls with `argument`; `worker`
    one that each worker calls with what came out of it and its own index, to get its Handler. `environment`: variables
    that differ from this process's. One worker alone is the loader itself: what must not be forked is safe in it.
    patience: how long is waited for answers, in all; without it for ever.

    As a context manager it ends its processes on leaving, at once.
    """

    def __init__(
        self,
        opener: str,
        argument: str,
        worker: str,
        size: int,
        *,
        environment: Mapping[str, str] | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._patience, self._before_s = patience, time.process_time()
        pairs = [socket.socketpair() for _ in range(size)]
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the fleet
        self._sockets = [ours for ours, _ in pairs]
        self._readers = [ours.makefile("rb") for ours in self._sockets]
        theirs = [their.fileno() for _, their in pairs]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",  # the folder a person works in is no place to import from
                "-m",
                "has.device.fleet",
                str(os.getpid()),
                opener,
                argument,
                worker,
                *map(str, theirs),
            ],
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, **(environment or {})},
        )
        for _, their in pairs:
            their.close()
        self._selector = selectors.DefaultSelector()
        for index, ours in enumerate(self._sockets):
            self._selector.register(ours, selectors.EVENT_READ, index)

    @property
    def pid(self) -> int:
        """Of the loader."""
        return self._process.pid

    @property
    def size(self) -> int:
        return len(self._sockets)

    def send(self, index: int, message: dict[str, Any]) -> None:
        """Give worker `index` something to do. One message at a time each."""
        try:
            self._sockets[index].sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            raise self._dead() from None

    def replies(self, timeout_s: float | None = None) -> Iterator[tuple[int, Any]]:
        """Wait until some workers have answered; (index, reply) of each. RunError if one failed or died, or patience ended."""
        for key, _ in self._answered(timeout_s):
            try:
                line = self._readers[key.data].readline()
            except OSError:
                raise self._dead() from None
            if not line.endswith(b"\n"):
                raise self._dead()
            reply = json.loads(line)
            if "error" in reply:
                raise RunError(f"a measurement failed: {reply['error']}")
            yield key.data, reply["result"]

    def _answered(self, timeout_s: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._patience is None or timeout_s is not None:
            return self._selector.select(timeout_s)
        while True:
            self._patience.look(self.cpu_s)
            if ready := self._selector.select(WAKE_S):
                return ready

    def cpu_s(self) -> float:
        """CPU seconds that the fleet and its maker have used since it was made."""
        return host.family_cpu_s(self.pid) + time.process_time() - self._before_s

    def ask(self, index: int, message: dict[str, Any]) -> Any:
        """Send and wait for the answer, with no other worker busy."""
        self.send(index, message)
        return next(self.replies())[1]

    def close(self) -> None:
        self._selector.close()
        for reader, ours in zip(self._readers, self._sockets, strict=True):
            with suppress(OSError):
                reader.close()
            ours.close()
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _dead(self) -> RunError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0.5)  # if it is on its way out, let it say why
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return RunError("a measuring process ended unexpectedly" + (f": {said[-1]}" if said else ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _named(name: str) -> Any:
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)


def _load(arguments: list[str]) -> None:
    """The loader: open, fork one worker a descriptor, wait for them."""
    parent, opener, argument, worker, *descriptors = arguments
    host.die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the maker's to handle
    make_worker, open_it = _named(worker), _named(opener)
    host.one_thread()  # before anything is computed: a pool of threads does not survive a fork
    opened = open_it(argument)
    if len(descriptors) == 1:
        host.settle()
        _serve(socket.socket(fileno=int(descriptors[0])), make_worker(opened, 0))
        return
    loader = os.getpid()
    children = []
    for index, descriptor in enumerate(descriptors):
        child = os.fork()
        if child == 0:
            host.die_with_parent(loader)
            for other in descriptors:
                if other != descriptor:
                    os.close(int(other))
            host.settle()
            _serve(socket.socket(fileno=int(descriptor)), make_worker(opened, index))
            os._exit(0)
        children.append(child)
    for descriptor in descriptors:
        os.close(int(descriptor))
    for child in children:
        os.waitpid(child, 0)


def _serve(line: socket.socket, handle: Handler) -> None:
    with line.makefile("rb") as messages:
        for message in messages:
            try:
                reply: dict[str, Any] = {"result": handle(json.loads(message))}
            except Exception as error:  # goes to the maker, who raises it
                reply = {"error": f"{type(error).__name__}: {error}"}
            line.sendall(json.dumps(reply).encode() + b"\n")


if __name__ == "__main__":
    _load(sys.argv[1:])

"""The process that workers are forked from: it has imported torch and loaded the model once.

A fork of it is ready in milliseconds and shares the model's pages. It runs no threads and touches
no accelerator, so a fork is safe at any time. It lives exactly as long as its gateway: the control
socket ends when the gateway does, however that happened, and every worker is tied to it by
PR_SET_PDEATHSIG. It also reaps workers and so frees the gateway of SIGCHLD.

    gateway -> zygote   {"fork": key} + one descriptor: the new worker's end of its link
    gateway -> zygote   {"kill": pid}
    zygote  -> gateway  {"ready": true, "facts": {...}} once; {"forked": key, "pid": n}; {"ended": pid, "status": n}
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from has.errors import MissingError, RunError
from has.runtime.channel import Channel

PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK = 29
FORK_TIMEOUT_S = 30.0
REAPED_S = 0.05
"""Within this a worker's end is known to the zygote, and how it ended."""
_libc = ctypes.CDLL(None, use_errno=True)


def set_timer_slack(nanoseconds: int = 1000) -> None:
    """Wake sleeps of this thread within `nanoseconds`; the default of Linux is 50 µs."""
    _libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(nanoseconds), 0, 0, 0)


def _die_with_parent(parent: int) -> None:
    _libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        os._exit(1)


# -- the gateway's side ----------------------------------------------------------------------------


class Zygote:
    """Starts a zygote for one model and asks it for workers.

    Raises MissingError or RunError if the model cannot be loaded, with the zygote's own last words.
    """

    def __init__(self, model: str, channel: Channel, options: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock = ours
        settings = {
            "model": model,
            "fd": theirs.fileno(),
            "channel": channel.fd,
            "bytes": channel.n_bytes,
            **options,
        }
        environment = dict(os.environ, OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "has.runtime.zygote", json.dumps(settings)],
            pass_fds=(theirs.fileno(), channel.fd),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the gateway, which then drains
            env=environment,
        )
        theirs.close()
        self.pids: dict[str, int] = {}
        self._ended: dict[int, int] = {}
        first = self._receive()
        self.facts: dict[str, Any] = first.get("facts", {})
        if not first.get("ready"):
            self.close()
            error = MissingError if first.get("missing") else RunError
            said = (
                first.get("error")
                or f"the worker process for {model} {how(self._process.returncode)} while it loaded"
            )
            raise error(said, mend=first.get("mend", ""))

        self._sock.settimeout(FORK_TIMEOUT_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _receive(self) -> dict[str, Any]:
        data = self._sock.recv(1 << 16)
        message: dict[str, Any] = json.loads(data) if data else {}
        return message

    def fork(self, key: str) -> socket.socket:
        """A new worker; returns the gateway's end of its link."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise RunError(
                f"no worker can be started: {error}", mend="raise the limit of open files (ulimit -n)"
            ) from error
        descriptor = array.array("i", [theirs.fileno()]).tobytes()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)]
        try:
            with theirs:
                self._sock.sendmsg([json.dumps({"fork": key}).encode()], rights)
            while (message := self._receive()).get("forked") != key:
                if not message:
                    raise RunError("the process that starts workers has ended")
                self._note(message)
        except OSError as error:
            ours.close()
            raise RunError(f"the process that starts workers does not answer: {error}") from error
        self.pids[key] = int(message["pid"])
        return ours

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("ended") in self.pids.values():
            self._ended[message["ended"]] = message["status"]

    def how_it_ended(self, key: str) -> str:
        """In words, how worker `key` ended, whose link has; empty if that is not known yet."""
        pid, by_s = self.pids.get(key, -1), time.monotonic() + REAPED_S
        try:
            while pid not in self._ended and (left_s := by_s - time.monotonic()) > 0:
                self._sock.settimeout(left_s)
                message = self._receive()
                if not message:
                    return ""
                self._note(message)
        except OSError:
            return ""
        finally:
            with contextlib.suppress(OSError):
                self._sock.settimeout(FORK_TIMEOUT_S)
        return f"its process {how(self._ended.pop(pid))}" if pid in self._ended else ""

    def kill(self, key: str) -> None:
        """End worker `key` at once. The zygote does it: only a parent knows that a pid is still its child."""
        pid = self.pids.pop(key, None)
        if pid is not None:
            with contextlib.suppress(OSError):
                self._sock.send(json.dumps({"kill": pid}).encode())

    def close(self) -> None:
        """End all workers and the zygote, and wait until they are gone."""
        self._sock.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def how(status: int) -> str:
    """`ended ...` or `was killed ...`, by an exit code as `subprocess` counts: -n is signal n."""
    if status == -signal.SIGKILL:
        return "was killed (SIGKILL, as the kernel does where memory runs out)"
    if status < 0:
        return f"was killed ({signal.Signals(-status).name})"
    return f"ended (status {status})"


# -- the zygote's side -----------------------------------------------------------------------------


def serve(
    sock: socket.socket,
    channel: Channel,
    work: Callable[[str, socket.socket, Channel], None],
) -> None:
    """Fork a worker that runs `work(key, link, channel)` for every request, until the gateway is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    selector = selectors.DefaultSelector()
    selector.register(sock, selectors.EVENT_READ)
    selector.register(wake_read, selectors.EVENT_READ)
    me = os.getpid()
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
            for pid, status in _reap(children):
                with contextlib.suppress(OSError):  # nobody has read for long: it need not know
                    sock.send(json.dumps({"ended": pid, "status": status}).encode(), socket.MSG_DONTWAIT)
        if sock not in ready:
            continue
        data, rights, _, _ = sock.recvmsg(1 << 12, socket.CMSG_SPACE(4))
        if not data:
            break
        message = json.loads(data)
        if "kill" in message:
            if message["kill"] in children:
                os.kill(message["kill"], signal.SIGKILL)
            continue
        (fd,) = array.array("i", rights[0][2])
        pid = os.fork()
        if pid == 0:
            _worker(
                me, message["fork"], socket.socket(fileno=fd), channel, work, (sock, wake_read, wake_write)
            )
        os.close(fd)
        children.add(pid)
        sock.send(json.dumps({"forked": message["fork"], "pid": pid}).encode())
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def _reap(children: set[int]) -> list[tuple[int, int]]:
    """(pid, exit code) of every child that has ended."""
    ended = []
    for pid in tuple(children):
        with contextlib.suppress(ChildProcessError):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found == 0:
                continue
            ended.append((pid, os.waitstatus_to_exitcode(status)))
        children.discard(pid)
    return ended


def _worker(
    parent: int,
    key: str,
    link: socket.socket,
    channel: Channel,
    work: Callable[[str, socket.socket, Channel], None],
    inherited: tuple[socket.socket | int, ...],
) -> None:
    status = 1
    try:
        _die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for thing in inherited:
            os.close(thing) if isinstance(thing, int) else thing.close()
        set_timer_slack()
        work(key, link, channel)
        status = 0
    except (BrokenPipeError, ConnectionResetError):
        status = 0  # the gateway is gone, and so are we
    except BaseException as error:
        print(f"has: worker {key} ended: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def _fail(sock: socket.socket, **words: Any) -> None:
    sock.send(json.dumps(words).encode())


def main() -> None:
    settings = json.loads(sys.argv[1])
    sock = socket.socket(fileno=settings["fd"])
    # Not inheritable by what a worker might start, and closed with the gateway's last copy.
    os.set_inheritable(settings["fd"], False)
    os.set_inheritable(settings["channel"], False)
    try:
        channel = Channel(settings["channel"], settings["bytes"])
        from has.runtime.worker import preload

        work, facts = preload(settings)
    except ImportError as error:
        _fail(
            sock,
            error=f"the runtime cannot be loaded: {error}",
            missing=True,
            mend="pip install 'has-epd[runtime]'",
        )
        return
    except MissingError as error:
        _fail(sock, error=error.message, missing=True, mend=error.mend)
        return
    except Exception as error:  # whatever loading raises belongs in front of the user, in one line
        _fail(sock, error=f"{settings['model']} could not be loaded: {error}")
        return
    gc.collect()
    gc.freeze()
    sock.send(json.dumps({"ready": True, "facts": facts}).encode())
    serve(sock, channel, work)


if __name__ == "__main__":
    main()

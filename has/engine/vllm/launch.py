"""vLLM processes: started in parallel, watched until they are ready, ended with us.

Every instance has a log of its own; when one does not come up, the reason given is the engine's, out
of that log. Process groups are told to a reaper, so that nothing outlives us even after SIGKILL.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from has.engine.vllm import reaper
from has.errors import RunError

READY_S = 900.0
"""A large model takes minutes to load; what has not come up by then will not."""
POLL_S = 0.25
STOP_S = 10.0
HEALTH_TIMEOUT_S = 2.0
LOOKS = 3
MEMORY = ", which the kernel does where memory ends"


@dataclass(frozen=True, slots=True)
class Start:
    """One instance to be started: `argv` and `env` beyond ours; `gpus` None where there are none."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    url: str
    gpus: tuple[int, ...] | None = None


class Engine:
    """A started instance."""

    def __init__(self, start: Start, log: Path) -> None:
        self.start = start
        self.log = log
        self.shared: set[Path] = set()
        self._ready_at = 0
        with log.open("wb") as out:
            env = {**os.environ, **start.env}
            if start.gpus is not None:
                env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, start.gpus))
            self.process = subprocess.Popen(
                start.argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
            )

    @property
    def name(self) -> str:
        return self.start.name

    @property
    def url(self) -> str:
        return self.start.url

    @property
    def group(self) -> int:
        """Its process group: all of its processes, as it began a session of its own."""
        return self.process.pid

    @property
    def dead(self) -> bool:
        return self.process.poll() is not None

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=HEALTH_TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def usable(self) -> bool:
        """Whether it may serve on. One that answers late is busy, one that refuses or says 500 is not to be kept."""
        return not self.dead and any(self.ready() for _ in range(LOOKS))

    def became_ready(self) -> None:
        """From here on, what its log complains of is no matter of starting. Its queues are there now: they are noted
        while it has them mapped."""
        self._ready_at = self.log.stat().st_size
        self.shared = reaper.segments(self.group)

    def why(self) -> str:
        """What the engine itself says went wrong, since it was ready if it ever was."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._ready_at)
                said = log.read().decode(errors="replace")
        except FileNotFoundError:
            return "its log is gone with the fleet"  # asked while all is being ended
        if error := error_in(said):
            return error
        status = self.process.poll()
        if status is not None and status < 0:
            by = signal.Signals(-status).name
            return f"killed by {by}{MEMORY if by == 'SIGKILL' else ''}"
        return last_line(said)


class Launcher:
    """Starts and ends engines. `logs` holds their output; `keep` is where the log of one that failed is copied to,
    if `logs` goes with the engines.

    with Launcher(folder) as launcher:
        engines = launcher.start(starts)
        launcher.wait(engines)
    """

    def __init__(
        self, logs: Path, *, keep: Path | None = None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.logs = logs
        self._keep = keep
        self._say = say
        self.engines: list[Engine] = []
        self.closing = threading.Event()
        """Set when everything begins to end: what waits for something else wakes by it."""
        self._reaper: subprocess.Popen[str] | None = None
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self.closing.is_set()

    def start(self, starts: Iterable[Start]) -> list[Engine]:
        """Start all at once; returns before any is ready. RunError once closed."""
        begun = []
        for start in starts:
            if self.closed:
                raise RunError("everything is being ended")
            engine = Engine(start, self.logs / f"{start.name}.log")
            self._tell_reaper(engine.group)
            self.engines.append(engine)
            begun.append(engine)
        return begun

    def wait(self, engines: Sequence[Engine], ready_s: float = READY_S) -> None:
        """Until all are ready. RunError with the engine's reason if one ends or does not come up in time."""
        until = time.monotonic() + ready_s
        left = list(engines)
        began = time.monotonic()
        while left:
            for engine in list(left):
                if engine.dead:
                    raise RunError(
                        f"{engine.name} ended while it started (status {engine.process.returncode}): {engine.why()}",
                        mend=self.where_log(engine),
                    )
                if fatal := fatal_in(engine.log):
                    raise RunError(f"{engine.name} cannot start: {fatal}", mend=self.where_log(engine))
                if engine.ready():
                    left.remove(engine)
                    self.note_ready(engine)
                    self._say(f"{engine.name} is ready after {time.monotonic() - began:.0f} s")
            if left and time.monotonic() > until:
                names = ", ".join(engine.name for engine in left)
                raise RunError(
                    f"{names} not ready after {ready_s:.0f} s: {left[0].why()}",
                    mend=self.where_log(left[0]),
                )
            if left:
                time.sleep(POLL_S)

    def note_ready(self, engine: Engine) -> None:
        """Take down what is known of an instance from the time on at which it serves."""
        engine.became_ready()
        for path in engine.shared:
            self._tell_reaper(path)
        _unpin(engine.group)

    def where_log(self, engine: Engine) -> str:
        """Where the log of a failed engine can be read when all is over."""
        path = engine.log
        if self._keep is not None:
            with suppress(OSError):
                self._keep.mkdir(parents=True, exist_ok=True)
                # One file an instance, whatever its port was: a hundred failures leave no hundred logs.
                path = Path(shutil.copyfile(engine.log, self._keep / f"{engine.name.rsplit('-', 2)[0]}.log"))
        return f"its log is {path}"

    def stop(self, engines: Iterable[Engine]) -> None:
        """End these, and wait until they have ended."""
        leaving = list(engines)
        # Polled, so that what has ended is counted as ended.
        reaper.end(
            {engine.group for engine in leaving},
            STOP_S,
            poll=lambda: [engine.dead for engine in leaving],
            known={path for engine in leaving for path in engine.shared},
        )
        for engine in leaving:
            with suppress(subprocess.TimeoutExpired):
                engine.process.wait(STOP_S)
            self._tell_reaper(-engine.group)
            with suppress(ValueError):  # two may end it at the same time
                self.engines.remove(engine)

    def close(self) -> None:
        """End everything. May be called twice."""
        self.closing.set()
        self.stop(list(self.engines))
        if self._reaper is not None:
            assert self._reaper.stdin is not None
            self._reaper.stdin.close()
            self._reaper.wait()
            self._reaper = None

    def remove_at_end(self, folder: Path) -> None:
        """Have `folder` removed when we are gone, however that happened."""
        self._tell_reaper(folder)

    def _tell_reaper(self, what: int | Path) -> None:
        if self._reaper is None:
            self._reaper = subprocess.Popen(
                [sys.executable, "-S", reaper.__file__],
                stdin=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        assert self._reaper.stdin is not None
        with suppress(BrokenPipeError):
            self._reaper.stdin.write(f"{what}\n")
            self._reaper.stdin.flush()


def free_port(port: int, host: str = "127.0.0.1") -> bool:
    """Whether nothing listens on `port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


FATAL = (b"Address already in use",)
"""What a thread of an engine may die of while its process lives on and never gets ready."""


def fatal_in(log: Path) -> str:
    """The line of a log that says an engine will never be ready, or nothing."""
    said = log.read_bytes()
    for words in FATAL:
        if (at := said.rfind(words)) >= 0:
            return said[said.rfind(b"\n", 0, at) + 1 :].split(b"\n", 1)[0].decode(errors="replace").strip()
    return ""


_ERROR = re.compile(r"(?:^|\s)((?:[A-Za-z_]+\.)*[A-Z][A-Za-z]*(?:Error|Exception|Interrupt)\b: ?.+)")
_SECONDARY = ("Engine core initialization failed", "See root cause above")


def error_in(log: str) -> str:
    """The first error of a traceback in an engine's log that is not merely the echo of another, or what a parser
    of arguments refused, or nothing."""
    found = [match.group(1).strip() for line in log.splitlines() if (match := _ERROR.search(line))]
    own = [error for error in found if not any(words in error for words in _SECONDARY)]
    if own or found:
        return (own or found)[0][:500]
    usage = [line for line in log.splitlines() if ": error: " in line]
    return usage[-1].partition(": error: ")[2][:500] if usage else ""


def last_line(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1].strip()[:500] if lines else "it said nothing"


def _unpin(group: int) -> None:
    """Let every thread of a process group run on every core: NIXL pins each worker's to the last one."""
    cores = os.sched_getaffinity(0)
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[2]) != group:
                continue
            for thread in (entry / "task").iterdir():
                with suppress(OSError):
                    os.sched_setaffinity(int(thread.name), cores)

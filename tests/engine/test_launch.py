"""Starting and ending instances, with small stand-in servers: reasons, bounds, nothing left behind."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from has.engine.place import NodePorts
from has.engine.vllm import reaper
from has.engine.vllm.launch import Launcher, Start, error_in, free_port, last_line
from has.engine.vllm.reaper import alive
from has.errors import RunError

SERVER = """
import http.server, subprocess, sys
child = subprocess.Popen(["sleep", "600"])  # as an engine core is: in the same group
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def server(name: str = "e0") -> Start:
    port = NodePorts(18_500, usable=free_port).take()
    return Start(name, (sys.executable, "-c", SERVER, str(port)), {}, f"http://127.0.0.1:{port}")


def gone(group: int) -> bool:
    until = time.monotonic() + 15
    while time.monotonic() < until:
        if not alive(group):
            return True
        time.sleep(0.05)
    return False


def test_ready_then_ended_with_its_children(tmp_path) -> None:
    with Launcher(tmp_path) as launcher:
        (engine,) = launcher.start([server()])
        launcher.wait([engine], 30)
        assert alive(engine.group)
    assert gone(engine.group)


def test_one_that_ends_while_it_starts_gives_its_own_reason(tmp_path) -> None:
    code = (
        "print('INFO loading'); raise ValueError('To serve at least one request, 3 GiB KV cache is needed')"
    )
    start = Start("p0", (sys.executable, "-c", code), {}, "http://127.0.0.1:9")
    with (
        Launcher(tmp_path) as launcher,
        pytest.raises(RunError, match="ValueError: To serve at least one request"),
    ):
        launcher.wait(launcher.start([start]), 30)


def test_one_that_never_comes_up_is_given_up_in_time(tmp_path) -> None:
    start = Start("d0", ("sleep", "600"), {}, "http://127.0.0.1:9")
    with Launcher(tmp_path) as launcher:
        engines = launcher.start([start])
        with pytest.raises(RunError, match=r"d0 not ready after 0 s"):
            launcher.wait(engines, 0.2)
    assert gone(engines[0].group)


@pytest.mark.parametrize("where", ["", "/dev/shm"])
def test_nothing_outlives_a_parent_that_is_killed(tmp_path, where) -> None:
    """Not even SIGKILL: the reaper's input ends with the parent. A fleet's folder lies where shared memory does."""
    start = server()
    folder = Path(tempfile.mkdtemp(prefix="has-vllm-", dir=where or tmp_path))
    (folder / "embeddings").touch()
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom has.engine.vllm.launch import Launcher, Start\n"
        f"launcher = Launcher(Path({str(tmp_path)!r}))\n"
        f"launcher.remove_at_end(Path({str(folder)!r}))\n"
        f"engine, = launcher.start([Start('e0', {start.argv!r}, {{}}, {start.url!r})])\n"
        "launcher.wait([engine], 30)\nprint(engine.group, flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert parent.stdout is not None
    group = int(parent.stdout.readline())
    assert alive(group)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert gone(group)
    until = time.monotonic() + 15
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not folder.exists()


def test_shared_memory_of_the_killed_is_removed(tmp_path) -> None:
    """An engine that must be killed cannot unlink its queues, and its resource tracker dies with it."""
    code = (
        "import signal, sys, time\nfrom multiprocessing.shared_memory import SharedMemory\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "queue = SharedMemory(create=True, size=4096)\nprint(queue.name, flush=True)\ntime.sleep(600)\n"
    )
    stuck = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert stuck.stdout is not None
    queue = Path("/dev/shm") / stuck.stdout.readline().strip()
    assert queue.is_file()
    reaper.end({stuck.pid}, grace_s=0.2, poll=stuck.poll)
    assert stuck.wait() == -signal.SIGKILL
    stuck.stdout.close()
    assert not queue.exists()


def test_a_file_whose_name_is_no_utf8_hides_no_shared_memory(tmp_path) -> None:
    """Any process of the machine may have mapped one, and all are looked at."""
    lines = (b"7f00-7f01 r--p 0 08:01 7 /home/caf\xe9\n", b"7f02-7f03 rw-s 0 00:1b 9 /dev/shm/psm_1\n")
    (tmp_path / "maps").write_bytes(b"".join(lines))
    assert reaper._mapped(tmp_path) == {reaper.SHARED / "psm_1"}


QUEUES = """
import subprocess, sys
from multiprocessing.shared_memory import SharedMemory
queues = [SharedMemory(name=name, create=True, size=4096) for name in sys.argv[2:]]
"""


@pytest.mark.parametrize("parent_too", [False, True])
def test_shared_memory_of_a_group_killed_from_outside_is_removed_but_not_what_others_use(
    tmp_path, parent_too
) -> None:
    """As the kernel does where memory ends: nothing of the group is left to be asked what it had mapped."""
    names = [f"has-test-{os.getpid()}-{parent_too}-{n}" for n in range(2)]
    own, common = (reaper.SHARED / name for name in names)
    start = server()
    argv = (sys.executable, "-c", QUEUES + SERVER, start.argv[-1], *names)
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom has.engine.vllm.launch import Launcher, Start\n"
        f"launcher = Launcher(Path({str(tmp_path)!r}))\n"
        f"engine, = launcher.start([Start('e0', {argv!r}, {{}}, {start.url!r})])\n"
        "launcher.wait([engine], 30)\nprint(engine.group, flush=True)\n"
        "sys.stdin.readline()\nlauncher.close()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        with common.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            assert own.exists()
            os.killpg(group, signal.SIGKILL)
            if parent_too:
                parent.kill()
            else:
                parent.communicate("\n")
            until = time.monotonic() + 30
            while own.exists() and time.monotonic() < until:
                time.sleep(0.05)
            try:
                assert not own.exists()
                assert common.exists()
            finally:
                common.unlink(missing_ok=True)
                own.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("INFO x\nERROR core.py ValueError: No available memory for the cache blocks.\nRuntimeError: Engine core initialization failed. See root cause above.", "ValueError: No available memory for the cache blocks."),
        ("(EngineCore pid=1) torch.OutOfMemoryError: CUDA out of memory.", "torch.OutOfMemoryError: CUDA out of memory."),
        ("usage: vllm serve\nvllm: error: unrecognized arguments: --mm-x", "unrecognized arguments: --mm-x"),
        ("nothing of note\n", "nothing of note"),
        ("", "it said nothing"),
    ],
)  # fmt: skip
def test_the_reason_is_the_first_error_not_its_echo(log, reason) -> None:
    assert (error_in(log) or last_line(log)) == reason


def test_ports_are_given_once_and_only_free_ones() -> None:
    taken = set(range(9000, 9010))
    ports = NodePorts(8995, taken={8997}, usable=lambda port: port not in taken)
    given = [ports.take() for _ in range(4)] + [ports.take(3)]
    assert given == [8995, 8996, 8998, 8999, 9012], "a width of three is tried in whole"


def test_one_that_lives_on_without_its_port_is_given_up(tmp_path) -> None:
    """A thread died of a taken port; the process waits for it for ever."""
    code = "import sys, time; print('zmq.error.ZMQError: Address already in use (addr=5600)', flush=True); time.sleep(600)"
    start = Start("p0", (sys.executable, "-c", code), {}, "http://127.0.0.1:9")
    with Launcher(tmp_path) as launcher, pytest.raises(RunError, match="Address already in use"):
        launcher.wait(launcher.start([start]), 30)

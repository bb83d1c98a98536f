"""Commands that start workers on the cpu device, as a person would run them; nothing may be left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

pytestmark = pytest.mark.live

HAS = [sys.executable, "-m", "has.cli.main"]
TINY_PLAN = ("--sm", "50,100", "--batch", "1", "--tokens", "64", "--quick")


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    def here() -> set[str]:
        shared = Path("/dev/shm")
        return {path.name for path in shared.iterdir()} if shared.is_dir() else set()

    before = here()
    yield
    left = [
        child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE
    ]
    assert left == []
    assert here() - before == set()


def has(folder: Path, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*HAS, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode == 3 and "too busy" in done.stderr:
        pytest.skip(f"this machine is too busy for live trials: {done.stderr.splitlines()[-2]}")
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small profile of this machine, at the place where `has profile` puts it."""
    folder = tmp_path_factory.mktemp("live")
    done = has(folder, "profile", *TINY_PLAN, "--json")
    assert json.loads(done.stdout)["profile"] == "profile-tiny-image-cpu.parquet"
    assert "--model tiny-image" in done.stderr
    return folder


def test_a_finished_profile_measures_nothing_twice(profiled: Path) -> None:
    points = (profiled / "profile-tiny-image-cpu.points.jsonl").read_bytes()
    first = json.loads(has(profiled, "show", "profile-tiny-image-cpu.parquet", "--json").stdout)
    has(profiled, "profile", *TINY_PLAN)
    assert (profiled / "profile-tiny-image-cpu.points.jsonl").read_bytes() == points
    again = json.loads(has(profiled, "show", "profile-tiny-image-cpu.parquet", "--json").stdout)
    assert again["rows"] == first["rows"]


def test_an_interrupted_profile_keeps_its_points(profiled: Path, tmp_path: Path) -> None:
    points = tmp_path / "profile-tiny-image-cpu.points.jsonl"
    with subprocess.Popen(
        [*HAS, "profile", *TINY_PLAN],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A background shell ignores SIGINT, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if points.exists() and line.startswith("profiling"):
                break
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does: workers get it too
        rest = child.stderr.read()
    assert child.returncode == 130
    assert "points measured and kept" in rest
    assert "Traceback" not in rest
    kept = points.read_bytes()
    assert kept.endswith(b"\n")
    has(tmp_path, "profile", *TINY_PLAN)
    assert points.read_bytes().startswith(kept)


def test_a_search_runs_live_trials_on_the_profile_that_fits(profiled: Path) -> None:
    (profiled / "s.yaml").write_text(
        "version: 1\nencode_batch: [1]\nprefill_offload: {min: 0.0, max: 0.0}\ntopologies: [disaggregated]\n"
    )
    done = has(
        profiled,
        *("search", "--gpus", "2", "--space", "s.yaml", "--trials", "1", "--requests", "6"),
        *(
            "--rate",
            "1",
            "--ttft-ms",
            "10000",
            "--tpot-ms",
            "2000",
            "--attainment",
            "0.5",
            "--run",
            "run",
            "--json",
        ),
    )
    answer = json.loads(done.stdout)
    assert "--on live" in done.stderr
    assert "--profile profile-tiny-image-cpu.parquet" in done.stderr
    assert answer["trials"] == 1
    trials = [json.loads(line) for line in (profiled / "run/trials.jsonl").read_text().splitlines()]
    assert all("gate" in trial["telemetry"] for trial in trials)
    best = yaml.safe_load((profiled / "best.yaml").read_text())
    assert best["evidence"]["executor"] == "LocalExecutor"


def test_serve_ask_bench_and_stop(inputs: Path) -> None:
    with subprocess.Popen(
        [*HAS, "deploy", "d.yaml", "--port", "0", "--json"],
        cwd=inputs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        ready = json.loads(server.stdout.readline())
        url = ready["url"]
        assert ready["deployment"]["alloc"] == {"encode": 2, "prefill": 2, "decode": 4}
        body = {"model": "tiny-image", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert json.load(reply)["usage"]["completion_tokens"] == 4
        figures = json.loads(
            has(
                inputs, "bench", url, "--workload", "w.yaml", "--request-rate", "2", "--num-prompts", "4", "--json",
                "--goodput", "ttft:60000,tpot:60000",
            ).stdout
        )  # fmt: skip
        assert (figures["requests"], figures["completed"], figures["attainment"]) == (4, 4, 1.0)
        server.send_signal(signal.SIGINT)
        assert server.stdout.read() == ""
        said = server.stderr.read()
    assert server.returncode == 0
    assert "--host 127.0.0.1" in said
    assert "Traceback" not in said


@pytest.mark.long
def test_bare_commands_in_an_empty_folder(tmp_path: Path) -> None:
    has(tmp_path, "profile")
    has(tmp_path, "search", "--gpus", "8", "--trials", "8")
    has(tmp_path, "explain", "best.yaml")
    has(tmp_path, "simulate", "best.yaml")
    with subprocess.Popen(
        [*HAS, "deploy", "best.yaml"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready: http://127.0.0.1:8000\n"
        server.send_signal(signal.SIGTERM)
    assert server.returncode == 0

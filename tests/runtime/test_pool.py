"""Roles and what the pool refuses; and that nothing is left of it, however it ended."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import has.runtime.pool as pool_module
from has.core.deployment import Deployment
from has.errors import MissingError, RunError
from has.runtime.pool import WarmPool, plan_roles
from tests.runtime.live import deployment

MODEL = "tiny-image"


def test_every_gpu_has_its_place() -> None:
    roles = plan_roles(deployment(MODEL), 4)
    assert [place for place, _ in roles.values()] == [
        ("encode", 0),
        ("prefill", 0),
        ("decode", 0),
        ("decode", 1),
        ("preprocess", 0),
        ("preprocess", 1),
    ]


def test_tensor_parallelism_is_for_an_engine() -> None:
    plan = deployment(MODEL, alloc={"encode": 1, "prefill": 1, "decode": 2}, tensor_parallel={"decode": 2})
    with pytest.raises(MissingError, match="tensor parallelism") as error:
        plan_roles(plan, 4)
    assert "vLLM" in error.value.mend


def test_several_machines_are_for_an_engine() -> None:
    with pytest.raises(MissingError, match="one machine") as error:
        plan_roles(deployment(MODEL, gpus_per_node=2), 4)
    assert "Dynamo" in error.value.mend
    assert plan_roles(deployment(MODEL, gpus_per_node=4), 4)


def test_as_many_preprocessing_servers_as_the_deployment_says() -> None:
    def servers(**fields: int) -> int:
        return sum(
            place == "preprocess" for (place, _), _ in plan_roles(deployment(MODEL, **fields), 4).values()
        )

    assert servers(preprocess_workers=3) == 3
    assert servers(preprocess_workers=None) == 4, "as many as GPUs, where it says nothing"


def test_more_gpus_than_are_here() -> None:
    with pytest.raises(MissingError, match="4 GPUs, 2 are here"):
        plan_roles(deployment(MODEL), 2)
    with pytest.raises(MissingError, match="virtual"):
        WarmPool(MODEL, 9)


def test_a_model_that_is_not_bundled() -> None:
    with pytest.raises(MissingError, match="bundled"):
        WarmPool("Qwen/Qwen2.5-VL-7B-Instruct", 1)


def settings() -> dict:
    return {
        "seed": 0,
        "streams": False,
        "slots": 4,
        "kv_tokens": None,
        "max_tokens": 256,
        "encoder_cache_bytes": 0,
    }


@pytest.mark.live
def test_roles_change_without_a_reload(pools) -> None:
    pool = pools(MODEL)

    async def change(plan: Deployment) -> dict[str, int]:
        await pool.configure(plan, settings())
        await pool.rest()
        return dict(pool.pids)

    first = asyncio.run(change(deployment(MODEL)))
    second = asyncio.run(change(deployment(MODEL, "monolithic")))
    third = asyncio.run(change(deployment(MODEL, "e_pd")))
    assert first == second == third, "the same processes"


class NeverUp:
    """A zygote whose forks end at once."""

    def __init__(self) -> None:
        self.forked = 0

    def fork(self, key: str) -> socket.socket:
        self.forked += 1
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    def how_it_ended(self, key: str) -> str:
        return ""

    def kill(self, key: str) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_worker_that_never_comes_up_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    zygote = NeverUp()
    zygote.facts = {}  # type: ignore[attr-defined]
    monkeypatch.setattr(pool_module, "Zygote", lambda *_: zygote)
    monkeypatch.setattr(pool_module, "CHANNEL_BYTES", 1 << 21)
    pool = WarmPool(MODEL, 1)
    said: list[str] = []
    pool.on_broken = said.append
    plan = deployment(MODEL, "monolithic", gpus=1, alloc={"all": 1}, preprocess_workers=1)
    try:
        with pytest.raises(RunError, match="before it was ready"):
            asyncio.run(pool.configure(plan, settings()))
        assert said == [pool.broken]
        assert zygote.forked <= 2 * pool_module.MOST_FAILURES
        with pytest.raises(RunError):
            asyncio.run(pool.configure(plan, settings()))
    finally:
        pool.close()


HOLDER = """
import asyncio, json, sys
from has.runtime.pool import WarmPool
from tests.runtime.live import deployment, table

pool = WarmPool("tiny-image", 4, nominal=table("tiny-image"))

async def main():
    await pool.configure(deployment("tiny-image"), {"seed": 0, "streams": False, "slots": 4, "kv_tokens": None, "max_tokens": 256, "encoder_cache_bytes": 0})
    print(json.dumps(pool.pids), flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.long  # a server that is killed shows the same, in test_serve.py
@pytest.mark.live
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, None])
def test_nothing_is_left_of_a_process_that_held_a_pool(number: int | None) -> None:
    before = set(Path("/dev/shm").iterdir())
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert holder.stdout is not None
    pids = list(json.loads(holder.stdout.readline()).values())
    assert len(pids) == 1 + 4 + 2
    assert all(psutil.pid_exists(pid) for pid in pids)
    children = [child.pid for child in psutil.Process(holder.pid).children(recursive=True)]
    assert set(pids) <= set(children)
    if number is None:
        holder.communicate("", timeout=30)  # its input ends, and it with it, without a word to the pool
    else:
        holder.send_signal(number)
        holder.wait(timeout=30)
    assert gone([*pids, *children])
    assert set(Path("/dev/shm").iterdir()) == before

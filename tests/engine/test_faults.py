"""Instances that fail, as they start, while they serve and in a trial: a clear reason in bounded time, and nothing left."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml

import has.gateway.service as service_module
import has.trial.play as play_module
from has.core.deployment import Deployment
from has.core.trial import TrialPlan, TrialState
from has.core.workload import Workload
from has.engine.sizes import Sizes
from has.engine.vllm import upkeep as upkeep_module
from has.engine.vllm import watch as watch_module
from has.engine.vllm.fleet import Fleet
from has.engine.vllm.install import installed
from has.engine.vllm.launch import Engine
from has.engine.vllm.profile import profile_engine
from has.engine.vllm.serve import open_service
from has.engine.vllm.upkeep import upkeep
from has.errors import HasError, RunError
from has.gateway.job import Job
from has.sim.draw import draw_requests
from has.trial.engine import EngineExecutor
from tests.engine import stand_in
from tests.engine.processes import SHM, children, left, listens
from tests.engine.test_workers import png

SIZES = Sizes(256, 256, 1024, {"image": 1})


@pytest.fixture
def model(tmp_path, monkeypatch) -> str:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("HAS_VLLM", str(stand_in.install(tmp_path)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("STAND_IN_NOW", str(tmp_path / "now"))
    return stand_in.model(tmp_path)


def deployment(model: str, **alloc: int) -> Deployment:
    alloc = {"encode": 1, "prefill": 1, "decode": 1} | alloc
    data = {
        "version": 1,
        "model": model,
        "topology": "disaggregated",
        "gpus": sum(alloc.values()),
        "alloc": alloc,
    }
    data |= {"encode_batch": 2, "prefill_offload": 1.0, "max_wait_ms": 20.0}
    return Deployment.model_validate(data | {"slo": {"ttft_ms": 2000.0, "tpot_ms": 200.0}})


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("oom", "ended while it started .status 1.: torch.OutOfMemoryError: CUDA out of memory"),
        (
            "killed",
            "ended while it started .status -9.: killed by SIGKILL, which the kernel does where memory ends",
        ),
        ("usage", "ended while it started .status 2.: unrecognized arguments: --mm-encoder-only"),
        ("port", "cannot start: .*Address already in use"),
        ("silent", "not ready after 5 s: INFO loading weights, 1 of 100"),
    ],
)
def test_one_that_does_not_start_gives_its_reason_and_ends_the_others(
    model, monkeypatch, fault, reason
) -> None:
    monkeypatch.setenv("STAND_IN", json.dumps({"decode": fault}))
    fleet = Fleet(installed(), model, 3, swappable=False, ready_s=5.0)
    groups = []
    start = fleet.launcher.start
    monkeypatch.setattr(
        fleet.launcher, "start", lambda starts: [e for e in start(starts) if groups.append(e.group) or True]
    )
    try:
        began = time.monotonic()
        with pytest.raises(RunError, match=f"d0-.*{reason}") as raised:
            fleet.arrange(fleet.plan(deployment(model), SIZES))
        assert time.monotonic() - began < 30
    finally:
        fleet.close()
    assert len(groups) == 3
    assert left(groups) == []
    log = Path(str(raised.value.mend).removeprefix("its log is "))
    assert "INFO loading" in log.read_text(), "the log outlives the fleet"


@pytest.mark.parametrize("failures", [0, 2, 3])
def test_one_that_dies_while_it_serves_is_said_and_started_anew(model, monkeypatch, failures) -> None:
    """Up to three times: one start that fails loses nothing for good."""
    comes_back = failures < len(upkeep_module.PAUSES_S)
    monkeypatch.setattr(upkeep_module, "PAUSES_S", (0.0, 0.01, 0.02))
    monkeypatch.setattr(watch_module, "HEALTH_S", 0.05)
    monkeypatch.setattr(service_module, "REPLACED_S", 0.1)
    plan = deployment(model)
    fleet = Fleet(installed(), model, 3, swappable=False, ready_s=20.0)
    said: list[str] = []
    seen_dead, revive = threading.Event(), fleet.revive
    starts = []

    def start_anew(engine: Engine) -> None:
        starts.append(engine)
        monkeypatch.setenv("STAND_IN", json.dumps({"decode": "oom"} if len(starts) <= failures else {}))
        assert seen_dead.wait(20)
        revive(engine)

    monkeypatch.setattr(fleet, "revive", start_anew)

    async def main() -> None:
        urls = fleet.arrange(fleet.plan(plan, SIZES))
        service, workers = await open_service(
            plan, urls, model=model, name=model, media_rate=None, online=True, tap=upkeep(fleet, said.append)
        )

        async def ask() -> str:
            return "".join([event.text async for event in await service.submit(Job("hello", max_tokens=3))])

        async def until(condition: Callable[[], bool]) -> None:
            async with asyncio.timeout(20):
                while not condition():
                    await asyncio.sleep(0.02)

        try:
            assert await ask() == "t0 t1 t2 "
            engine = fleet.engine_at(urls.decode[0])
            assert engine is not None
            os.killpg(engine.group, signal.SIGKILL)
            await until(lambda: service.not_ready() is not None)
            with pytest.raises(HasError, match="no living worker for decode"):
                await service.submit(Job("hello", max_tokens=3))
            seen_dead.set()
            if comes_back:
                await until(lambda: service.not_ready() is None)
                assert await ask() == "t0 t1 t2 "
            else:
                await until(lambda: said[-1].endswith("is given up"))
        finally:
            service.stop("over")
            await workers.aclose()

    try:
        asyncio.run(main())
    finally:
        fleet.close()
    assert re.match(
        r"decode 0 is lost: killed by SIGKILL.*; its log is .*/vllm-logs/d0\.log; starting it anew$",
        said[0],
    ), said
    assert len(said) == 1 + failures
    for line in said[1:]:
        assert re.match(r"decode 0 does not come back: .*torch\.OutOfMemoryError: CUDA out of memory", line)
    assert comes_back or said[-1].endswith("; it was started anew 3 times, and is given up")


WORKLOAD = {
    "version": 1,
    "arrivals": {"process": "constant", "rate": 20.0},
    "requests": [{"modality": "image", "media_tokens": 64, "prompt_tokens": 20, "output_tokens": 4}],
}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("dies", "died in the trial .decode 0.*killed by SIGKILL"),
        ("sick", "died in the trial .(prefill|decode) 0, .*(503|engine has died)"),
        ("hang", "nothing happened for"),
        ("abort", "every request failed: .*the engine ended it .abort."),
    ],
)
def test_a_fault_fails_its_trial_alone(model, tmp_path, monkeypatch, fault, reason) -> None:
    """What is dead, says that it is dead, or hangs and says that it is well: the next trial meets none of it."""
    monkeypatch.setattr(play_module, "STUCK_S", 1.0)
    monkeypatch.setenv("STAND_IN", json.dumps({"language": fault}))
    now = tmp_path / "now"
    plan = deployment(model)
    requests = draw_requests(Workload.model_validate(WORKLOAD), rate=20.0, requests=12, seed=0)
    trial = TrialPlan(plan, requests, 20.0, plan.slo)

    def meddle(fleet: Fleet) -> None:
        if not meddled:
            meddled.append(fault)
            if fault == "dies":
                for engine in fleet.launcher.engines:
                    if engine.name.startswith("d0"):
                        os.killpg(engine.group, signal.SIGKILL)
            else:
                now.touch()

    meddled: list[str] = []
    executor = EngineExecutor(model, 3, SIZES, found=installed(), on_start=meddle)
    try:
        failed = executor.run(trial)
        assert (failed.state, failed.figures) == (TrialState.FAILED, None)
        assert re.search(reason, failed.reason or ""), failed.reason
        now.unlink(missing_ok=True)
        monkeypatch.setenv("STAND_IN", "{}")
        began = executor.fleet.started
        done = executor.run(trial)
        anew = {"dies": 1, "sick": 0, "hang": 3, "abort": 0}[fault]  # the sick have recovered by now
        assert executor.fleet.started == began + anew, "only what cannot be used is started anew"
        assert done.state == TrialState.COMPLETE, done.reason
        assert done.figures is not None
        assert done.figures["completed"] == 12
    finally:
        executor.close()


def test_a_profile_is_not_made_of_answers_that_were_cut_short(model, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("STAND_IN", json.dumps({"language": "abort"}))
    (tmp_path / "now").touch()
    with pytest.raises(RunError, match=r"did not finish its answer: the engine ended it .abort."):
        profile_engine(installed(), model, batches=[1], tokens=[64])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_deploy_ends_everything_it_started(model, tmp_path, number) -> None:
    """Processes, ports and shared memory."""
    best = deployment(model, decode=2).model_dump(mode="json", exclude_none=True)
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(best))
    words = [sys.executable, "-m", "has", "deploy", "best.yaml", "--engine", "vllm", "--port", "0", "--json"]
    serving = subprocess.Popen(
        words,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert serving.stdout is not None
    try:
        url = json.loads(serving.stdout.readline())["url"]
        started = children(serving.pid)
        assert len(started) == 5, "four instances and the reaper"
        image = "data:image/png;base64," + base64.b64encode(png()).decode()
        content = [
            {"type": "image_url", "image_url": {"url": image}},
            {"type": "text", "text": "what is it?"},
        ]
        body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 3}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20, trust_env=False).json()
        assert answer["choices"][0]["message"]["content"] == "t0 t1 t2 "
        serving.send_signal(number)
        assert serving.wait(30) == 0
    finally:
        serving.kill()
        serving.wait()
        serving.stdout.close()
    assert left([child.group for child in started]) == []
    ports = [child.port for child in started if child.port is not None]
    assert not any(map(listens, [*ports, int(url.rpartition(":")[2])]))
    commands = "".join(word for child in started for word in child.words)
    assert "has-vllm-" in commands
    assert not [folder for folder in SHM.glob("has-vllm-*") if str(folder) in commands]

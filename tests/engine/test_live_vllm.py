"""Real vLLM on the CPU behind our gateway: the monolith's texts, the encoder cache used, trials, a search, a kill.

Minutes: every instance takes some twenty seconds to come up.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml
from PIL import Image

from has.core.deployment import Deployment
from has.core.trial import TrialPlan, TrialState
from has.core.workload import Workload
from has.engine.sizes import Sizes
from has.engine.vllm.fleet import Fleet
from has.engine.vllm.install import installed
from has.engine.vllm.metrics import look
from has.engine.vllm.reaper import alive
from has.engine.vllm.serve import open_service
from has.gateway.job import Job, MediaBytes
from has.sim.draw import draw_requests
from has.trial.engine import EngineExecutor
from tests.engine.engines import VLLM, needs_engines
from tests.engine.tiny_vlm import make

pytestmark = needs_engines
SLO = {"ttft_ms": 5000.0, "tpot_ms": 500.0}
SIZES = Sizes(256, 512, 1024, {"image": 2})
QUESTION = "what is in this image?"
TOKENS = 12
WORKLOAD = {
    "version": 1,
    "name": "tiny",
    "arrivals": {"process": "poisson", "rate": 2.0},
    "requests": [
        {
            "modality": "image",
            "media_tokens": {"choice": {64: 0.7, 16: 0.3}},
            "prompt_tokens": {"uniform": [20, 40]},
            "output_tokens": {"uniform": [4, 10]},
        }
    ],
    "slo": SLO | {"attainment": 0.9},
}


@pytest.fixture(scope="module", autouse=True)
def _vllm():  # type: ignore[no-untyped-def]
    os.environ["HAS_VLLM"] = str(VLLM)
    yield
    del os.environ["HAS_VLLM"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:  # type: ignore[no-untyped-def]
    return str(make(tmp_path_factory.mktemp("model") / "tiny-qwen2_5-vl"))


@pytest.fixture(scope="module")
def fleet(model, tmp_path_factory):  # type: ignore[no-untyped-def]
    made = Fleet(installed(), model, 4, logs=tmp_path_factory.mktemp("logs"), ready_s=400, say=print)
    yield made
    groups = [engine.group for engine in made.launcher.engines]
    made.close()
    assert not any(map(alive, groups)), "instances outlive their fleet"
    assert not made.folder.exists()


def deployment(model: str, **alloc: int) -> Deployment:
    topology = "monolithic" if "all" in alloc else "e_pd" if "prefill_decode" in alloc else "disaggregated"
    data = {
        "version": 1,
        "model": model,
        "topology": topology,
        "gpus": sum(alloc.values()),
        "alloc": alloc,
        "slo": SLO,
    }
    if topology != "monolithic":
        data |= {"encode_batch": 4, "max_wait_ms": 200.0}
    if topology == "disaggregated":
        data |= {"prefill_offload": 1.0}
    return Deployment.model_validate(data)


def png(seed: int, width: int = 224) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (width, width, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


PICTURES = [(1, (224,)), (2, (112,)), (3, (224, 112)), (4, ())]
"""(seed, widths of the images of a request)."""


def job(seed: int, widths: tuple[int, ...]) -> Job:
    media = tuple(MediaBytes("image", png(10 * seed + i, w), "image/png") for i, w in enumerate(widths))
    return Job(QUESTION, media, max_tokens=TOKENS, ignore_eos=True)


async def texts_through_gateway(
    fleet: Fleet, plan: Deployment
) -> tuple[list[str], list[int], dict[str, dict[str, float]]]:
    """Answers to all pictures, at once; their prompt tokens; and by how much the instances' counters rose."""
    urls = fleet.arrange(fleet.plan(plan, SIZES))
    names = {f"{pool}{i}": url for pool, i, url in urls.all()}
    before = await look(names)
    service, workers = await open_service(
        plan, urls, model=plan.model, name=fleet.name, media_rate=2.0, online=False, ec_dir=fleet.ec_dir
    )

    async def one(asked: Job) -> tuple[str, int]:
        events = [event async for event in await service.submit(asked)]
        assert len(events) == TOKENS
        return "".join(event.text for event in events), events[-1].prompt_tokens

    try:
        answers = await asyncio.gather(*(one(job(*picture)) for picture in PICTURES))
    finally:
        service.stop("over")
        await workers.aclose()
    after = await look(names)
    rose = {
        name: {counter: value - before[name].get(counter, 0.0) for counter, value in page.items()}
        for name, page in after.items()
    }
    return [text for text, _ in answers], [count for _, count in answers], rose


async def texts_of_the_monolith(fleet: Fleet, model: str) -> tuple[list[str], list[int]]:
    """What one instance answers when it is asked directly, without any gateway."""
    from has.engine.vllm.protocol import messages

    plan = deployment(model, all=1)
    urls = fleet.arrange(fleet.plan(plan, SIZES))
    texts, counts = [], []
    async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
        for picture in PICTURES:
            asked = job(*picture)
            prompt = messages(asked, [f"mono-{picture[0]}-{i}" for i in range(len(asked.media))], None)
            body = {
                "model": fleet.name,
                "messages": prompt,
                "max_tokens": TOKENS,
                "temperature": 0,
                "ignore_eos": True,
            }
            answer = (await client.post(f"{urls.mixed[0]}/v1/chat/completions", json=body)).json()
            assert "choices" in answer, answer
            texts.append(answer["choices"][0]["message"]["content"])
            counts.append(answer["usage"]["prompt_tokens"])
    return texts, counts


def test_texts_are_the_monoliths_and_embeddings_are_used(fleet, model) -> None:
    alone, counted = asyncio.run(texts_of_the_monolith(fleet, model))
    assert len(set(alone)) == len(alone), "the images change the answers"
    for encode in (1, 2):
        texts, counts, pages = asyncio.run(
            texts_through_gateway(fleet, deployment(model, encode=encode, prefill=1, decode=1))
        )
        assert texts == alone, f"{encode}E1P1D"
        assert counts == counted
        looked_at = "vllm:mm_cache_queries_total"
        assert sum(page[looked_at] for name, page in pages.items() if name.startswith("encode")) >= 4
        # Prefill never saw a pixel: it could only answer so with the encoders' embeddings.
        assert pages["prefill0"][looked_at] == pages["decode0"][looked_at] == 0
        assert list(fleet.ec_dir.rglob("*.safetensors")) == [], (
            "embeddings of requests that are over are gone"
        )


def test_a_trial_has_figures_and_a_killed_instance_fails_it_alone(fleet, model) -> None:
    workload = Workload.model_validate(WORKLOAD)
    requests = draw_requests(workload, rate=2.0, requests=24, seed=1)
    plan = deployment(model, encode=1, prefill=1, decode=1)

    def kill_decode(running: Fleet) -> None:
        if not killed:
            engine = running.engine_at(decoding[0])
            assert engine is not None
            killed.append(engine.name)
            os.killpg(engine.group, signal.SIGKILL)

    killed: list[str] = []
    decoding = fleet.arrange(fleet.plan(plan, SIZES)).decode
    executor = EngineExecutor(model, 3, SIZES, fleet=fleet, on_start=kill_decode)
    trial = TrialPlan(plan, requests, 2.0, plan.slo)
    failed = executor.run(trial)
    assert (failed.state, failed.figures) == (TrialState.FAILED, None)
    assert "died in the trial (decode 0" in (failed.reason or "")
    began = fleet.started
    done = executor.run(trial)
    assert fleet.started == began + 1, "only what had died is started anew"
    assert done.state == TrialState.COMPLETE, done.reason
    assert done.figures is not None
    assert done.figures["completed"] == 24
    assert done.figures["stages"]["encode"]["batches"] >= 6
    assert done.figures["stages"]["prefill_remote"]["batches"] > 0
    assert 0 < done.figures["stages"]["decode"]["utilisation"] <= 1
    assert done.telemetry["engine"]["decode-0"]["generation_tokens"] == requests.output_tokens.sum()


def test_search_on_vllm_writes_best(model, tmp_path) -> None:
    """At least four configurations, with a profile of vLLM itself, measured first."""
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(WORKLOAD))
    space = {
        "version": 1,
        "alloc": {"encode": [1, 1]},
        "encode_batch": [1, 4],
        "topologies": ["disaggregated", "e_pd", "monolithic"],
    }
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(space))
    words = [
        "search",
        "--on",
        "vllm",
        "--model",
        model,
        "--gpus",
        "3",
        "--workload",
        "w.yaml",
        "--space",
        "space.yaml",
    ]
    words += ["--rate", "2", "--trials", "4", "--requests", "16", "--sampler", "grid", "--no-prune", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "has", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr[-3000:]
    answer = json.loads(done.stdout)
    run = Path(tmp_path / answer["run"])
    trials = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    configurations = {
        json.dumps(t["deployment"]["alloc"]) + str(t["deployment"].get("encode_batch")) for t in trials
    }
    assert len(configurations) >= 4
    assert any(t["state"] == "complete" for t in trials)
    assert yaml.safe_load((tmp_path / "best.yaml").read_text())["model"] == model
    profile = next(tmp_path.glob("profile-*-vllm.parquet"))
    from has.files.profile import load_profile

    assert load_profile(profile).metadata.engine == "vllm"


def test_deploy_serves_and_leaves_nothing(model, tmp_path) -> None:
    plan = deployment(model, encode=1, prefill=1, decode=1).model_dump(mode="json", exclude_none=True)
    (tmp_path / "d.yaml").write_text(yaml.safe_dump(plan))
    words = ["deploy", "d.yaml", "--engine", "vllm", "--port", "0", "--json"]
    serving = subprocess.Popen(
        [sys.executable, "-m", "has", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert serving.stdout is not None
    url = json.loads(serving.stdout.readline())["url"]
    children = subprocess.run(["pgrep", "-P", str(serving.pid)], capture_output=True, text=True, check=True)
    groups = [int(pid) for pid in children.stdout.split()]
    assert len(groups) >= 3
    import base64

    image = "data:image/png;base64," + base64.b64encode(png(1)).decode()
    content = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": QUESTION}]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 8,
        "ignore_eos": True,
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 8
    metrics = httpx.get(f"{url}/metrics", trust_env=False).text
    assert 'has:stage_service_seconds_count{model_name="' in metrics
    serving.send_signal(signal.SIGINT)
    serving.wait(60)
    serving.stdout.close()
    until = time.monotonic() + 20
    while any(map(alive, groups)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(alive, groups))

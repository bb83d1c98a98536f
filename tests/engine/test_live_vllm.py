"""Real vLLM on the CPU behind our gateway: the monolith's texts, the encoder cache used, trials, a search, a kill.

Minutes: every instance takes some twenty seconds to come up.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml
from PIL import Image

from has.core.deployment import Deployment
from has.engine.sizes import Sizes
from has.engine.vllm.fleet import Fleet
from has.engine.vllm.install import installed
from has.engine.vllm.metrics import look, parse
from has.engine.vllm.reaper import alive, segments
from has.engine.vllm.serve import open_service
from has.files.profile import load_profile
from has.gateway.job import Job, MediaBytes
from tests.engine.engines import VLLM, needs_engines
from tests.engine.processes import SHM, children, left, listens
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
    # The largest first: what is smaller then runs on instances that are there.
    through = {
        encode: asyncio.run(
            texts_through_gateway(fleet, deployment(model, encode=encode, prefill=1, decode=1))
        )
        for encode in (2, 1)
    }
    alone, counted = asyncio.run(texts_of_the_monolith(fleet, model))
    assert len(set(alone)) == len(alone), "the images change the answers"
    for encode, (texts, counts, pages) in through.items():
        assert texts == alone, f"{encode}E1P1D"
        assert counts == counted
        looked_at = "vllm:mm_cache_queries_total"
        assert sum(page[looked_at] for name, page in pages.items() if name.startswith("encode")) >= 4
        # Prefill never saw a pixel: it could only answer so with the encoders' embeddings.
        assert pages["prefill0"][looked_at] == pages["decode0"][looked_at] == 0
        # Nor is any embedding left of requests that are over.
    assert list(fleet.ec_dir.rglob("*.safetensors")) == []


SEARCH = "search --on vllm --gpus 3 --workload w.yaml --space space.yaml --sampler grid --no-prune"
SIZE = "--rate 3 --trials 5 --requests 12"
SPACE = {
    "version": 1,
    "alloc": {"encode": [1, 1]},
    "encode_batch": [1, 2, 4],
    "topologies": ["disaggregated", "e_pd"],
}


def kill_one_in_a_trial(searching: subprocess.Popen[str], journal: Path) -> None:
    """Once a trial has finished, SIGKILL to the first language instance that makes tokens: the next is under way."""
    while not (journal.is_file() and journal.read_bytes().count(b"\n")):
        assert searching.poll() is None, "no trial has finished"
        time.sleep(0.1)
    made: dict[int, float] = {}
    while searching.poll() is None:
        for child in children(searching.pid):
            if child.port is None or "--mm-encoder-only" in child.words:
                continue
            with suppress(httpx.HTTPError):
                page = httpx.get(f"http://127.0.0.1:{child.port}/metrics", trust_env=False, timeout=10).text
                now = parse(page).get("vllm:generation_tokens_total", 0.0)
                if now - made.setdefault(child.group, now) >= 4:
                    os.killpg(child.group, signal.SIGKILL)
                    return
        time.sleep(0.1)
    raise AssertionError("the search ended before any instance could be killed")


@pytest.fixture(scope="module")
def searched(model, tmp_path_factory) -> Path:  # type: ignore[no-untyped-def]
    """A folder in which a search ran on vLLM while one of its instances was killed."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "w.yaml").write_text(yaml.safe_dump(WORKLOAD))
    (folder / "space.yaml").write_text(yaml.safe_dump(SPACE))
    words = [*SEARCH.split(), *SIZE.split(), "--model", model, "--run", "run", "--json"]
    with (folder / "out.json").open("w") as out, (folder / "said").open("w") as said:
        searching = subprocess.Popen(
            [sys.executable, "-m", "has", *words], cwd=folder, stdout=out, stderr=said, text=True
        )
        try:
            kill_one_in_a_trial(searching, folder / "run" / "trials.jsonl")
            searching.wait()
        finally:
            searching.terminate()
            searching.wait()
    assert searching.returncode in (0, 1), (folder / "said").read_text()[-3000:]
    return folder


def test_a_search_tries_configurations_and_outlives_a_killed_instance(searched, model) -> None:
    """With a profile of vLLM itself, measured first; the killed instance's trial has failed, and it alone."""
    trials = [json.loads(line) for line in (searched / "run" / "trials.jsonl").read_text().splitlines()]
    configurations = {
        json.dumps(t["deployment"]["alloc"]) + str(t["deployment"]["encode_batch"]) for t in trials
    }
    assert len(configurations) >= 4
    failed = [t for t in trials if t["state"] == "failed"]
    assert len(failed) == 1
    assert "died in the trial" in failed[0]["reason"]
    complete = [t for t in trials if t["state"] == "complete"]
    assert len(complete) == len(trials) - 1
    assert any(t["number"] > failed[0]["number"] for t in complete), "the search went on"
    for trial in complete:
        assert trial["figures"]["completed"] > 0
        assert trial["figures"]["failed"] == 0
        assert trial["figures"]["stages"]["encode"]["batches"] > 0
    assert yaml.safe_load((searched / "best.yaml").read_text())["model"] == model
    assert json.loads((searched / "out.json").read_text())["best"]["model"] == model
    assert load_profile(next(searched.glob("profile-*-vllm.parquet"))).metadata.engine == "vllm"


def test_deploy_serves_the_best_and_leaves_nothing(searched, model) -> None:
    """An image chat, 100 requests at once of which none is lost, SIGTERM; no process, port or shared memory is left."""
    plan = yaml.safe_load((searched / "best.yaml").read_text()) | {"max_queue": 6}
    (searched / "served.yaml").write_text(yaml.safe_dump(plan))
    words = ["deploy", "served.yaml", "--engine", "vllm", "--port", "0", "--json"]
    serving = subprocess.Popen(
        [sys.executable, "-m", "has", *words], cwd=searched, stdout=subprocess.PIPE, text=True
    )
    assert serving.stdout is not None
    try:
        url = json.loads(serving.stdout.readline())["url"]
        started = children(serving.pid)
        assert len(started) == 4, "three instances and the reaper"
        shared = set().union(*(segments(child.group) for child in started))
        assert shared, "engines talk through shared memory"
        answer = asyncio.run(ask(url, body_of(model, 8)))
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 8
        assert (
            'has:stage_service_seconds_count{model_name="'
            in httpx.get(f"{url}/metrics", trust_env=False).text
        )

        async def flood() -> list[int]:
            answers = await asyncio.gather(*(ask(url, body_of(model, 2)) for _ in range(100)))
            return [answer.status_code for answer in answers]

        statuses = asyncio.run(flood())
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= 6
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0
    finally:
        serving.terminate()
        serving.wait()
        serving.stdout.close()
    assert left([child.group for child in started], 20) == []
    ports = [child.port for child in started if child.port is not None]
    commands = [word for child in started for word in child.words]
    assert not any(map(listens, [*ports, int(url.rpartition(":")[2])]))
    assert not any(path.exists() for path in shared)
    assert not [folder for folder in SHM.glob("has-vllm-*") if str(folder) in "".join(commands)]


def body_of(model: str, tokens: int) -> dict[str, object]:
    image = "data:image/png;base64," + base64.b64encode(png(1, 112)).decode()
    content = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": QUESTION}]
    messages = [{"role": "user", "content": content}]
    return {"model": model, "messages": messages, "max_tokens": tokens, "ignore_eos": True}


async def ask(url: str, body: dict[str, object]) -> httpx.Response:
    async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
        return await client.post(f"{url}/v1/chat/completions", json=body)

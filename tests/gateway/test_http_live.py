"""The HTTP API and the bench over the real runtime: worker processes, real tiny models."""

from __future__ import annotations

import base64
import io
import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import openai
import psutil
import pytest
from PIL import Image

from has.core.requests import Requests
from has.core.slo import Slo
from has.trial.url import bench_url
from tests.runtime.test_pool import gone

pytestmark = pytest.mark.live

SERVE = """
import sys
from has.core.deployment import Deployment
from has.runtime import serve
from has.runtime.pool import WarmPool
from tests.runtime.live import table

serve._warm_pool = lambda plan, share, say: WarmPool(plan.model, plan.gpus, nominal=table(plan.model))
serve.serve(Deployment.model_validate_json(sys.argv[1]), port=0, on_ready=lambda url: print(url, flush=True))
"""
DEPLOYMENT = {
    "version": 1,
    "model": "tiny-image",
    "topology": "disaggregated",
    "gpus": 3,
    "alloc": {"encode": 1, "prefill": 1, "decode": 1},
    "encode_batch": 2,
    "prefill_offload": 0.5,
    "slo": {"ttft_ms": 2000, "tpot_ms": 100},
}


class Server:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, json.dumps(DEPLOYMENT)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://"), "the service did not come up"
        self.children = [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]


@pytest.fixture(scope="module")
def server():
    server = Server()
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


@pytest.fixture
def url(server):
    return server.url


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def picture(colour) -> dict:
    buffer = io.BytesIO()
    Image.new("RGB", (224, 224), colour).save(buffer, "PNG")
    return {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()},
    }


def ask(*parts, **fields) -> dict:
    content = [*parts, {"type": "text", "text": "What is this?"}]
    return {
        "model": "tiny-image",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 8,
        **fields,
    }


def running(url: str) -> float:
    return float(re.search(r"has:num_requests_running\{[^}]*\} (\S+)", httpx.get(f"{url}/metrics").text)[1])


def test_streamed_and_whole_say_the_same(url, client):
    assert httpx.get(f"{url}/ready").status_code == 200
    for parts in ((), (picture("red"),), (picture("red"), picture("blue"))):
        whole = client.chat.completions.create(**ask(*parts))
        chunks = list(
            client.chat.completions.create(**ask(*parts), stream=True, stream_options={"include_usage": True})
        )
        text = "".join(chunk.choices[0].delta.content for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content != ""
        assert chunks[-1].usage == whole.usage
        assert whole.usage.completion_tokens == 8
        # begin, role, end, assistant; 13 characters; two marks around the 64 tokens of each image
        assert whole.usage.prompt_tokens == 4 + 13 + len(parts) * 66


def test_stop_cuts_where_the_text_says(client):
    text = client.chat.completions.create(**ask(picture("green"))).choices[0].message.content
    stop = text[2:4]
    cut = client.chat.completions.create(**ask(picture("green")), stop=stop)
    assert cut.choices[0].message.content == text[: text.find(stop)]
    assert cut.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("part", "where"),
    [
        (
            {
                "type": "input_audio",
                "input_audio": {"data": base64.b64encode(b"RIFF").decode(), "format": "wav"},
            },
            "input_audio",
        ),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}, "video_url"),
    ],
)
def test_media_that_the_model_does_not_take_are_named(client, part, where):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ask(part))
    assert where in caught.value.param


def test_a_client_that_leaves_frees_its_place(url, client):
    with client.chat.completions.create(**ask(max_tokens=2000), stream=True) as stream:
        next(iter(stream))
        assert running(url) == 1
    until = time.monotonic() + 30
    while running(url) and time.monotonic() < until:
        time.sleep(0.05)
    assert running(url) == 0


def test_the_bench_gets_what_it_asks_for(url):
    wanted = Requests.from_rows(
        {
            "arrival_s": 0.4 * i,
            "modality": ("text", "image")[i % 2],
            "items": i % 2,
            "media_tokens": 64 * (i % 2),
            "prompt_tokens": 40 + i,
            "output_tokens": 2 + i,
        }
        for i in range(8)
    )
    run = bench_url(url, wanted)
    assert run.faults == {}
    assert run.figures(Slo(ttft_ms=60_000, tpot_ms=60_000))["attainment"] == 1.0
    for column in ("prompt_tokens", "media_tokens", "output_tokens"):
        assert np.array_equal(getattr(run.records.requests, column), getattr(wanted, column))


def test_sigterm_ends_what_is_running_first(server, client):
    """The last of this file: the server is gone then."""
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(client.chat.completions.create(**ask(max_tokens=100)))
    )
    asking.start()
    while asking.is_alive() and not running(server.url):
        pass
    server.process.send_signal(signal.SIGTERM)
    _, said = server.process.communicate(timeout=60)
    asking.join()
    assert server.process.returncode == 0, said
    assert answers[0].usage.completion_tokens == 100
    assert "draining" in said
    assert "Traceback" not in said
    assert gone(server.children)

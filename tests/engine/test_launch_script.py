"""The launch script of an export, run: stand-ins for `vllm`, real processes and the real gateway."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from has.engine.export import render, write
from has.engine.place import LEAST_BUDGET, make_plan
from has.engine.sizes import Sizes
from tests.engine import stand_in
from tests.engine.test_faults import deployment
from tests.engine.test_workers import png

ROOT = Path(__file__).parents[2]
SIZES = Sizes(256, 256, 1024, {"image": 1})


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@dataclass
class Launched:
    url: str
    model: str
    shared: Path
    own: Path

    def ask(self, image: bytes) -> httpx.Response:
        content = [
            {
                "type": "image_url",
                "image_url": {"url": "data:image/png;base64," + base64.b64encode(image).decode()},
            },
            {"type": "text", "text": "what is it?"},
        ]
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], "max_tokens": 3}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=20, trust_env=False)


@pytest.fixture(scope="module")
def launched(tmp_path_factory) -> Iterator[Launched]:  # type: ignore[no-untyped-def]
    """1E1P1D, launched from another folder, with a user's own folder of files for the embeddings."""
    folder = tmp_path_factory.mktemp("launched")
    programs = stand_in.install(folder).parent
    (programs / "has").write_text(f'#!/bin/sh\nexec {sys.executable} -m has "$@"\n')
    (programs / "has").chmod(0o755)
    model = stand_in.model(folder)
    made = make_plan(deployment(model), "vllm", SIZES)
    front, *ports = free_ports(4)
    instances = tuple(
        replace(one, ports=one.ports | {"http": port})
        for one, port in zip(made.instances, ports, strict=True)
    )
    write(render(replace(made, instances=instances, front_port=front)), folder / "out")
    shared = folder / "shared"
    own = shared / f"has-ec-127.0.0.1-{front}"
    (own / "of-an-earlier-run").mkdir(parents=True)
    (shared / "mine.txt").write_text("mine")
    running = subprocess.Popen(
        ["bash", folder / "out" / "launch.sh"],
        cwd=shared,
        env={
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "EC_DIR": str(shared),
        },
        start_new_session=True,
    )
    try:
        url = f"http://127.0.0.1:{front}"
        until = time.monotonic() + 60
        while True:
            assert running.poll() is None, (folder / "out" / "logs" / "gateway.log").read_text()
            try:
                if httpx.get(f"{url}/ready", trust_env=False).status_code == 200:
                    break
            except httpx.HTTPError:
                assert time.monotonic() < until
            time.sleep(0.1)
        yield Launched(url, model, shared, own)
        running.send_signal(signal.SIGTERM)
        running.wait(60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)


def test_it_serves_from_wherever_it_is_called(launched) -> None:
    answer = launched.ask(png()).json()
    assert answer["choices"][0]["message"]["content"] == "t0 t1 t2 "


def test_embeddings_go_and_a_users_files_stay(launched) -> None:
    """Of a shared folder only our own part is cleared: of an earlier run at the start, of a request when it is over."""
    assert launched.ask(png()).status_code == 200
    until = time.monotonic() + 20
    while list(launched.own.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    assert list(launched.own.iterdir()) == []
    assert (launched.shared / "mine.txt").read_text() == "mine"


def test_a_medium_that_no_encoder_takes_is_refused_by_the_knobs_name(launched) -> None:
    refused = launched.ask(png(1680, 1680))
    assert refused.status_code == 400
    assert f"max_num_batched_tokens = {LEAST_BUDGET}" in refused.text


def test_only_the_first_node_clears_and_only_where_something_is_encoded() -> None:
    for asked in (deployment("a/model"), deployment("a/model").model_copy(update={"gpus_per_node": 1})):
        text = render(make_plan(asked, "vllm", SIZES))[0].text
        (line,) = [line for line in text.splitlines() if "rm -rf" in line]
        assert line.startswith('[ "$NODE" != 0 ] || ')
    assert "${EC_DIR:?set EC_DIR" in text, "no memory of one node is another's"
    fields = {"alloc": {"all": 1}, "topology": "monolithic", "gpus": 1}
    data = deployment("a/model").model_dump(include={"version", "model", "slo"}) | fields
    text = "".join(one.text for one in render(make_plan(type(asked).model_validate(data), "vllm", SIZES)))
    assert "rm -rf" not in text
    assert "EC_DIR" not in text

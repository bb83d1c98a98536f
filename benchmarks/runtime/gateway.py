"""CPU time that the gateway costs: of a request, and of a token of its stream.

    python benchmarks/runtime/gateway.py        about 1 minute

A served deployment whose workers answer at once; 50 streams at a time, of few and of many tokens. CPU time of the
process, as cost of a request and of a token (bounds: 2 ms and .2 ms), so that other processes hardly matter. Messages to
workers are not in it; one costs some .02 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
import psutil

from has.core.deployment import Deployment
from has.gateway.port import (
    Admit,
    Command,
    Encode,
    Encoded,
    Event,
    Payload,
    Prefill,
    Prefilled,
    Preprocess,
    Preprocessed,
    Stepped,
)

MODEL = "tiny-image"
ROUNDS = 5
"""Of all kinds in turns; the median is told: the speed of a shared host differs from second to second."""
SHORT, FEW = 400, 2
LONG, MANY = 100, 102
"""Streams of few and of many tokens, and of how many."""
REQUEST_BOUND_MS, TOKEN_BOUND_MS = 2.0, 0.2


class InstantWorkers:
    """Workers that are done when they are told (`has.gateway.port.WorkerPort`); every request decodes in steps of STEP_S."""

    STEP_S = 0.02

    def __init__(self) -> None:
        self._handle: Callable[[Event], None] = lambda _: None
        self._payloads: dict[int, Payload] = {}
        self._left: dict[int, int] = {}
        self._stepping = False

    def listen(self, handle: Callable[[Event], None]) -> None:
        self._handle = handle

    def open(self, request: int, payload: Payload) -> None:
        self._payloads[request] = payload

    def retain(self, request: int) -> bool:
        return True

    def close(self, request: int) -> None:
        self._payloads.pop(request, None)
        self._left.pop(request, None)

    def execute(self, command: Command) -> None:
        now_s = time.monotonic()
        match command:
            case Preprocess():
                media = 64 * len(self._payloads[command.request].media)
                self._soon(Preprocessed(command.request, command.server, command.start_s, now_s, media))
            case Encode():
                self._soon(Encoded(command.worker, command.start_s, now_s, 1.0))
            case Prefill():
                tokens = tuple((request, 300) for request in command.requests)
                self._soon(Prefilled(command.remote, command.worker, command.start_s, now_s, 1.0, tokens))
            case Admit():
                self._left[command.request] = self._payloads[command.request].output_tokens - 1
                if not self._stepping:
                    self._stepping = True
                    asyncio.get_running_loop().call_later(self.STEP_S, self._step)

    def _soon(self, event: Event) -> None:
        asyncio.get_running_loop().call_soon(self._handle, event)

    def _step(self) -> None:
        now_s = time.monotonic()
        for request in self._left:
            self._left[request] -= 1
        tokens = tuple((request, 301) for request in self._left)
        ended = tuple(request for request, left in self._left.items() if left <= 0)
        for request in ended:
            del self._left[request]
        self._handle(Stepped(0, now_s - self.STEP_S, now_s, 1.0, tokens, ended))
        self._stepping = bool(self._left)
        if self._stepping:
            asyncio.get_running_loop().call_later(self.STEP_S, self._step)


def serve_instant() -> None:
    """Serve until stopped; says the URL on stdout. Runs in a process of its own."""
    from has.gateway.http import create_app
    from has.gateway.metrics import Metrics
    from has.gateway.scheduler import Scheduler
    from has.gateway.server import http_server, listen
    from has.gateway.service import Service

    deployment = Deployment.model_validate(
        {
            "version": 1,
            "model": MODEL,
            "slo": {"ttft_ms": 2000, "tpot_ms": 150},
            "gpus": 3,
            "topology": "disaggregated",
            "alloc": {"encode": 1, "prefill": 1, "decode": 1},
            "encode_batch": 1,
            "prefill_offload": 0.5,
        }
    )

    async def run() -> None:
        metrics = Metrics(MODEL)
        service = Service(
            Scheduler(deployment), InstantWorkers(), model=MODEL, max_model_len=8192, observer=metrics
        )
        metrics.watch(service.state)
        sock = listen("127.0.0.1", 0)
        print("http://{}:{}".format(*sock.getsockname()[:2]), flush=True)
        await http_server(create_app(service, metrics=metrics, deployment=deployment)).serve(sockets=[sock])

    asyncio.run(run())


def body(tokens: int, png: bytes | None) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": "What is this? " * 8}]
    if png is not None:
        url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
        content.insert(0, {"type": "image_url", "image_url": {"url": url}})
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def streams(url: str, requests: int, tokens: int, png: bytes | None, at_once: int = 50) -> None:
    """`requests` streams of `tokens` tokens, `at_once` at a time; raises where one is not whole."""
    sent = json.dumps(body(tokens, png)).encode()
    turn = asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)

    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:

        async def one() -> None:
            async with (
                turn,
                client.stream(
                    "POST",
                    "/v1/chat/completions",
                    content=sent,
                    headers={"content-type": "application/json"},
                ) as answer,
            ):
                text = (await answer.aread()).decode()
                if text.count('"delta"') != tokens:
                    raise RuntimeError(f"{text.count('delta')} of {tokens} tokens came")

        await asyncio.gather(*(one() for _ in range(requests)))


def gateway() -> list[dict[str, Any]]:
    from has.models.synthetic import media_bytes, synthetic_media

    png = media_bytes("image", synthetic_media("image", MODEL, 1))
    assert isinstance(png, bytes)
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        process = psutil.Process(server.pid)

        def cpu_s(requests: int, tokens: int, medium: bytes | None) -> float:
            before = sum(process.cpu_times()[:2])
            asyncio.run(streams(url, requests, tokens, medium))
            return float(sum(process.cpu_times()[:2]) - before)

        cpu_s(50, 20, png)  # connections, imports, kernels
        kinds = {"text": None, "one image of 224 x 224": png}
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
        for _ in range(ROUNDS):
            for name, medium in kinds.items():
                short_s = cpu_s(SHORT, FEW, medium) / SHORT
                token_s = (cpu_s(LONG, MANY, medium) / LONG - short_s) / (MANY - FEW)
                seen[name].append((short_s - FEW * token_s, token_s))
        return [
            {
                "request": name,
                "request_ms": 1e3 * statistics.median(request_s for request_s, _ in costs),
                "token_ms": 1e3 * statistics.median(token_s for _, token_s in costs),
            }
            for name, costs in seen.items()
        ]
    finally:
        server.terminate()
        server.wait(30)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().serve:
        serve_instant()
        return 0
    costs = gateway()
    print("| request | gateway CPU a request, ms | a streamed token, ms |\n|---|---|---|")
    for row in costs:
        print(f"| {row['request']} | {row['request_ms']:.2f} | {row['token_ms']:.3f} |")
    held = all(row["request_ms"] <= REQUEST_BOUND_MS and row["token_ms"] <= TOKEN_BOUND_MS for row in costs)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

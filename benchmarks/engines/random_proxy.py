"""The proxy to compare with: encode, prefill and decode instances picked at random, one request at a time each.

What engines' example proxies do: all images of a request are encoded at once, one instance an image;
when all have answered, prefill; then decode is streamed. No batching, no queue, no load, no retries. As in vLLM's
own (`disagg_epd_proxy.py`) aiohttp speaks to the instances and uvicorn serves, on uvloop; its log of every request
is left out.

    python benchmarks/engines/random_proxy.py --port 8001 --encode URL,URL --prefill URL --decode URL,URL

`/stages` says what the stages took: [requests, seconds] each, decode until its first bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from has.engine.vllm.client import KEEPALIVE_S
from has.engine.vllm.protocol import PATH, REMOTE_DECODE

MEDIA = {"image_url": "image_embeds"}


def create_app(encode: list[str], prefill: list[str], decode: list[str], seed: int = 0) -> FastAPI:
    rng = random.Random(seed)
    numbers = itertools.count()
    session = uuid.uuid4().hex[:8]  # a name that was used before brings back what was encoded under it
    client: aiohttp.ClientSession

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        nonlocal client
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(600.0), raise_for_status=True
        ) as client:
            yield

    app = FastAPI(lifespan=lifespan)

    async def post(url: str, body: dict[str, Any], name: str) -> dict[str, Any]:
        async with client.post(url + PATH, json=body, headers={"x-request-id": name}) as answer:
            result: dict[str, Any] = await answer.json()
        return result

    stages: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])

    def done(stage: str, since_s: float) -> float:
        now_s = time.monotonic()
        stages[stage][0] += 1
        stages[stage][1] += now_s - since_s
        return now_s

    @app.get("/stages")
    async def seen() -> JSONResponse:
        return JSONResponse(stages)

    @app.get("/v1/models")
    async def models() -> JSONResponse:
        async with client.get(f"{decode[0]}/v1/models") as answer:
            return JSONResponse(await answer.json())

    @app.post(PATH, response_model=None)
    async def chat(request: Request) -> StreamingResponse | JSONResponse:
        body = await request.json()
        name = f"random-{session}-{next(numbers)}"
        parts = [p for m in body["messages"] if isinstance(m["content"], list) for p in m["content"]]
        media = [part for part in parts if part["type"] in MEDIA]
        for i, part in enumerate(media):
            part["uuid"] = f"{name}-{i}"
        handles: dict[str, Any] = {}

        async def encoded(i: int, part: dict[str, Any]) -> None:
            content = [{"role": "user", "content": [dict(part)]}]
            answer = await post(
                rng.choice(encode), {"model": body["model"], "messages": content}, f"{name}-e{i}"
            )
            handles.update(answer["ec_transfer_params"])

        at_s = time.monotonic()
        await asyncio.gather(*(encoded(i, part) for i, part in enumerate(media)))
        at_s = done("encode", at_s)
        for part in media:
            (report,) = [handles[part["uuid"]]]
            kind = MEDIA[part.pop("type")]
            part.pop("image_url")
            grid = report["metadata"]["image_grid_thw"]
            part |= {"type": kind, kind: {"image_grid_thw": grid}}
        first = {k: v for k, v in body.items() if k not in ("stream_options", "max_completion_tokens")}
        first |= {"stream": False, "max_tokens": 1, "kv_transfer_params": REMOTE_DECODE}
        answer = await post(rng.choice(prefill), first | {"ec_transfer_params": handles}, name)
        at_s = done("prefill", at_s)
        last = body | {"kv_transfer_params": answer["kv_transfer_params"]}
        url = rng.choice(decode)
        if not body.get("stream"):
            return JSONResponse(await post(url, last, name))

        async def stream() -> AsyncIterator[bytes]:
            async with client.post(url + PATH, json=last, headers={"x-request-id": name}) as answer:
                pieces = answer.content.iter_any()
                yield await anext(pieces)
                done("first", at_s)
                async for piece in pieces:
                    yield piece

        return StreamingResponse(stream(), media_type="text/event-stream")

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    for pool in ("encode", "prefill", "decode"):
        parser.add_argument(f"--{pool}", required=True, type=lambda text: text.split(","))
    asked = parser.parse_args()
    app = create_app(asked.encode, asked.prefill, asked.decode)
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=asked.port,
        log_level="warning",
        access_log=False,
        loop="uvloop",
        http="httptools",
    )


if __name__ == "__main__":
    main()

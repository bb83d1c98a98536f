"""Thirty images and a little text: decoding, hashing and moving media is the gateway's own work, and part of what clients wait for.

A report from the field had 2.8 s from end to end where the engine said 0.5: fetching media took 0.85 s, hashing them
1.35, and neither was in any figure.
"""

from __future__ import annotations

import asyncio
import base64
import io
import re

import httpx
import numpy as np
import pytest
from PIL import Image

from has.gateway.http import create_app
from has.gateway.metrics import Metrics
from has.runtime.start import open_service
from tests.runtime.live import deployment

pytestmark = pytest.mark.live
MODEL = "tiny-image"
IMAGES = 30
FIRST = re.compile(r"has:time_to_first_token_seconds_sum\{[^}]*\} (\S+)")
SERVED = re.compile(r'has:stage_service_seconds_sum\{[^}]*stage="(\w+)"[^}]*\} (\S+)')


def noise(seed: int) -> str:
    """A PNG of noise, as a data URL."""
    pixels = np.random.default_rng(seed).integers(0, 255, (224, 224, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def test_a_client_sees_the_gateways_own_work_in_its_first_token(pools) -> None:
    pool, metrics = pools(MODEL), Metrics(MODEL)
    images = [{"type": "image_url", "image_url": {"url": noise(i)}} for i in range(IMAGES)]
    body = {
        "model": MODEL,
        "messages": [
            {"role": "user", "content": [*images, {"type": "text", "text": "What are these? " * 4}]}
        ],
        "max_tokens": 2,
    }

    async def run() -> tuple[str, int]:
        # A lone request below B has no gap to be launched by: it needs the age cap, which a served deployment always has.
        plan = deployment(MODEL, max_wait_ms=100)
        service = await open_service(plan, pool, media_rate=None, online=False, observer=metrics)
        app = create_app(service, metrics=metrics)
        try:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://here"
            ) as client:
                answer = await client.post("/v1/chat/completions", json=body, timeout=60)
                answer.raise_for_status()
                return (await client.get("/metrics")).text, answer.json()["usage"]["prompt_tokens"]
        finally:
            service.stop("the test is over")
            await pool.rest()

    shown, prompt_tokens = asyncio.run(run())
    assert prompt_tokens > 64 * IMAGES
    first_s = float(FIRST.findall(shown)[0])
    stages = {stage: float(seconds) for stage, seconds in SERVED.findall(shown)}
    engine_s = stages["encode"] + stages.get("prefill_local", 0.0) + stages.get("prefill_remote", 0.0)
    assert stages["preprocess"] > IMAGES * 0.001
    assert first_s >= stages["preprocess"] + engine_s

"""The page on the HTTP API says what is so: every metric, every bound, every refused field."""

from __future__ import annotations

import re
from pathlib import Path

from has.gateway.limits import MIB, Limits
from has.gateway.metrics import Metrics
from has.gateway.openai_schema import ERROR_TYPES, MOST_BRACKETS, MOST_COMMAS, NEUTRAL
from tests.gateway.queue_service import MODEL, QueueService

PAGE = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()


def test_every_metric_is_listed_and_nothing_else():
    metrics = Metrics(MODEL, QueueService().state)
    exist = {
        family.name + ("_total" if family.type == "counter" else "") for family in metrics.registry.collect()
    }
    assert set(re.findall(r"has:\w+", PAGE)) == exist


def test_the_bounds_are_those_in_force():
    limits = Limits()
    for said in (
        f"| objects and lists, commas in a body | {MOST_BRACKETS:,}, {MOST_COMMAS:,};",
        f"| body | {limits.body_bytes // MIB} MiB |",
        f"| all bodies held at once | {limits.bodies_bytes // MIB} MiB",
        f"{limits.media_items}, {limits.messages} |",
        f"{limits.media.max_pixels // 10**6} million |",
        f"{limits.expansion:.0f}-fold, from {limits.expansion_floor // MIB} MiB decoded |",
        f"| {limits.media.max_seconds:.0f} |",
        f"| {limits.media.decoded_frames:,}, and {limits.media.max_clip_pixels // 10**9} billion pixels in all |",
        f"{limits.media.max_bytes // MIB} MiB |",
        f"{limits.remote_s:.0f} s, {limits.redirects} redirects |",
    ):
        assert said in PAGE


def test_every_status_has_its_line():
    assert {int(status) for status in re.findall(r"^\| (\d{3}) \|", PAGE, re.MULTILINE)} == {
        *ERROR_TYPES,
        500,
    } - {405}


def test_what_is_refused_by_name_is_named():
    for field in ("tools", "functions", "logprobs", "logit_bias", "response_format", "top_k", "min_p"):
        assert field in NEUTRAL
        assert f"`{field}`" in PAGE

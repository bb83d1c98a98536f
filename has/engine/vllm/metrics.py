"""vLLM's own counters, as differences between two looks.

Histograms of request times begin at 0.3 s, so their percentiles say nothing about small models; their
sums and counts do.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

import httpx

from has.engine.vllm.client import KEEPALIVE_S

MEANS = {
    "queue_s": "vllm:request_queue_time_seconds",
    "prefill_s": "vllm:request_prefill_time_seconds",
    "decode_s": "vllm:request_decode_time_seconds",
    "ttft_s": "vllm:time_to_first_token_seconds",
    "inter_token_s": "vllm:inter_token_latency_seconds",
    "iteration_tokens": "vllm:iteration_tokens_total",
}
TOTALS = {
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "iterations": "vllm:iteration_tokens_total_count",
}
_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+(?P<value>\S+)$")


def parse(text: str) -> dict[str, float]:
    """Every sample of a Prometheus page, summed over its labels; buckets are left out."""
    found: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and not match["name"].endswith(("_bucket", "_created")):
            found[match["name"]] += float(match["value"])
    return dict(found)


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Means over what happened in between, and totals; a mean of nothing is left out."""

    def delta(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    result = {key: delta(name) for key, name in TOTALS.items()}
    for key, name in MEANS.items():
        if (count := delta(f"{name}_count")) > 0:
            result[key] = delta(f"{name}_sum") / count
    return result


async def look(urls: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """The counters of every instance that answers, by its name."""
    limits = httpx.Limits(keepalive_expiry=KEEPALIVE_S)
    pages = {}
    async with httpx.AsyncClient(timeout=5.0, trust_env=False, limits=limits) as client:
        for name, url in urls.items():
            try:
                pages[name] = parse((await client.get(f"{url}/metrics")).text)
            except httpx.HTTPError:
                continue
    return pages

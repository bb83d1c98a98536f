"""The status of a server: one JSON document, and the page at `/` that shows it and asks again every second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any

from has.core.deployment import Deployment
from has.gateway.observer import ServiceState
from has.gateway.recent import Recent

PAGE_HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self';"
        " img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "x-content-type-options": "nosniff",
}


@cache
def page() -> str:
    """The page: one file, no other is loaded. It gets all it shows from `GET /status`."""
    return files("has.gateway").joinpath("status.html").read_text(encoding="utf-8")


def status(
    state: ServiceState,
    recent: Recent,
    deployment: Deployment | None,
    *,
    model: str,
    names: Sequence[str],
    started_s: float,
    now_s: float,
) -> dict[str, Any]:
    """What `GET /status` answers. Times in ms, rates per second; null where there is no figure."""
    slo = deployment.slo if deployment is not None else None
    return {
        "model": model,
        "served_as": list(names),
        "deployment": None
        if deployment is None
        else {"label": deployment.label, "topology": deployment.topology, "gpus": deployment.gpus},
        "ready": state.not_ready is None,
        "not_ready": state.not_ready,
        "uptime_s": now_s - started_s,
        "slo": None
        if slo is None
        else {"ttft_ms": slo.ttft_ms, "tpot_ms": slo.tpot_ms, "attainment": slo.attainment},
        "running": state.running,
        "waiting": state.waiting,
        "kv_tokens": {"used": state.kv_tokens_used, "total": state.kv_tokens_total},
        "queues": dict(state.queues),
        "pools": [
            {"name": pool.name, "workers": [asdict(worker) for worker in pool.workers]}
            for pool in state.pools
        ],
        "encode_workers": [asdict(worker) for worker in state.encode_workers],
        "last_minute": recent.summary(now_s, slo),
    }

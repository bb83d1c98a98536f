"""The status page: what it is told, and that a real browser shows it, on a phone too."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from has.core.deployment import Deployment
from has.core.slo import Slo
from has.gateway.http import create_app
from has.gateway.metrics import Metrics
from has.gateway.observer import EncodeWorkerState, PoolState, ServiceState, WorkerState
from has.gateway.recent import WINDOW_S, Recent
from has.gateway.status import page
from tests.gateway.chromium import PATH, Page
from tests.gateway.queue_service import MODEL, QueueService, chat, serving

PLAN = Deployment.model_validate(
    {
        "version": 1,
        "model": MODEL,
        "topology": "disaggregated",
        "gpus": 8,
        "alloc": {"encode": 3, "prefill": 2, "decode": 3},
        "encode_batch": 4,
        "prefill_offload": 0.4,
        "slo": {"ttft_ms": 2000, "tpot_ms": 150, "attainment": 0.9},
    }
)


class Busy(QueueService):
    """Eight GPUs at work, one of them being replaced."""

    def state(self) -> ServiceState:
        def encoder(waiting: int, sm: float, rate: float | None) -> EncodeWorkerState:
            gap = None if rate is None else 1.85 / rate
            return EncodeWorkerState(waiting, gap, rate, sm, 100 - sm, 5, 12, 0.2, 3 if sm else 0, 1)

        held = [WorkerState(True, n, 300 * n) for n in (11, 9, 0)]
        return ServiceState(
            20,
            7,
            {"preprocess": 0, "encode": 4, "prefill_local": 2, "prefill_remote": 1},
            [encoder(1, 40, 1.7), encoder(3, 0, 0.9), encoder(0, 65, None)],
            kv_tokens_used=6000,
            kv_tokens_total=16000,
            pools=[
                PoolState("preprocess", [WorkerState(True, n) for n in (1, 0, 0, 0, 0, 0, 0, 0)]),
                PoolState("encode", [WorkerState(True, 4), WorkerState(True, 1), WorkerState(True, 2)]),
                PoolState("prefill", [WorkerState(True, 1), WorkerState(False, 0)]),
                PoolState("decode", held),
            ],
            not_ready=self.why_not,
        )


def busy_metrics() -> Metrics:
    metrics = Metrics(MODEL)
    rng = np.random.default_rng(3)
    for ttft in rng.lognormal(-0.2, 0.5, 240):
        metrics.finished("length", 11, ttft + 0.4, ttft)
    for size, reason in zip([4, 4, 4, 3, 2, 4, 1], ["full", "full", "full", "gap", "gap", "full", "age"], strict=True):  # fmt: skip
        metrics.encode_launched(size, reason)
    metrics.refused("queue")
    return metrics


@pytest.fixture(scope="module")
def served():
    service, metrics = Busy(), busy_metrics()
    app = create_app(service, metrics=metrics, deployment=PLAN, served_model_names=["photo-questions"])
    with serving(app) as url:
        yield url, service


def test_the_last_minute_is_a_minute() -> None:
    recent, slo = Recent(), Slo(ttft_ms=1000, tpot_ms=50)
    recent.answered(0.0, 9.0, 1.0)
    recent.missed(0.0, "error")
    recent.launched(0.0, 1, "age")
    now_s = WINDOW_S + 1
    for ttft_s, tpot_s in ((0.5, 0.04), (1.0, None), (1.5, 0.04), (0.5, 0.06)):
        recent.answered(now_s, ttft_s, tpot_s)
    recent.missed(now_s, "refused: queue")
    recent.launched(now_s, 4, "full")
    found = recent.summary(now_s, slo)
    assert found["answered"] == 4
    assert found["attainment"] == 2 / 5, "two met both bounds, of four answers and a refusal"
    assert found["missed"] == {"refused: queue": 1}
    assert found["ttft_ms"]["p50"] == pytest.approx(750)
    assert found["tpot_ms"]["p50"] == pytest.approx(40)
    assert found["encode_batches"] == {"mean": 4.0, "sizes": {4: 1}, "reasons": {"full": 1}}


def test_nothing_to_average_is_null() -> None:
    found = Recent().summary(0.0, None)
    assert found["attainment"] is None
    assert found["ttft_ms"] == {"p50": None, "p90": None, "p99": None}
    assert found["encode_batches"]["mean"] is None


def test_the_document_says_what_is_going_on(served) -> None:
    shown = httpx.get(f"{served[0]}/status").json()
    assert shown["served_as"] == ["photo-questions"]
    assert shown["model"] == MODEL
    assert shown["deployment"] == {"label": PLAN.label, "topology": "disaggregated", "gpus": 8}
    assert shown["slo"] == {"ttft_ms": 2000, "tpot_ms": 150, "attainment": 0.9}
    assert [pool["name"] for pool in shown["pools"]] == ["preprocess", "encode", "prefill", "decode"]
    assert [worker["alive"] for worker in shown["pools"][2]["workers"]] == [True, False]
    assert shown["encode_workers"][0]["encode_sm"] == 40
    assert shown["last_minute"]["missed"] == {"refused: queue": 1}
    assert 0 < shown["last_minute"]["attainment"] < 1
    assert shown["last_minute"]["encode_batches"]["reasons"] == {"full": 4, "gap": 2, "age": 1}


def test_answers_and_misses_show(served) -> None:
    with serving(create_app(QueueService())) as url:
        httpx.post(f"{url}/v1/chat/completions", json=chat("one two three"))
        shown = httpx.get(f"{url}/status").json()
        assert shown["last_minute"]["answered"] == 1
        assert shown["slo"] is None
        assert shown["deployment"] is None


def test_the_page_loads_nothing_from_elsewhere(served) -> None:
    answer = httpx.get(f"{served[0]}/")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.findall(r"(?:src|href|@import|url\()\s*=?\s*[\"']?(?:https?:)?//", page())


def test_a_browser_gives_the_key_as_a_password_for_the_page_alone() -> None:
    with serving(create_app(QueueService(), api_key="secret")) as url:
        asked = httpx.get(f"{url}/")
        assert asked.status_code == 401
        assert asked.headers["www-authenticate"].startswith("Basic ")
        for path in ("/", "/status"):
            assert httpx.get(f"{url}{path}", auth=("", "secret")).status_code == 200
            assert httpx.get(f"{url}{path}", auth=("", "wrong")).status_code == 401
            assert httpx.get(f"{url}{path}", headers={"authorization": "Basic !"}).status_code == 401
            assert httpx.get(f"{url}{path}", headers={"authorization": "Bearer secret"}).status_code == 200
        for method, path in (("GET", "/metrics"), ("POST", "/v1/chat/completions"), ("POST", "/")):
            refused = httpx.request(method, f"{url}{path}", auth=("", "secret"))
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.skipif(PATH is None, reason="no Chromium is installed: the page is not looked at")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_without_scrolling_sideways(served, width: int, tmp_path: Path) -> None:
    url, service = served
    shot = Path(os.environ.get("HAS_SCREENSHOTS", tmp_path)) / f"status-{width}.png"
    with Page(width, 844) as browser:
        browser.open(f"{url}/")
        browser.until(
            "document.readyState === 'complete' && document.getElementById('state').textContent === 'ready'"
        )
        assert browser.value("document.documentElement.scrollWidth") <= width
        wide = "[...document.querySelectorAll('body *')].filter(n => n.getBoundingClientRect().right > innerWidth + 1).length"
        assert browser.value(wide) == 0
        text = browser.value("document.body.innerText")
        for words in ("photo-questions", PLAN.label, "40 / 60 %", "lost", "prefill", "of 2000 ms", "gap off"):
            assert words in text, words
        browser.screenshot(shot)
        service.why_not = "shutting down"
        browser.until("document.getElementById('state').textContent === 'shutting down'")
        service.why_not = None
    picture = np.asarray(Image.open(io.BytesIO(shot.read_bytes())).convert("RGB"))
    assert picture.shape[1] == width
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 20, "not a blank page"

"""A served deployment: gone without a trace on SIGKILL (on SIGTERM: tests/gateway/test_http_live.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from has.core.profile import Profile
from has.errors import MissingError
from has.runtime.serve import serve, sm_table_of
from tests.runtime.live import deployment
from tests.runtime.test_pool import gone

pytestmark = pytest.mark.live
MODEL = "tiny-image"
SERVE = """
import sys
from has.core.deployment import Deployment
from has.runtime import serve
from tests.runtime.live import table
from has.runtime.pool import WarmPool

serve._warm_pool = lambda plan, share, say: WarmPool(plan.model, plan.gpus, nominal=table(plan.model))
serve.serve(
    Deployment.model_validate_json(sys.argv[1]), port=0, api_key="secret", on_ready=lambda url: print(url, flush=True)
)
"""


class Server:
    def __enter__(self) -> Server:
        plan = deployment(MODEL).model_dump_json(exclude_none=True)
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, plan],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self.url = self.process.stdout.readline().strip()
        self.children = [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, **fields) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "What is number 1?"}], **fields}
        headers = {"Authorization": "Bearer secret"}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def test_sigkill_leaves_nothing() -> None:
    with Server() as server:
        assert len(server.children) == 1 + 4 + 2
        assert server.ask(max_tokens=4).status_code == 200
        before = {segment.name for segment in Path("/dev/shm").iterdir()}
        server.process.kill()
        server.process.wait()
        assert gone(server.children)
        assert {segment.name for segment in Path("/dev/shm").iterdir()} <= before


def test_a_gateway_loads_no_torch() -> None:
    """Only its workers do: it saves seconds and half a gigabyte. A trial's load generator is such a process too."""
    code = (
        "import sys, has.runtime.serve, has.trial.local; print(*{'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_what_the_runtime_does_not_run_is_said_before_anything_starts() -> None:
    with pytest.raises(MissingError) as error:
        serve(deployment(MODEL, tensor_parallel={"decode": 2}), port=0)
    assert "vLLM" in error.value.mend


def test_the_sm_table_is_the_deployments_then_the_profiles_then_none() -> None:
    rows = [
        {"stage": stage, "sm_percent": sm, "batch": 1, "tokens": 1, "latency_s": 1.0}
        for stage in ("encode", "prefill", "decode")
        for sm in (40, 100)
    ]
    profile = Profile.model_validate(
        {
            "metadata": {"version": 1, "device": "d", "model": MODEL, "source": "measured"},
            "rows": rows,
        }
    )
    table = sm_table_of(deployment(MODEL), profile)
    assert [(row.batch, row.encode_sm) for row in table] == [(1, 50.0)]
    derived = sm_table_of(deployment(MODEL, sm_table=None), profile)
    assert [(row.batch, row.encode_sm) for row in derived] == [(1, 40.0), (2, 40.0)]
    assert sm_table_of(deployment(MODEL, sm_table=None), None) == "streams"
    assert sm_table_of(deployment(MODEL, "e_pd"), profile) == "streams"

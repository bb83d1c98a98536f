"""One small search, shared by what reports it."""

from __future__ import annotations

from pathlib import Path

import pytest

from has.core.space import SearchSpace
from has.core.workload import Workload
from has.files.profile import profile_from_rows
from has.files.validate import validate
from has.search.run import search


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    rows = [
        {"stage": stage, "sm_percent": share, "batch": 1, "tokens": 64, "latency_s": seconds * slower}
        for stage, seconds in (("encode", 0.05), ("prefill", 0.04), ("decode", 0.01))
        for share, slower in ((20, 3.0), (60, 1.1), (100, 1.0))
    ]
    metadata = {"version": 1, "device": "cpu (emulated)", "model": "tiny-image", "source": "measured"}
    workload = {
        "version": 1,
        "arrivals": {"process": "poisson", "rate": 6.0},
        "requests": [{"modality": "image", "media_tokens": 64, "prompt_tokens": 20, "output_tokens": 8}],
        "slo": {"ttft_ms": 2000, "tpot_ms": 50},
    }
    space = {"version": 1, "encode_batch": [1, 2], "prefill_offload": {"min": 0.0, "max": 1.0, "step": 0.5}}
    search(
        4,
        profile_from_rows(metadata, rows),
        validate(Workload, workload),
        space=validate(SearchSpace, space),
        trials=3,
        requests=200,
        run_dir=run,
    )
    return run

"""Runs command lines in this process, in an empty folder, and keeps what they said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from has.cli.main import run

CONSTANT_PROFILE = """stage,sm_percent,batch,tokens,latency_s
encode,100,1,64,0.05
prefill,100,1,64,0.04
decode,100,1,64,0.01
"""
CONSTANT_METADATA = {"version": 1, "device": "test", "model": "tiny-image", "source": "measured"}

DEPLOYMENT = """version: 1
model: tiny-image
topology: disaggregated
gpus: 8
alloc: {encode: 2, prefill: 2, decode: 4}
encode_batch: 4
prefill_offload: 0.5
rate: 6.0
slo: {ttft_ms: 2000, tpot_ms: 50, attainment: 0.9}
"""

WORKLOAD = """version: 1
name: w
arrivals: {process: poisson, rate: 6.0}
requests:
  - modality: image
    media_tokens: 64
    prompt_tokens: {lognormal: {p50: 16, p99: 60}}
    output_tokens: {uniform: [4, 12]}
slo: {ttft_ms: 2000, tpot_ms: 50, attainment: 0.9}
"""

SPACE = """version: 1
alloc: {encode: [1, 6], prefill: [0, 6], decode: [1, 6]}
encode_batch: [1, 2, 4]
prefill_offload: {min: 0.0, max: 1.0, step: 0.5}
"""


@dataclass(frozen=True)
class Said:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    """`has("simulate", "d.yaml")` in an empty folder that is also the home of caches."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("HAS_DEBUG", raising=False)

    def call(*arguments: str | Path) -> Said:
        capsys.readouterr()
        status = run([str(a) for a in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err + captured.out
        return Said(status, captured.out, captured.err)

    return call


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """The folder of `has`, with deployment d.yaml, workload w.yaml, space s.yaml and a three-row profile p.csv."""
    (tmp_path / "d.yaml").write_text(DEPLOYMENT)
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    (tmp_path / "s.yaml").write_text(SPACE)
    (tmp_path / "p.csv").write_text(CONSTANT_PROFILE)
    (tmp_path / "p.json").write_text(json.dumps(CONSTANT_METADATA))
    return tmp_path

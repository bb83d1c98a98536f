"""What `tests/gpu/check.sh` compares with, where no GPU takes part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from tests.gpu.setting import Setting
from tests.gpu.steps import estimator


def on(gpu: str) -> Setting:
    device = SimpleNamespace(name=gpu)
    return Setting("cuda", "qwen2.5-vl-7b", SimpleNamespace(device=device), None, None, Path(), gpu)


def test_the_check_compares_with_the_estimate_of_the_gpu_as_its_driver_calls_it():
    estimate, lines = estimator(on("NVIDIA H100 80GB HBM3"))
    assert estimate.gpu.name == "H100 SXM"
    assert not lines


def test_a_check_that_has_nothing_to_compare_with_fails():
    for setting in (on("NVIDIA GeForce RTX 4090"), replace(on("NVIDIA L40S"), model="nobody/no-such-model")):
        estimate, (line,) = estimator(setting)
        assert estimate is None
        assert not line.ok
        assert "no facts are shipped" in line.figure


def test_a_rehearsal_compares_nothing():
    assert estimator(replace(on("none"), device="cpu")) == (None, [])

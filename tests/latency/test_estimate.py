"""Estimated profiles: memory as the facts have it, grids that serve the example workloads, and those that ship."""

from __future__ import annotations

import functools
import importlib.util
import math
import sys
from pathlib import Path

import pytest

from has.core.deployment import Deployment
from has.core.profile import grid_hole
from has.core.stage import Stage
from has.errors import InputError
from has.files import facts
from has.files.profile import load_profile, save_profile
from has.files.shipped import shipped
from has.files.workload import load_workload
from has.latency.estimate import Estimator, estimate_profile, fewest_gpus
from has.latency.lookup import LatencyModel
from has.latency.memory import kv_capacity
from has.latency.roofline import Gpu, Roofline
from has.sim.draw import draw_requests

GPUS = ("a100-80", "h100", "h200", "l40s", "rtx 6000 ada")
MODELS = (
    "llava-v1.6-34b",
    "qwen2.5-vl-7b",
    "qwen2.5-vl-32b",
    "internvl2.5-26b",
    "ultravox-8b",
    "ultravox-27b",
)


made = functools.cache(estimate_profile)
"""One estimate serves every test of it: they are the same to the last digit, which a test of its own holds."""


def estimated() -> list[Path]:
    return sorted(path for path in shipped("profiles").glob("*.parquet") if not path.name.startswith("cpu-"))


@pytest.mark.parametrize(
    ("model", "gpu", "lm_gb", "kv_bytes", "memory_gb"),
    [
        ("llava-v1.6-34b", "a100-80", 68.8, 245_760, 80),
        ("qwen2.5-vl-7b", "rtx 6000 ada", 15.2, 57_344, 48),
        ("qwen2.5-vl-72b", "h200", None, 327_680, 141),
    ],
)
def test_memory_is_as_the_facts_have_it(model, gpu, lm_gb, kv_bytes, memory_gb):
    metadata = estimate_profile(model, gpu).metadata
    assert metadata.kv_bytes_per_token == kv_bytes
    assert metadata.memory_bytes == memory_gb * 10**9
    assert metadata.weights_bytes.lm == facts.model(model)["computed"]["lm_bytes_bf16"]
    assert lm_gb is None or round(metadata.weights_bytes.lm / 1e9, 1) == lm_gb


def test_kv_of_a_model_of_few_heads_is_held_several_times():
    """qwen3-vl-235b-a22b has four KV heads: eight GPUs hold each twice, and two ranks send the same."""
    metadata = estimate_profile("qwen3-vl-235b-a22b", "h100", tp=8).metadata
    assert metadata.kv_heads == 4
    deployment = Deployment.model_validate(
        {"version": 1, "model": metadata.model, "topology": "monolithic", "gpus": 8, "alloc": {"all": 8}}
        | {"slo": {"ttft_ms": 1000, "tpot_ms": 50}, "tensor_parallel": {"all": 8}}
    )
    held = metadata.weights_bytes.lm + metadata.weights_bytes.encoder
    room = (0.9 * metadata.memory_bytes * 8 - held) / metadata.kv_bytes_per_token
    assert kv_capacity(deployment, metadata, "all") == math.floor(room / 2)

    def moved_s(tp):
        return Estimator(facts.model(metadata.model), Roofline(Gpu.from_facts("h100")), tp).kv_transfer_s(
            4096
        )

    assert moved_s(4) == moved_s(8) < moved_s(2)
    few = facts.model("qwen3-vl-8b")
    assert fewest_gpus(few, Gpu.from_facts("l40s")) == 1
    heavy = few | {"computed": few["computed"] | {"kv_bytes_per_token_bf16": 5 * 10**6}}
    assert fewest_gpus(heavy, Gpu.from_facts("l40s")) == 8
    one = heavy | {"lm": few["lm"] | {"kv_heads": 1}}
    with pytest.raises(InputError, match="does not fit"):
        fewest_gpus(one, Gpu.from_facts("l40s"))


def test_fp8_halves_all_of_the_language_model_but_its_ends():
    full, half = (estimate_profile("llava-v1.6-34b", "h100", dtype=d).metadata for d in ("bfloat16", "fp8"))
    ends = 2 * 2 * 64064 * 7168
    assert half.weights_bytes.lm == pytest.approx((full.weights_bytes.lm - ends) / 2 + ends, rel=1e-6)
    assert half.weights_bytes.encoder == full.weights_bytes.encoder
    assert (full.tensor_parallel, half.tensor_parallel) == (2, 1)


@pytest.mark.parametrize(
    ("model", "gpu", "tp"),
    [("llava-v1.6-34b", "l40s", 2), ("llava-v1.6-34b", "h200", 1), ("qwen2.5-vl-7b", "l40s", 1)],
)
def test_the_fewest_gpus_with_room_for_kv(model, gpu, tp):
    assert fewest_gpus(facts.model(model), Gpu.from_facts(gpu)) == tp


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("model", MODELS)
def test_an_estimate_says_what_it_is_and_how_far_off_it_may_be(model, gpu):
    profile = made(facts.find_model(model)["name"], facts.find_gpu(gpu)[0])
    metadata = profile.metadata
    extra = metadata.model_extra
    assert metadata.source == "roofline"
    assert 0.2 <= metadata.error <= 0.5
    assert metadata.notes[0].startswith("ESTIMATE")
    assert {"fill_rows", "bandwidth_share", "interference"} <= set(extra["sm_share"])
    for parameter in ("fill_rows", "bandwidth_share", "interference"):
        entry = extra["sm_share"][parameter]
        assert entry["low"] <= entry["value"] <= entry["high"]
        assert entry["source"]
    assert extra["efficiency"]["fitted_on"]
    assert grid_hole(profile.rows) is None
    assert {row.stage for row in profile.rows} == set(Stage)
    assert all(row.latency_s > 0 for row in profile.rows)


@pytest.mark.parametrize("path", estimated(), ids=lambda path: path.stem)
def test_shipped_estimates_are_small_and_serve_the_example_workloads_in_reach(path):
    assert path.stat().st_size < 40_000
    profile = load_profile(path)
    latency = LatencyModel.from_profile(profile)
    audio = profile.metadata.model.startswith("ultravox")
    for name in ("audio",) if audio else ("image", "video", "mixed"):
        workload = load_workload(shipped("workloads") / f"{name}.yaml")
        drawn = draw_requests(workload, requests=20_000, seed=0, model=profile.metadata.model)
        context = drawn.media_tokens + drawn.prompt_tokens
        latency.check_range(Stage.ENCODE, 16, drawn.media_tokens.max())
        latency.check_range(Stage.PREFILL, 8, context.max())
        latency.check_range(Stage.DECODE, 256, (context + drawn.output_tokens).max())


def _make_profiles():
    path = Path(__file__).parents[2] / "scripts" / "make_profiles.py"
    if not path.exists():
        pytest.skip("the scripts are not part of this installation")
    spec = importlib.util.spec_from_file_location("make_profiles", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_ships_is_what_the_command_makes(tmp_path):
    script = _make_profiles()
    again = estimate_profile("qwen2.5-vl-7b", "L40S")
    assert made("qwen2.5-vl-7b", "L40S") == again
    script.estimate_profile = made
    script.main(tmp_path)
    files = sorted(tmp_path.glob("*.parquet"))
    assert [path.name for path in files] == [path.name for path in estimated()]
    assert len(files) == 30
    for path in files:
        assert load_profile(path) == load_profile(shipped("profiles") / path.name), path.name


def test_a_model_that_fits_nowhere_is_refused():
    with pytest.raises(InputError, match="does not fit eight GPUs"):
        estimate_profile("qwen3-vl-235b-a22b", "l4")


def test_given_axes_are_taken(tmp_path):
    profile = estimate_profile("qwen2.5-vl-7b", "h100", sm=[50, 100], batch=[1, 3], tokens=[64, 640])
    save_profile(profile, tmp_path / "p.csv")
    assert load_profile(tmp_path / "p.csv") == profile
    encode = {row.key[2:] for row in profile.rows if row.stage is Stage.ENCODE and row.beside == "none"}
    assert encode == {(s, b, t) for s in (50.0, 100.0) for b in (1, 3) for t in (64, 640)}


def test_transfers_take_what_the_link_takes():
    nvlink = Estimator(facts.model("qwen2.5-vl-7b"), Roofline(Gpu.from_facts("h100")), 1)
    pcie = Estimator(facts.model("qwen2.5-vl-7b"), Roofline(Gpu.from_facts("l40s")), 1)
    tokens = 10_000
    for estimator, link in ((nvlink, 450e9), (pcie, 32e9)):
        moved = estimator.kv_transfer_s(tokens) - estimator.kv_transfer_s(0)
        assert moved == pytest.approx(tokens * 57_344 / (0.7 * link))
    halved = Estimator(facts.model("qwen2.5-vl-7b"), Roofline(Gpu.from_facts("l40s")), 2)
    assert halved.kv_transfer_s(tokens) < pcie.kv_transfer_s(tokens)
    deep = Estimator(facts.model("qwen3-vl-8b"), Roofline(Gpu.from_facts("h100")), 1)
    sent = deep.embedding_transfer_s(tokens) - deep.embedding_transfer_s(0)
    assert sent == pytest.approx(tokens * 4 * 8192 / (0.7 * 450e9))


def test_silicon_without_its_extra_says_what_to_install(monkeypatch):
    from has.errors import MissingError

    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk.engine", None)
    with pytest.raises(MissingError) as missing:
        estimate_profile("qwen2.5-vl-7b", "h100", source="silicon")
    assert "pip install 'has-epd[silicon]'" in missing.value.mend

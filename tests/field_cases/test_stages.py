"""Which stage binds, and what may not be built: preprocessing on the CPU, encoders at TP 1, decode behind a short prefill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from has.core.slo import Slo
from has.core.space import SearchSpace, TpRanges
from has.core.stage import Stage
from has.errors import InputError
from has.files.deployment import load_deployment, save_deployment
from has.files.profile import load_profile, save_profile
from has.files.shipped import shipped
from has.files.workload import save_workload
from has.files.yaml import dump_yaml
from has.latency.lookup import LatencyModel
from has.search.capacity import CapacityModel, Demand, Limits
from has.search.run import search
from has.search.space import candidate_of
from has.sim.draw import draw_requests
from has.sim.maxrate import max_rate
from has.sim.simulator import Simulator
from tests.cli.conftest import Said
from tests.field_cases.stages import deployment, profile, workload

Has = Callable[..., Said]


# Frames decoded on the CPU: GPU at 20 %, CPU at 100 % (video of 30 frames, 13 requests a minute, one A100).


@pytest.mark.parametrize(
    ("shipped_profile", "alloc", "media_tokens", "cpu_s", "workers", "rate"),
    [
        ("a100-80-qwen2.5-vl-7b", {"all": 1}, 4485, 4.6, 1, 13 / 60),
        ("h100-llava-v1.6-34b", {"encode": 2, "prefill_decode": 2}, 2880, 1.9, 2, 1.05),
        ("l40s-qwen2.5-vl-7b", {"encode": 2, "prefill": 1, "decode": 1}, 1200, 2.4, 4, 1.6),
    ],
)
def test_a_busy_cpu_is_named_and_encode_gpus_are_said_to_gain_nothing(
    has: Has,
    tmp_path: Path,
    shipped_profile: str,
    alloc: dict[str, int],
    media_tokens: int,
    cpu_s: float,
    workers: int,
    rate: float,
) -> None:
    estimate = load_profile(shipped("profiles") / f"{shipped_profile}.parquet")
    rows = [
        row.model_copy(update={"latency_s": cpu_s * row.tokens / media_tokens})
        if row.stage == Stage.PREPROCESS
        else row
        for row in estimate.rows
    ]
    save_profile(estimate.model_copy(update={"rows": tuple(rows)}), tmp_path / "p.parquet")
    slo = Slo(ttft_ms=30_000, tpot_ms=200)
    save_workload(workload(slo, rate=rate, media_tokens=media_tokens), tmp_path / "w.yaml")
    fields = {} if "all" in alloc else {"encode_batch": 4}
    fields |= {"prefill_offload": 1.0} if "prefill" in alloc else {}
    if estimate.metadata.tensor_parallel == 2:
        fields["tensor_parallel"] = {"prefill_decode": 2}
    busy = deployment(estimate.metadata.model, slo, alloc, preprocess_workers=workers, **fields)
    save_deployment(busy, tmp_path / "d.yaml")
    files = ("d.yaml", "--profile", "p.parquet", "--workload", "w.yaml")

    told = has("explain", *files, "--json").json
    assert told["capacities"]["binding"] == "preprocess"
    assert told["capacities"]["utilisation"]["preprocess"] >= 0.9
    others = [use for stage, use in told["capacities"]["utilisation"].items() if stage != "preprocess"]
    assert max(others) < 0.6
    added = [row for row in told["sensitivity"] if row["change"].startswith("+") and "GPU" in row["change"]]
    assert added
    for row in added:
        assert row["limit_change_percent"] == pytest.approx(0.0)
        assert f"{row['change']} does not raise that" in told["advice"]
    said = has("explain", *files).out
    assert "preprocessing on the CPU" in said
    assert "gain nothing" in said


# A 32B model at TP 8 whose encoder does not scale: 492, 466, 524 ms at TP 2, 4, 8.


@pytest.mark.parametrize(
    ("gpus", "tp", "encode_s", "prefill_s"),
    [
        (8, 2, 0.55, 0.15),
        pytest.param(8, 2, 0.9, 0.1, marks=pytest.mark.long),
        pytest.param(16, 4, 0.5, 0.06, marks=pytest.mark.long),
    ],
)
def test_a_slow_encoder_gets_several_workers_of_one_gpu(
    gpus: int, tp: int, encode_s: float, prefill_s: float
) -> None:
    slow = profile(
        encode=(0.05, encode_s),
        prefill=(0.0, prefill_s),
        decode=(0.025, 0.0003),
        memory_bytes=96 * 10**9,
        weights_bytes={"encoder": 14 * 10**8, "lm": 655 * 10**8},
        kv_bytes_per_token=262_144,
        tensor_parallel=tp,
    )
    slo = Slo(ttft_ms=3000, tpot_ms=100)
    space = SearchSpace(
        version=1,
        tensor_parallel=TpRanges(prefill=(tp,), decode=(tp,)),
        encode_batch=(1, 4),
        prefill_offload={"step": 0.5},  # type: ignore[arg-type]  # as a file has it
    )
    outcome = search(
        gpus, slow, workload(slo, media_tokens=1000), space=space, requests=150, trials=6, seed=1
    )
    best = outcome.best
    assert best.topology != "monolithic"
    assert best.workers("encode") >= 2
    assert best.tp("encode") == 1
    monolithic = outcome.baselines["monolithic"].objective
    assert monolithic is not None
    assert outcome.objective > 1.1 * monolithic


@pytest.mark.parametrize("tp", [2, 8])
def test_an_encoder_over_several_gpus_can_be_neither_written_nor_searched(
    has: Has, tmp_path: Path, tp: int
) -> None:
    slo = Slo(ttft_ms=3000, tpot_ms=100)
    fine = deployment(
        "m", slo, {"encode": tp, "prefill": tp, "decode": tp}, encode_batch=4, prefill_offload=1.0
    )
    data = fine.model_dump(mode="json", exclude_none=True) | {"tensor_parallel": {"encode": tp}}
    (tmp_path / "d.yaml").write_text(dump_yaml(data))
    with pytest.raises(InputError, match="tensor_parallel") as refused:
        load_deployment(tmp_path / "d.yaml")
    assert refused.value.exit_status == 2
    (tmp_path / "s.yaml").write_text(f"version: 1\ntensor_parallel: {{encode: [1, {tp}]}}\n")
    said = has("search", "--gpus", 8, "--model", "tiny-image", "--space", "s.yaml")
    assert said.status == 2
    assert "tensor_parallel.encode" in said.err


# Prefill 58 ms, a decode tail of 2.2 s, split one to one.


@pytest.mark.parametrize(
    ("prefill_s", "tail_s", "at_once", "modality", "gpus"),
    [
        (0.058, 2.2, 4, "audio", 8),
        pytest.param(0.02, 1.5, 8, "image", 10, marks=pytest.mark.long),
        pytest.param(0.2, 6.0, 4, "video", 12, marks=pytest.mark.long),
    ],
)
def test_decode_gets_many_times_the_gpus_of_prefill(
    prefill_s: float, tail_s: float, at_once: int, modality: str, gpus: int
) -> None:
    tokens = 100
    tail = profile(encode=(0.004, 0.0), prefill=(prefill_s, 0.0), decode=(tail_s / (tokens - 1), 0.0))
    slo = Slo(ttft_ms=2000, tpot_ms=150)
    asked = workload(slo, output_tokens=tokens, modality=modality)
    space = SearchSpace(
        version=1, topologies=("disaggregated",), encode_batch=(1,), prefill_offload={"step": 0.5}
    )  # type: ignore[arg-type]  # as a file has it
    settings = {"max_num_seqs": at_once}
    found = search(gpus, tail, asked, space=space, settings=settings, requests=150, trials=6, seed=1).best
    prefilling = found.alloc["prefill"] + (found.alloc["encode"] if found.offload_fraction < 1 else 0)
    assert found.alloc["decode"] >= 3 * prefilling

    drawn = draw_requests(asked, rate=10.0, requests=400, seed=0)
    simulator = Simulator(tail)
    prepared = simulator.prepare(drawn, 0)

    def rate_of(prefill: int) -> float:
        """Largest rate of one encoder and this many prefill GPUs, the rest decoding."""
        alloc = {"encode": 1, "prefill": prefill, "decode": gpus - 1 - prefill}
        split = deployment("field", slo, alloc, encode_batch=1, prefill_offload=1.0, **settings)
        return max_rate(simulator, split, prepared, slo).max_rate_rps

    even = (gpus - 1) // 2
    assert rate_of(1) > 1.5 * rate_of(even)


# GPUs are counted as the product of all parallel sizes.


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("topology", ["disaggregated", "e_pd", "monolithic"])
def test_a_pool_has_its_gpus_over_tp_workers_and_their_memory(tp: int, topology: str) -> None:
    """Twice the TP on the same GPUs: half the workers, and so half of what they carry, each with twice the memory."""
    metadata = {
        "memory_bytes": 80 * 10**9,
        "weights_bytes": {"encoder": 10**9, "lm": 40 * 10**9},
        "kv_bytes_per_token": 2**18,
    }
    latency = LatencyModel.from_profile(profile(**metadata))
    slo = Slo(ttft_ms=5000, tpot_ms=100)
    demand = Demand.of(draw_requests(workload(slo), rate=1.0, requests=50))
    pools = {
        "disaggregated": {"encode": 4, "prefill": 4, "decode": 8},
        "e_pd": {"encode": 4, "prefill_decode": 8},
        "monolithic": {"all": 8},
    }[topology]
    stages = {
        "disaggregated": ("prefill_remote", "decode"),
        "e_pd": ("prefill_decode",),
        "monolithic": ("all",),
    }

    def carried(size: int) -> dict[str, float]:
        fields: dict[str, object] = {} if topology == "monolithic" else {"encode_batch": 2}
        if topology == "disaggregated":
            fields["prefill_offload"] = 0.5
        plan = deployment(
            "field", slo, pools, tensor_parallel={p: size for p in pools if p != "encode"}, **fields
        )
        model = CapacityModel(latency, demand, slo, Limits(), None)
        return dict(model.of(candidate_of(plan), None).stages)

    one, several = carried(1), carried(tp)
    for stage in stages[topology]:
        assert several[stage] == pytest.approx(one[stage] / tp)
    if topology == "disaggregated":
        assert several["prefill_local"] <= one["prefill_local"] / tp * 1.001
    if "encode" in one:
        assert several["encode"] == one["encode"]

from __future__ import annotations

import json

import pytest

from has.core.deployment import Deployment
from has.search.explain import explain, steps
from tests.search.small import make_profile, make_workload


def deployment(**changes: object) -> Deployment:
    fields: dict[str, object] = {
        "version": 1,
        "model": "synthetic",
        "topology": "disaggregated",
        "gpus": 8,
        "alloc": {"encode": 3, "prefill": 2, "decode": 3},
        "encode_batch": 4,
        "prefill_offload": 0.5,
        "slo": {"ttft_ms": 2000.0, "tpot_ms": 40.0},
    }
    return Deployment.model_validate(fields | changes)


def test_says_what_binds_and_how_busy_each_stage_is() -> None:
    found = explain(deployment(), make_profile(), make_workload(), rate=12.0, requests=400)
    capacities = found["capacities"]
    assert set(capacities["stages_rps"]) == {
        "preprocess",
        "encode",
        "prefill_local",
        "prefill_remote",
        "decode",
    } - {"preprocess"}
    least = min(capacities["stages_rps"], key=capacities["stages_rps"].get)
    assert capacities["binding"] == least
    assert capacities["utilisation"][least] == pytest.approx(12.0 / capacities["limit_rps"])
    assert found["figures"]["requests"] == 400
    json.dumps(found)  # plain data


def test_a_cpu_that_binds_is_named_and_encode_gpus_gain_nothing() -> None:
    profile = make_profile(preprocess_s=1.2)
    found = explain(deployment(preprocess_workers=8), profile, make_workload(), rate=12.0, requests=400)
    assert found["capacities"]["binding"] == "preprocess"
    more = next(row for row in found["sensitivity"] if row["change"] == "+1 GPU encode")
    assert (
        abs(more["goodput_rps"] - found["figures"]["goodput_rps"])
        <= 0.2 * found["figures"]["goodput_rps"] + 0.05
    )


def test_batching_numbers() -> None:
    found = explain(deployment(), make_profile(), make_workload(), rate=12.0, requests=200)
    batching = found["batching"]
    assert batching["kappa"] == pytest.approx(1.8543, abs=1e-4)
    assert batching["media_rps_per_encoder"] == pytest.approx(4.0)
    assert batching["gap_s"] == pytest.approx(1.8543 / 4, abs=1e-4)
    assert [row["encode_sm"] + row["prefill_sm"] for row in found["sm_table"]] == [100.0] * 4


def test_steps_in_every_direction() -> None:
    rows = {what: changed for what, changed, _ in steps(deployment())}
    assert list(rows) == [
        "+1 GPU encode", "-1 GPU encode", "+1 GPU prefill", "-1 GPU prefill", "+1 GPU decode", "-1 GPU decode",
        "B = 6", "B = 2", "s = 0.6", "s = 0.4", "+10% load", "-10% load",
    ]  # fmt: skip
    assert rows["+1 GPU encode"].gpus == 9
    assert rows["B = 2"].encode_batch == 2
    assert rows["s = 0.6"].prefill_offload == 0.6


def test_steps_stay_valid_at_the_edges() -> None:
    edge = deployment(
        gpus=3, alloc={"encode": 1, "prefill": 1, "decode": 1}, encode_batch=1, prefill_offload=1.0
    )
    rows = {what: changed for what, changed, _ in steps(edge)}
    assert "-1 GPU encode" not in rows
    assert "-1 GPU prefill" not in rows
    assert "s = 0.9" in rows
    assert "s = 1.1" not in rows
    monolith = deployment(
        topology="monolithic", gpus=8, alloc={"all": 8}, tensor_parallel={"all": 2}, encode_batch=None,
        prefill_offload=None,
    )  # fmt: skip
    assert [what for what, _, _ in steps(monolith)] == [
        "+2 GPUs all",
        "-2 GPUs all",
        "+10% load",
        "-10% load",
    ]


def test_memory_per_gpu_and_the_evidence() -> None:
    profile = make_profile(
        memory_bytes=80 * 10**9, weights_bytes={"encoder": 10**9, "lm": 15 * 10**9}, kv_bytes_per_token=57_344
    )
    told = deployment(
        evidence={"runners_up": [{"deployment": "x", "why": "y"}], "baselines": {"monolithic": {}}}
    )
    found = explain(told, profile, make_workload(), rate=8.0, requests=200)
    pools = {row["pool"]: row for row in found["memory"]["pools"]}
    assert set(pools) == {"encode", "prefill", "decode"}
    assert pools["encode"]["need_bytes"] == 16 * 10**9
    assert found["memory"]["kv_tokens_per_worker"] == int((0.9 * 80e9 - 15e9) // 57_344)
    assert found["runners_up"] == [{"deployment": "x", "why": "y"}]
    assert set(found["baselines"]) == {"monolithic"}

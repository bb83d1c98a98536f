from __future__ import annotations

import json

import pytest

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.space import SearchSpace
from has.core.workload import Workload
from has.files.trace import save_trace
from has.search import explain as explain_module
from has.search.explain import explain, steps
from has.search.run import search
from has.sim.draw import draw_requests
from has.sim.run import simulate
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
        "B = 6", "B = 2", "s = 0.6", "s = 0.4", "+10 % load", "-10 % load",
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
        "+10 % load",
        "-10 % load",
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


def test_steps_say_what_the_stages_could_carry_and_which_gpus_gain_nothing() -> None:
    found = explain(deployment(), make_profile(), make_workload(), rate=2.0, requests=200)
    capacities, rows = found["capacities"], {row["change"]: row for row in found["sensitivity"]}
    binding, limit = capacities["binding"], capacities["limit_rps"]
    for change, row in rows.items():
        assert row["limit_change_percent"] == pytest.approx(100 * (row["limit_rps"] / limit - 1)), change
    idle = {
        change
        for change in rows
        if change.startswith("+1 GPU") and rows[change]["limit_change_percent"] < 0.5
    }
    assert idle
    assert {
        words.removesuffix(" does not raise that") for words in found["advice"][1:] if "not raise" in words
    } == idle
    assert found["advice"][0].startswith(binding)
    assert rows["+10 % load"]["limit_change_percent"] == 0.0
    stages = [(name, c) for name, c in capacities["stages_rps"].items() if name != binding]
    assert all(c >= limit for _, c in stages)


def test_a_local_prefill_over_several_gpus_counts_them_all() -> None:
    """Four encode GPUs as two groups of two: half the local prefills of four groups of one, and steps by two."""
    split = {"alloc": {"encode": 4, "prefill": 2, "decode": 2}, "prefill_offload": 0.5}
    one, two = (
        explain(
            deployment(**split, tensor_parallel={"local_prefill": span}),
            make_profile(),
            make_workload(),
            rate=2.0,
            requests=200,
        )
        for span in (1, 2)
    )
    carried = [found["capacities"]["stages_rps"]["prefill_local"] for found in (one, two)]
    assert carried[0] * 0.45 < carried[1] < carried[0] * 0.75
    assert "+2 GPUs encode" in {row["change"] for row in two["sensitivity"]}


def test_a_runner_up_says_what_binds_it(profile: Profile, workload: Workload) -> None:
    space = SearchSpace.model_validate(
        {"version": 1, "encode_batch": [1, 4], "prefill_offload": {"step": 0.5}}
    )
    best = search(4, profile, workload, space=space, rate=8.0, requests=100, trials=5, seed=1).best
    evidence = best.evidence
    assert evidence is not None
    assert evidence["runners_up"]
    for point in (evidence, *evidence["runners_up"]):
        assert point["binding"] in {
            "encode",
            "prefill_local",
            "prefill_remote",
            "decode",
            "prefill_decode",
            "all",
        }
        assert point["limit_rps"] > 0
    found = explain(best, profile, workload, rate=8.0, requests=200)
    assert found["capacities"]["binding"] == evidence["binding"]
    assert found["capacities"]["limit_rps"] == pytest.approx(evidence["limit_rps"], rel=0.2)


def test_a_trace_keeps_its_times_whatever_rate_the_deployment_is_for(tmp_path, monkeypatch) -> None:
    drawn = draw_requests(make_workload(), rate=4.0, requests=300, seed=2)
    save_trace(drawn, tmp_path / "trace.csv")
    trace = make_workload(arrivals={"process": "trace", "file": str(tmp_path / "trace.csv")}, requests=[])
    asked = deployment(rate=6.0)
    found = explain(asked, make_profile(), trace)
    alone = simulate(asked.model_copy(update={"slo": trace.slo}), make_profile(), trace)
    assert found["rate"] == pytest.approx(drawn.mean_rate)
    for figure in ("offered_rps", "goodput_rps", "ttft_ms"):
        assert found["figures"][figure] == alone[figure]
    loads = {row["load"]: row["goodput_rps"] for row in found["sensitivity"] if row["load"] != 1.0}
    assert set(loads) == {0.9, 1.1}
    stretched = explain(asked, make_profile(), trace, rate=6.0)
    assert stretched["figures"]["offered_rps"] == pytest.approx(6.0, rel=0.02)
    # Of a very long one what is looked at is busier than the whole, and all rows are of that.
    busy = drawn[:100]
    monkeypatch.setattr(explain_module, "lasting", lambda requests: requests[:100])
    part = explain(asked, make_profile(), trace, rate=2 * drawn.mean_rate)
    assert part["rate"] == pytest.approx(2 * busy.mean_rate, rel=1e-3)
    assert part["figures"]["offered_rps"] == pytest.approx(2 * busy.mean_rate, rel=0.02)

"""`simulate` and `run_records`: precedence, warnings, what is refused, and a world too small to err in."""

from __future__ import annotations

import json

import numpy as np
import pytest

import has
from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.requests import Requests
from has.core.workload import Workload
from has.errors import InputError
from has.sim.maxrate import capacity_bound, max_rate
from has.sim.run import run_records, simulate_run
from has.sim.simulator import Simulator


def _profile(rows=(), **metadata):
    base = [
        {"stage": s, "sm_percent": 100, "batch": 1, "tokens": 100, "latency_s": t}
        for s, t in (("encode", 0.1), ("prefill", 0.05), ("decode", 0.01))
    ]
    meta = {"version": 1, "device": "d", "model": "m", "source": "measured"} | metadata
    return Profile.model_validate_json(json.dumps({"metadata": meta, "rows": [*base, *rows]}))


def _deployment(**fields):
    base = {
        "version": 1,
        "model": "m",
        "topology": "disaggregated",
        "gpus": 4,
        "alloc": {"encode": 2, "prefill": 1, "decode": 1},
        "encode_batch": 2,
        "prefill_offload": 0.5,
        "slo": {"ttft_ms": 1000.0, "tpot_ms": 50.0},
    }
    return Deployment.model_validate_json(json.dumps(base | fields))


def _workload(rate=4.0, slo=None, **fields):
    entry = {"modality": "image", "media_tokens": 100, "prompt_tokens": 20, "output_tokens": 5} | fields
    data = {"version": 1, "arrivals": {"process": "poisson", "rate": rate}, "requests": [entry], "slo": slo}
    return Workload.model_validate(data)


def test_a_constant_profile_of_three_rows_is_enough():
    f = has.simulate(_deployment(), _profile(), _workload(), requests=400, seed=0)
    assert (f["requests"], f["completed"]) == (400, 400)
    assert f["routed"]["local"] + f["routed"]["remote"] == 400
    assert abs(f["routed"]["remote"] - 200) < 2
    assert set(f["stages"]) == {"preprocess", "encode", "prefill_local", "prefill_remote", "decode"}
    json.dumps(f)


@pytest.mark.parametrize("topology", ["e_pd", "monolithic"])
def test_the_other_topologies_have_their_own_stages(topology):
    fields = {"topology": topology, "prefill_offload": None}
    if topology == "e_pd":
        fields |= {"alloc": {"encode": 2, "prefill_decode": 2}}
    else:
        fields |= {"alloc": {"all": 4}, "encode_batch": None}
    f = has.simulate(_deployment(**fields), _profile(), _workload(), requests=200)
    assert f["completed"] == 200
    assert set(f["stages"]) == {"preprocess", "encode", "prefill", "decode"}
    assert "routed" not in f


def test_a_seed_makes_a_run_and_another_makes_another():
    runs = [has.simulate(_deployment(), _profile(), _workload(), requests=300, seed=s) for s in (3, 3, 4)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_rate_and_slo_flag_before_workload_before_deployment():
    d, p = _deployment(rate=1.0), _profile()
    strict = {"ttft_ms": 1.0, "tpot_ms": 1.0, "attainment": 0.5}

    def rates(workload, **options):
        run = simulate_run(d, p, workload, requests=2000, **options)
        return run.rate, round(run.figures["offered_rps"]), run.slo.ttft_ms

    assert rates(_workload(rate=None)) == (1.0, 1, 1000.0)
    assert rates(_workload(rate=4.0, slo=strict)) == (4.0, 4, 1.0)
    assert rates(_workload(rate=4.0, slo=strict), rate=8.0, slo={"ttft_ms": 7.0, "tpot_ms": 2.0}) == (
        8.0,
        8,
        7.0,
    )
    with pytest.raises(InputError, match="rate"):
        simulate_run(_deployment(), p, _workload(rate=None))


def test_a_list_keeps_its_times_unless_a_rate_is_given():
    rows = [
        {"arrival_s": t / 2, "modality": "image", "media_tokens": 9, "prompt_tokens": 1, "output_tokens": 2}
        for t in range(100)
    ]
    requests = Requests.from_rows(rows)
    kept = simulate_run(_deployment(), _profile(), requests)
    assert (kept.rate, kept.figures["offered_rps"]) == (pytest.approx(2.0), pytest.approx(2.0))
    assert simulate_run(_deployment(rate=7.0), _profile(), requests).rate == 7.0
    faster = simulate_run(_deployment(rate=7.0), _profile(), requests, rate=5.0)
    assert (faster.rate, faster.figures["offered_rps"]) == (5.0, pytest.approx(5.0))


def test_a_trace_estimates_its_rate_online_and_a_mixture_knows_it(tmp_path):
    rows = "\n".join(f"{t * 0.01},image,9,1,2" for t in range(200))
    path = tmp_path / "t.csv"
    path.write_text(f"arrival_s,modality,media_tokens,prompt_tokens,output_tokens\n{rows}\n")
    trace = Workload.model_validate({"version": 1, "arrivals": {"process": "trace", "file": str(path)}})
    # The deployment expects one request a second: a gap of seconds. The trace brings a hundred.
    d = _deployment(rate=1.0, encode_batch=64, prefill_offload=0.5)
    online = has.simulate(d, _profile(), trace)
    known = has.simulate(d.model_copy(update={"rate_estimate": "known"}), _profile(), trace)
    assert online["stages"]["encode"]["wait_ms"]["max"] < known["stages"]["encode"]["wait_ms"]["max"]


def test_an_sm_table_is_derived_where_none_is_given():
    rows = [
        {"stage": s, "sm_percent": sm, "batch": 1, "tokens": 100, "latency_s": t * (1 + (sm < 40))}
        for s, t in (("encode", 0.1), ("prefill", 0.05))
        for sm in (20, 40, 60)
    ]
    derived = Simulator(_profile(rows)).sm_table(_deployment())
    assert derived.split(1) == (40.0, 60.0)
    assert Simulator(_profile()).sm_table(_deployment()).streams


def test_media_share_of_the_mixture_sets_the_gap():
    """Half the requests are text: each encoder sees a quarter of the rate, so its gap is four times κ/Λ."""
    entry = {"modality": "image", "media_tokens": 100, "prompt_tokens": 20, "output_tokens": 2}
    text = {"modality": "text", "prompt_tokens": 20, "output_tokens": 2}
    w = Workload.model_validate_json(
        json.dumps(
            {
                "version": 1,
                "arrivals": {"process": "constant", "rate": 1.0},
                "requests": [entry, text],
            }
        )
    )
    d = _deployment(fill_probability=0.5)
    waits = simulate_run(d, _profile(), w, requests=400).records
    alone = waits.batch == 1
    gap = np.log(2) / (1.0 * 0.5 / 2)
    assert (waits.encode_start_ns - waits.requests.arrival_ns)[alone] == pytest.approx(gap * 1e9, abs=1.0)


def test_what_the_profile_does_not_reach_is_warned_of_and_then_refused():
    rows = [
        {"stage": "encode", "sm_percent": 100, "batch": 1, "tokens": t, "latency_s": t / 1000}
        for t in (50, 200)
    ]
    warnings: list[str] = []
    has.simulate(_deployment(), _profile(rows), _workload(media_tokens=600), requests=50, warnings=warnings)
    assert any("encode" in w and "600" in w for w in warnings)
    with pytest.raises(InputError, match="reach"):
        has.simulate(_deployment(), _profile(rows), _workload(media_tokens=801), requests=50)


def test_a_falling_profile_is_an_error_not_a_negative_time():
    rows = [
        {"stage": "encode", "sm_percent": 100, "batch": 1, "tokens": t, "latency_s": 0.5 - t / 400}
        for t in (50, 200)
    ]
    with pytest.raises(InputError, match="negative"):
        has.simulate(_deployment(), _profile(rows), _workload(media_tokens=400), requests=50)


def test_another_model_or_tensor_parallelism_is_a_warning():
    warnings: list[str] = []
    d = _deployment(gpus=5, alloc={"encode": 2, "prefill": 1, "decode": 2}, tensor_parallel={"decode": 2})
    has.simulate(d, _profile(model="other", tensor_parallel=1), _workload(), requests=10, warnings=warnings)
    assert any("other" in w for w in warnings)
    assert any("tensor_parallel" in w and "decode" in w for w in warnings)


def test_a_request_that_can_never_fit_fails_and_the_rest_go_on():
    w = _workload(prompt_tokens={"choice": {20: 0.5, 900: 0.5}})
    f = has.simulate(_deployment(kv_tokens=500), _profile(), w, requests=200)
    assert f["failed"] == 200 - f["completed"]
    assert 60 < f["failed"] < 140
    assert f["refused"] == 0


def test_a_bounded_queue_refuses_and_counts_it_a_miss():
    f = has.simulate(_deployment(max_queue=3), _profile(), _workload(rate=200.0), requests=300)
    assert f["refused"] > 100
    assert f["failed"] == f["refused"]
    assert f["attainment"] <= 1 - f["refused"] / 300


def test_no_request_is_an_error():
    with pytest.raises(InputError):
        run_records(_deployment(), _profile(), Requests.from_rows([]))


def test_logs_grow_where_a_small_budget_cuts_prefill_into_many_chunks():
    d = _deployment(
        topology="monolithic",
        alloc={"all": 4},
        prefill_offload=None,
        encode_batch=None,
        max_num_batched_tokens=3,
    )
    f = has.simulate(d, _profile(), _workload(), requests=40)
    assert f["completed"] == 40
    assert f["stages"]["prefill"]["batches"] >= 40 * 40


# --- the largest rate ---------------------------------------------------------------------------------


def _prepared(simulator, n=2000):
    from has.sim.draw import draw_requests

    return simulator.prepare(draw_requests(_workload(), requests=n, seed=5), 5)


def test_the_largest_rate_meets_the_target_and_one_per_cent_more_does_not():
    simulator = Simulator(_profile())
    d = _deployment(slo={"ttft_ms": 400.0, "tpot_ms": 50.0, "attainment": 0.9}, fill_probability=0.0)
    prepared = _prepared(simulator)
    found = max_rate(simulator, d, prepared, d.slo)
    assert found.max_rate_rps is not None
    assert found.attainment >= 0.9

    def attained(rate):
        f = has.simulate(d, _profile(), prepared.requests, rate=rate, seed=5)
        return f["attainment"]

    assert attained(found.max_rate_rps) == pytest.approx(found.attainment)
    assert attained(found.max_rate_rps * 1.005) < 0.9
    assert found.max_rate_rps <= 1.1 * capacity_bound(simulator, d, prepared)


def test_a_bound_that_is_too_low_does_not_cap_the_answer():
    simulator = Simulator(_profile())
    d = _deployment(fill_probability=0.0)
    prepared = _prepared(simulator)
    honest = max_rate(simulator, d, prepared, d.slo).max_rate_rps
    assert max_rate(simulator, d, prepared, d.slo, bound_rps=1.0).max_rate_rps == pytest.approx(
        honest, rel=0.006
    )


def test_a_gap_rule_that_starves_at_low_load_gives_a_low_edge():
    simulator = Simulator(_profile())
    d = _deployment(encode_batch=4)
    found = max_rate(simulator, d, _prepared(simulator), d.slo, low_edge=True)
    assert 0 < found.feasible_from_rps < found.max_rate_rps
    capped = d.model_copy(update={"max_wait_ms": 200.0})
    assert max_rate(simulator, capped, _prepared(simulator), d.slo, low_edge=True).feasible_from_rps is None


def test_what_no_rate_meets_has_no_largest_rate():
    simulator = Simulator(_profile())
    d = _deployment(slo={"ttft_ms": 120.0, "tpot_ms": 50.0})
    assert max_rate(simulator, d, _prepared(simulator), d.slo).max_rate_rps is None


WRONG_ARGUMENTS = [
    *(("requests", value) for value in (0, -1, 1.5, "10", True, 10**30)),
    *(("seed", value) for value in (-1, 1.5, "0", True, None, 2**63)),
    *(("rate", value) for value in (0, -1.0, "6", 10**400, True, 1e-320, 1e9, float("nan"))),
    *(("warmup_s", value) for value in (-1, "x", 1e308, None, True, float("inf"))),
    *(("slo", value) for value in (5, "fast", [1], {"ttft_ms": 1e308, "tpot_ms": 50})),
    *(("deployment", value) for value in (None, {}, "d.yaml", 5)),
    *(("profile", value) for value in (None, {}, "p.csv", 5)),
    *(("workload", value) for value in (None, {}, "w.yaml", 5)),
]


@pytest.mark.parametrize(("name", "value"), WRONG_ARGUMENTS)
def test_a_wrong_argument_is_named(name, value):
    arguments = {"deployment": _deployment(), "profile": _profile(), "workload": _workload()} | {name: value}
    with pytest.raises(InputError) as error:
        has.simulate(**arguments)
    assert name in f"{error.value.where} {error.value.field}"


def test_numbers_of_numpy_are_arguments_too():
    plain = has.simulate(_deployment(), _profile(), _workload(), requests=50, rate=6.0, seed=3)
    assert plain == has.simulate(
        _deployment(), _profile(), _workload(), requests=np.int64(50), rate=np.float64(6), seed=np.uint32(3)
    )

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from has.core.deployment import Deployment
from has.core.slo import Slo
from has.files.profile import profile_from_rows
from has.search.capacity import Demand, loosest, strictest
from has.search.objective import Objective, largest_rate
from has.search.predict import Predictor
from has.search.problem import Problem
from has.search.space import Candidate
from has.sim.draw import draw_requests
from tests.search.small import make_profile, make_workload

EPD = "disaggregated"


def constant(encode_s: float = 0.1, prefill_s: float = 0.2, decode_s: float = 0.01, **more: float) -> object:
    rows = [
        {"stage": stage, "sm_percent": 100.0, "batch": 1, "tokens": 100, "latency_s": seconds}
        for stage, seconds in {"encode": encode_s, "prefill": prefill_s, "decode": decode_s, **more}.items()
    ]
    return profile_from_rows({"version": 1, "device": "d", "model": "m", "source": "measured"}, rows)


def problem(profile: object, *, workload: object = None, **settings: object) -> Problem:
    entry = {"modality": "image", "media_tokens": 100, "prompt_tokens": 10, "output_tokens": 21}
    workload = workload or make_workload(requests=[entry])
    return Problem(
        gpus=8,
        profile=profile,
        workload=workload,
        objective=Objective("max-rate", (), workload.slo),
        requests=draw_requests(workload, rate=8.0, requests=400, seed=0),
        base_rate=8.0,
        settings={"model": "m", "max_prefill_requests": 1, "max_num_seqs": 16, **settings},
        batches=(1, 2, 4),
    )


def test_by_hand() -> None:
    """Constant latencies: encode .1 s a batch, prefill .2 s, decode .01 s a step of up to 16."""
    model = problem(constant()).capacity_model()
    stages = model.of(Candidate(EPD, (2, 3, 3), (1, 1, 1), 4, 750_000)).stages
    assert stages["encode"] == pytest.approx(2 * 4 / 0.1)
    assert stages["prefill_remote"] == pytest.approx(3 / 0.2 / 0.75)
    assert stages["prefill_local"] == pytest.approx(2 / 0.2 / 0.25)  # streams: encode takes nothing from it
    assert stages["decode"] == pytest.approx(3 * 16 / (20 * 0.01))
    assert model.of(Candidate(EPD, (2, 3, 3), (1, 1, 1), 4, 750_000)).binding == "prefill_remote"
    assert "prefill_local" not in model.of(Candidate(EPD, (2, 3, 3), (1, 1, 1), 4, 10**6)).stages
    tp2 = model.of(Candidate(EPD, (2, 4, 2), (1, 2, 2), 1, 500_000)).stages
    assert tp2["prefill_remote"] == pytest.approx(2 / 0.2 / 0.5)
    assert tp2["prefill_local"] == pytest.approx(1 / 0.2 / 0.5)  # a local prefill spans both encode GPUs
    assert tp2["decode"] == pytest.approx(1 * 16 / (20 * 0.01))
    monolith = model.of(Candidate("monolithic", (8,), (1,), 0, 0))
    assert monolith.limit == pytest.approx(8 / (0.1 + 0.2 + 20 * 0.01 / 16))


def test_share_of_media_counts_not_requests() -> None:
    media = {"modality": "image", "media_tokens": 100, "prompt_tokens": 10, "output_tokens": 21}
    text = {"modality": "text", "prompt_tokens": 110, "output_tokens": 21}
    half = make_workload(requests=[media | {"weight": 1.0}, text | {"weight": 1.0}])
    asked = problem(constant(), workload=half)
    share = Demand.of(asked.requests).media_share
    assert 0.4 < share < 0.6
    encode = asked.capacity_model().of(Candidate(EPD, (2, 3, 3), (1, 1, 1), 1, 10**6)).stages["encode"]
    assert encode == pytest.approx(2 / 0.1 / share)


def test_preprocessing_on_the_cpu_can_be_what_binds() -> None:
    asked = problem(constant(preprocess=2.0))
    found = asked.capacity_model().of(Candidate(EPD, (3, 3, 2), (1, 1, 1), 4, 500_000))
    assert found.binding == "preprocess"
    assert found.stages["preprocess"] == pytest.approx(8 / 2.0)
    # And more encode GPUs gain nothing.
    more = asked.capacity_model().of(Candidate(EPD, (4, 2, 2), (1, 1, 1), 4, 500_000))
    assert more.limit == found.limit


def test_kv_memory_bounds_the_decode_batch() -> None:
    model = problem(constant()).capacity_model()
    assert model.decode_batch(None) == 16
    assert model.decode_batch(131 * 5) == 5  # each sequence holds 110 + 21 tokens
    assert model.decode_batch(100) == 0


def test_tpot_bounds_the_decode_batch() -> None:
    model = problem(make_profile(decode_s=0.03)).capacity_model()  # 30 ms · (.8 + .05 b + …) within 40 ms
    assert 8 <= model.decode_batch(None) <= 11


@pytest.mark.parametrize(
    "candidate",
    [
        Candidate(EPD, (2, 3, 3), (1, 1, 1), 4, 750_000),
        Candidate(EPD, (4, 0, 4), (1, 1, 1), 2, 0),
        Candidate(EPD, (2, 4, 2), (1, 2, 1), 1, 10**6),
        Candidate("e_pd", (2, 6), (1, 1), 4, 0),
        Candidate("monolithic", (8,), (1,), 0, 0),
    ],
    ids=lambda c: c.label,
)
def test_bounds_what_the_simulator_can_carry(candidate: Candidate) -> None:
    """Throughput at twice the bound comes close to it and never beyond (but for the run's ends)."""
    asked = problem(make_profile(), workload=make_workload(), max_num_seqs=32)
    predictor = Predictor(asked)
    limit = predictor.limit(candidate)
    figures = predictor.figures(asked.deployment(candidate), 2 * limit, asked.requests)
    # Decode may take larger batches than TPOT allows, so a decode-bound candidate can carry more.
    binding = asked.capacity_model().of(candidate, None).binding
    if binding not in ("decode", "all", "prefill_decode"):
        assert figures["throughput_rps"] <= 1.10 * limit
    assert figures["throughput_rps"] >= 0.5 * limit


def test_deployments_carry_what_a_runtime_needs() -> None:
    asked = problem(make_profile(), workload=make_workload())
    deployment: Deployment = asked.deployment(Candidate(EPD, (2, 3, 3), (1, 1, 1), 4, 500_000))
    assert deployment.sm_table is not None
    assert [row.batch for row in deployment.sm_table] == [1, 2, 3, 4]
    services = asked.services(4, local=True, remote=True)
    assert 0 < deployment.max_wait_ms < 1000 * (2.0 - services.min()) / 2
    late = asked.deployment(Candidate(EPD, (2, 3, 3), (1, 1, 1), 16, 500_000))
    assert late.max_wait_ms < deployment.max_wait_ms


def test_largest_rate_scans_from_above() -> None:
    """Attainment dips at low rates too (a gap rule starves): the upper edge is what counts."""
    from has.search.objective import Point

    def run(rate: float) -> Point:
        return Point(rate, 0.95 if 4.0 <= rate <= 10.0 else 0.5, rate, 100.0)

    score = largest_rate(run, 20.0, 0.9)
    assert score.feasible
    assert 10.0 * (1 - 0.01) <= score.value <= 10.0
    assert not largest_rate(lambda r: Point(r, 0.1, r, 1.0), 20.0, 0.9).feasible


def test_bounds_are_of_the_request_that_has_most_time_promises_of_the_one_that_has_least() -> None:
    listed = draw_requests(make_workload(), rate=1.0, requests=4, seed=1)
    slo = Slo(ttft_ms=1000.0, tpot_ms=50.0)
    assert loosest(listed, slo) is slo
    own = replace(
        listed,
        ttft_slo_s=np.array([np.nan, 0.5, 3.0, np.nan]),
        tpot_slo_s=np.array([np.nan, 0.1, 0.02, np.nan]),
    )
    assert (loosest(own, slo).ttft_ms, loosest(own, slo).tpot_ms) == (3000.0, 100.0)
    assert (strictest(own, slo).ttft_ms, strictest(own, slo).tpot_ms) == (500.0, 20.0)

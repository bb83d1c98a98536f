"""Several workloads at once, and pools of different GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from has.core.profile import Profile
from has.core.slo import Slo
from has.core.space import SearchSpace
from has.core.workload import Workload
from has.errors import InputError
from has.search.explain import explain
from has.search.journal import read_pool_profiles
from has.search.objective import Objective
from has.search.pools import latency_of
from has.search.predict import Predictor
from has.search.problem import Problem
from has.search.question import all_workloads, ask
from has.search.run import resume_inputs, search
from has.search.simulated import ModelExecutor
from has.search.space import enumerate_space
from has.sim.draw import draw_requests
from tests.search.small import make_profile, make_workload

SPACE = SearchSpace.model_validate({"version": 1, "encode_batch": [1, 4], "prefill_offload": {"step": 0.5}})


def stream(name: str, media_tokens: int, output_tokens: int, **slo: float) -> Workload:
    entry = {
        "modality": "image",
        "media_tokens": media_tokens,
        "prompt_tokens": 50,
        "output_tokens": output_tokens,
    }
    changes: dict[str, Any] = {"name": name, "requests": [entry]}
    if slo:
        changes["slo"] = {"ttft_ms": 2000.0, "tpot_ms": 40.0} | slo
    return make_workload(**changes)


PICTURES, TALK = stream("pictures", 1200, 10), stream("talk", 100, 150)


def problem(profile: Profile, first: Workload, *further: Workload, **changes: Any) -> Problem:
    assert first.slo is not None
    return Problem(
        gpus=5,
        profile=profile,
        workload=first,
        objective=Objective("goodput", (6.0,), first.slo),
        requests=draw_requests(first, rate=6.0, requests=200, seed=0),
        base_rate=6.0,
        settings={"model": "synthetic"},
        batches=(1, 4),
        further=further,
        **changes,
    )


def test_the_worst_workload_speaks_for_a_deployment(profile: Profile) -> None:
    """Alone, each workload gives a figure; together, the lower of the two."""
    together = Predictor(problem(profile, PICTURES, TALK))
    alone = [Predictor(problem(profile, w)) for w in (PICTURES, TALK)]
    for candidate in enumerate_space(SPACE, 5)[::4]:
        deployment = together.problem.deployment(candidate)
        seen = [p.point(deployment, 9.0, p.problem.requests).attainment for p in alone]
        both = together.point(deployment, 9.0, together.problem.requests).attainment
        assert both == pytest.approx(min(seen), abs=1e-12)
        assert together.limit(candidate) == pytest.approx(min(p.limit(candidate) for p in alone))


def test_each_workload_is_held_to_its_own_slo(profile: Profile) -> None:
    hasty = stream("hasty", 1200, 10, ttft_ms=400.0)
    candidate = next(c for c in enumerate_space(SPACE, 5) if c.label == "3E1P1D B1 s0.5")
    lax = Predictor(problem(profile, TALK, PICTURES))
    strict = Predictor(problem(profile, TALK, hasty))
    points = [p.point(p.problem.deployment(candidate), 4.0, p.problem.requests) for p in (lax, strict)]
    assert points[1].attainment < points[0].attainment


def test_a_search_over_two_workloads_finds_what_serves_both_and_resumes(
    profile: Profile, tmp_path: Path
) -> None:
    asked = {"space": SPACE, "requests": 100, "trials": 5, "seed": 1}
    both = search(4, profile, [PICTURES, TALK], run_dir=tmp_path / "run", **asked)
    assert {t.figures.get("workload") for t in both.trials if t.figures} <= {None, "talk"}
    assert (tmp_path / "run" / "workload-2.yaml").is_file()
    again = search(**resume_inputs(tmp_path / "run"))
    assert again.objective == both.objective
    assert again.best.alloc == both.best.alloc
    assert both.best.evidence is not None
    assert both.best.evidence["reproduce"].count("--workload") == 2


def test_workloads_of_one_name_are_told_apart_and_options_go_before_each_slo() -> None:
    twin = stream("pictures", 100, 100, tpot_ms=60.0)
    first, second = all_workloads([PICTURES, twin], ttft_ms=900.0, tpot_ms=None)
    assert (first, second.name) == (PICTURES, "pictures (2)")
    assert second.slo == Slo(ttft_ms=900.0, tpot_ms=60.0)
    bare = twin.model_copy(update={"slo": None})
    assert all_workloads([PICTURES, bare], None, None)[1].slo == PICTURES.slo
    assert all_workloads(all_workloads([PICTURES, twin], None, None), None, None)[1].name == "pictures (2)"


def test_the_target_is_the_strictest(profile: Profile) -> None:
    slo = Slo(ttft_ms=2000.0, tpot_ms=40.0, attainment=0.97)
    keen = PICTURES.model_copy(update={"name": "keen", "slo": slo})

    def target(attainment: float | None) -> float:
        asked = ask(
            4,
            [TALK, keen],
            2.0,
            None,
            None,
            attainment,
            None,
            None,
            3,
            100,
            ModelExecutor(profile),
            0,
            "synthetic",
        )
        found: float = asked["slo"]["attainment"]
        return found

    assert target(None) == 0.97
    assert target(0.8) == 0.8


# Pools of different GPUs.


def test_each_pool_runs_at_the_latencies_of_its_own_gpus(profile: Profile, workload: Workload) -> None:
    slower = make_profile(factors={"encode": 2.0, "prefill": 4.0})
    mixed = problem(profile, workload, pool_profiles={"encode": slower})
    model, usual, slow = (
        mixed.capacity_model(),
        problem(profile, workload).capacity_model(),
        problem(slower, workload).capacity_model(),
    )
    point = next(
        c
        for c in enumerate_space(SPACE, 5)
        if c.topology == "disaggregated" and c.gpus == (2, 1, 2) and c.share == 0.5
    )
    assert model.remote_prefill(point) == usual.remote_prefill(point)
    assert model.idle_local_prefill(point) == slow.idle_local_prefill(point)
    assert model.encode_throughput(1) == slow.encode_throughput(1)
    assert model.of(point).stages["decode"] == usual.of(point).stages["decode"]
    assert mixed.deployment(point).hardware == dict.fromkeys(("encode", "prefill", "decode"), "synthetic")
    local, remote = (np.mean(mixed.services(1, local=local, remote=not local)) for local in (True, False))
    assert local > remote


def test_memory_is_that_of_each_pools_gpus(workload: Workload) -> None:
    facts = {"weights_bytes": {"encoder": 10**9, "lm": 30 * 10**9}, "kv_bytes_per_token": 10**5}
    large = make_profile(memory_bytes=80 * 10**9, **facts)
    small = make_profile(memory_bytes=24 * 10**9, **facts)
    outcome = search(
        4, large, workload, pool_profiles={"encode": small}, space=SPACE, rate=4.0, requests=100, trials=3
    )
    local = [c for c in outcome.pruned if c.candidate.topology == "disaggregated" and c.candidate.share < 1]
    assert local
    assert {c.rule for c in local} == {"memory"}  # no language model fits beside the encoder
    assert outcome.best.topology != "disaggregated" or outcome.best.prefill_offload == 1


def test_a_run_keeps_the_profiles_of_its_pools_and_goes_on_with_them(
    profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    slower = make_profile(factors={"encode": 1.5})
    asked = {"space": SPACE, "rate": 5.0, "requests": 100, "trials": 4, "seed": 1}
    first = search(4, profile, workload, pool_profiles={"encode": slower}, run_dir=tmp_path / "run", **asked)
    assert set(read_pool_profiles(tmp_path / "run")) == {"encode"}
    assert search(**resume_inputs(tmp_path / "run")).objective == first.objective
    told = explain(first.best, profile, workload, rate=5.0, requests=200, pool_profiles={"encode": slower})
    plain = explain(first.best, profile, workload, rate=5.0, requests=200)
    if first.best.topology != "monolithic":
        assert told["capacities"]["stages_rps"]["encode"] < plain["capacities"]["stages_rps"]["encode"]


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        ({"encoder": make_profile()}, "no such pool"),
        ({"encode": make_profile(notes="x").model_copy(update={"metadata": make_profile().metadata.model_copy(update={"model": "other"})})}, "another model"),
    ],
)  # fmt: skip
def test_profiles_that_fit_no_pool_or_model_are_refused(
    profile: Profile, pools: dict[str, Profile], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        latency_of(profile, pools)

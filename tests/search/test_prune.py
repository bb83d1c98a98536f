from __future__ import annotations

import pytest

from has.core.space import SearchSpace
from has.errors import InfeasibleError
from has.search.objective import Objective
from has.search.problem import Problem
from has.search.prune import LEAST_ALLOCATIONS, margin, only_possible, prune
from has.search.space import Candidate, enumerate_space
from has.search.worlds import SHORT
from has.sim.draw import draw_requests
from tests.search.small import make_profile, make_workload

SPACE = SearchSpace(version=1)


def problem(
    *, rate: float | None = 8.0, gpus: int = 8, workload: object = None, **profile: object
) -> Problem:
    workload = workload or make_workload()
    rates = () if rate is None else (rate,)
    return Problem(
        gpus=gpus,
        profile=make_profile(**profile),
        workload=workload,
        objective=Objective("goodput" if rates else "max-rate", rates, workload.slo),
        requests=draw_requests(workload, rate=8.0, requests=40, seed=0),
        base_rate=8.0,
        settings={"model": "synthetic"},
        batches=SPACE.encode_batch,
    )


def test_most_of_the_space_goes_and_every_cut_says_why() -> None:
    asked = problem(rate=None)
    everything = enumerate_space(SPACE, 8)
    pruned = prune(asked, everything, None)
    assert len(pruned.kept) < 0.3 * len(everything)
    assert sorted([*pruned.kept, *(cut.candidate for cut in pruned.cuts)]) == sorted(everything)
    for cut in pruned.cuts:
        assert cut.rule
        assert cut.reason
        assert cut.margin >= 0
    assert sum(pruned.by_rule.values()) == len(pruned.cuts)


@pytest.mark.parametrize("ttft_ms", [1.0, 30.0, 2000.0])
def test_what_is_kept_and_what_is_cut_add_up_also_where_nothing_can_meet_the_slo(ttft_ms: float) -> None:
    """A rule that would cut everything leaves it, and then has cut nothing."""
    asked = problem(rate=None, gpus=4, workload=make_workload(slo={"ttft_ms": ttft_ms, "tpot_ms": 40.0}))
    everything = enumerate_space(SearchSpace(version=1, encode_batch=[1, 4]), 4)
    pruned = prune(asked, everything, None)
    assert len(pruned.kept) + len(pruned.cuts) == len(everything)
    assert sum(pruned.by_rule.values()) == len({cut.candidate for cut in pruned.cuts}) == len(pruned.cuts)
    assert not set(pruned.kept) & {cut.candidate for cut in pruned.cuts}


def test_margin_is_what_two_stages_wrong_in_opposite_ways_shift() -> None:
    assert margin(0.25) == pytest.approx(0.40)
    assert margin(0.10) == pytest.approx(0.1818, abs=1e-4)
    assert margin(0.0) == 0.0


def test_a_larger_stated_error_keeps_more() -> None:
    everything = enumerate_space(SPACE, 8)
    found = [prune(problem(rate=None, error=e), everything, None) for e in (0.1, 0.15, 0.25)]
    # By what is certain of each alone: the last rule has room for as many, however wrong the profile is.
    kept = [len(pruned.kept) + pruned.by_rule.get("worlds", 0) for pruned in found]
    assert kept[0] < kept[1] < kept[2]


@pytest.mark.parametrize("rate", [1.0, 6.0, 12.0])
def test_of_candidates_that_carry_the_load_equally_well_some_stay(rate: float) -> None:
    """At a low rate nearly all do; looking at who is best in many worlds then ends where enough are."""
    everything = enumerate_space(SPACE, 8)
    pruned = prune(problem(rate=rate), everything, rate)
    assert len(pruned.kept) <= 0.3 * len(everything)
    assert not any("worlds was off" in note for note in pruned.notes)


def test_where_looking_at_worlds_takes_too_long_it_is_off_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everything, asked = enumerate_space(SPACE, 8), problem(rate=1.0)
    with_worlds = prune(asked, everything, 1.0)
    monkeypatch.setattr("has.search.prune.WORK", 2 * len(everything) * SHORT)
    without = prune(asked, everything, 1.0)
    assert "worlds" not in without.by_rule
    assert any("worlds was off" in note for note in without.notes)
    assert set(with_worlds.kept) < set(without.kept)


def test_at_overload_something_is_always_kept() -> None:
    """No allocation is stable at a thousand requests a second; the bound is relative to the best."""
    pruned = prune(problem(rate=1000.0), enumerate_space(SPACE, 8), 1000.0)
    assert len({c.allocation for c in pruned.kept}) >= LEAST_ALLOCATIONS


def test_never_fewer_than_three_allocations() -> None:
    lopsided = problem(rate=None, encode_s=2.0, prefill_s=0.01, decode_s=0.001, error=0.0)
    pruned = prune(lopsided, enumerate_space(SPACE, 8), None)
    assert len({c.allocation for c in pruned.kept}) >= LEAST_ALLOCATIONS


def large_model(gpu_bytes: int) -> dict[str, object]:
    """34B in bf16."""
    return {
        "memory_bytes": gpu_bytes,
        "weights_bytes": {"encoder": 600 * 10**6, "lm": 69 * 10**9},
        "kv_bytes_per_token": 245_760,
    }


def test_memory_forces_full_offload_where_the_encoder_gpus_cannot_hold_the_lm() -> None:
    space = SearchSpace(version=1, tensor_parallel={"prefill": [2], "decode": [2]})
    model = large_model(48 * 10**9) | {"weights_bytes": {"encoder": 12 * 10**9, "lm": 69 * 10**9}}
    asked = problem(rate=None, **model)
    # Half the LM (34.5 GB) beside an encoder of 12 GB is over 43.2 GB by more than the 5 % of tolerance.
    pruned = only_possible(asked, enumerate_space(space, 8))
    assert {c.share for c in pruned.kept if c.topology == "disaggregated"} == {1.0}
    assert {c.candidate.share for c in pruned.cuts} >= {0.0, 0.1, 0.9}
    asked = problem(rate=None, **large_model(48 * 10**9))
    wide = SearchSpace(version=1, tensor_parallel={"prefill": [1], "decode": [2]})
    with_tp1 = [c for c in enumerate_space(wide, 8) if c.topology == "disaggregated"]
    with pytest.raises(InfeasibleError, match="memory admits no candidate"):
        only_possible(asked, with_tp1)


def test_kv_that_every_gpu_holds_a_copy_of_makes_candidates_impossible() -> None:
    """Requests whose KV fits when four GPUs share it do not fit where each holds all of it."""
    space = SearchSpace(version=1, topologies=["monolithic"], tensor_parallel={"prefill": [4], "decode": [4]})
    model = large_model(80 * 10**9) | {"kv_bytes_per_token": 10**8}
    few = problem(rate=None, kv_heads=4, **model)
    assert only_possible(few, enumerate_space(space, 8)).kept
    with pytest.raises(InfeasibleError, match="memory admits no candidate"):
        only_possible(problem(rate=None, kv_heads=1, **model), enumerate_space(space, 8))


def test_memory_names_the_pool_and_the_figures() -> None:
    with pytest.raises(InfeasibleError) as answer:
        prune(problem(**large_model(24 * 10**9)), enumerate_space(SPACE, 8), 8.0)
    assert "69.0 GB" in answer.value.message
    assert "21.6 GB" in answer.value.message


def test_unchecked_memory_is_said() -> None:
    assert any(
        "memory is not checked" in note for note in only_possible(problem(), enumerate_space(SPACE, 4)).notes
    )


def test_batches_beyond_the_profiles_reach_are_never_candidates() -> None:
    space = SearchSpace(version=1, encode_batch=[1, 64, 65])
    points = enumerate_space(space, 4)
    kept = only_possible(problem(gpus=4), points).kept
    assert {c.encode_batch for c in kept} == {0, 1, 64}


def test_restoring_takes_cuts_back() -> None:
    pruned = prune(problem(rate=None), enumerate_space(SPACE, 8), None)
    victim: Candidate = pruned.cuts[0].candidate
    back = pruned.restore([victim], "because")
    assert victim in back.kept
    assert all(cut.candidate != victim for cut in back.cuts)
    assert back.notes[-1] == "because"

"""Tensor parallelism that a search chooses from is that of its profiles: no other has latencies."""

from __future__ import annotations

from pathlib import Path

import pytest

import has
from has.core.profile import Profile
from has.core.space import SearchSpace, TpRanges
from has.errors import InputError
from has.files.space import load_space, save_space
from has.search.parallelism import at_profiles
from tests.search.small import make_profile, make_workload


def taken_at(tp: int | None, **metadata: str) -> Profile:
    made = make_profile(tensor_parallel=tp)
    return made.model_copy(update={"metadata": made.metadata.model_copy(update=metadata)})


def test_what_a_space_leaves_out_is_each_pools_own_profiles() -> None:
    for space in (SearchSpace(version=1), load_space("gpus-8"), load_space("gpus-16")):
        held = at_profiles(space, taken_at(2), {"decode": taken_at(4)})
        assert (held.tensor_parallel.prefill, held.tensor_parallel.decode) == ((2,), (4,))
    half = SearchSpace(version=1, tensor_parallel=TpRanges(prefill=(1,)))
    with pytest.raises(InputError, match="taken at tensor_parallel 2"):
        at_profiles(half, taken_at(2), {})
    assert at_profiles(half, taken_at(2), {"prefill": taken_at(1)}).tensor_parallel.decode == (2,)


def test_what_no_profile_is_of_is_refused_with_the_command_that_makes_one() -> None:
    space = SearchSpace(version=1, tensor_parallel={"prefill": [1, 2], "decode": [2]})
    with pytest.raises(InputError) as refused:
        at_profiles(space, taken_at(2, source="roofline", device="H100 SXM", model="llava-v1.6-34b"), {})
    assert (refused.value.field, refused.value.value) == ("tensor_parallel.prefill", [1, 2])
    assert "has profile --model llava-v1.6-34b --gpu 'H100 SXM' --source roofline --tensor-parallel 1" in str(
        refused.value
    )
    with pytest.raises(
        InputError, match="taken at tensor_parallel 1"
    ):  # a PD pool's own profile is asked too
        at_profiles(
            SearchSpace(version=1, tensor_parallel={"decode": [2], "prefill": [2]}),
            taken_at(2),
            {"prefill_decode": taken_at(1)},
        )


def test_a_profile_that_does_not_say_is_believed_to_hold_for_all() -> None:
    space = SearchSpace(version=1, tensor_parallel={"prefill": [1, 2], "decode": [2]})
    assert at_profiles(space, taken_at(None), {}) == space


def test_left_out_stays_left_out_in_a_file(tmp_path: Path) -> None:
    save_space(SearchSpace(version=1), tmp_path / "s.yaml")
    assert at_profiles(load_space(tmp_path / "s.yaml"), taken_at(2), {}).tensor_parallel.decode == (2,)


def test_the_library_searches_at_the_profiles_and_keeps_that(tmp_path: Path) -> None:
    outcome = has.search(4, taken_at(2), make_workload(), trials=2, requests=60, run_dir=tmp_path / "run")
    pools = {"disaggregated": "decode", "e_pd": "prefill_decode", "monolithic": "all"}
    for one in (outcome.best, *(t.deployment for t in outcome.trials)):
        assert one.tp(pools[one.topology]) == 2
    assert load_space(tmp_path / "run" / "space.yaml").tensor_parallel.decode == (2,)

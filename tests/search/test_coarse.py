"""The lattice of a large space: with a step of one it is the space, and no step or neighbour leaves it."""

from __future__ import annotations

import pytest

from has.core.space import SearchSpace
from has.search.coarse import is_large
from has.search.lattice import grown, lattice, neighbours, of_allocation
from has.search.space import enumerate_space

SPACES = {
    "everything": {},
    "ranges": {"alloc": {"encode": [2, 4], "prefill": [0, 2], "decode": [1, 5]}},
    "parallel": {"tensor_parallel": {"prefill": [1, 2], "decode": [1, 2]}, "encode_batch": [1, 4]},
    "remote only": {"prefill_offload": {"min": 1.0, "max": 1.0}},
}


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("gpus", [2, 7, 8])
def test_the_lattice_is_of_the_space(name, gpus):
    space = SearchSpace.model_validate({"version": 1, **SPACES[name]})
    whole = set(enumerate_space(space, gpus))
    assert set(lattice(space, gpus, 1)) == whole
    assert set(lattice(space, gpus, 3)) <= whole
    for candidate in list(whole)[::50]:
        assert set(neighbours(space, candidate, 1)) <= whole


@pytest.mark.parametrize("name", SPACES)
def test_all_that_an_allocation_can_have(name):
    space = SearchSpace.model_validate({"version": 1, **SPACES[name]})
    whole = enumerate_space(space, 7)
    for allocation in {c.allocation for c in whole}:
        found = list(of_allocation(space, allocation))
        assert len(found) == len(set(found))
        assert set(found) == {c for c in whole if c.allocation == allocation}
    assert not list(of_allocation(space, ("disaggregated", (99, 0, 0), (1, 1, 1))))


def test_what_is_large():
    space = SearchSpace(version=1)
    assert not is_large(space, [16])
    assert is_large(space, [32])
    assert is_large(space, [1024])
    assert is_large(space, range(1, 17))
    assert is_large(space, [16], requests=1000)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize(("gpus", "more"), [(3, 6), (7, 9), (8, 24)])
def test_a_candidate_on_more_gpus_keeps_its_proportions(name, gpus, more):
    space = SearchSpace.model_validate({"version": 1, **SPACES[name]})
    wide = SearchSpace.model_validate({"version": 1, **SPACES[name], "alloc": {}})
    for candidate in enumerate_space(space, gpus)[::7]:
        for larger in grown(wide, candidate, more):
            assert larger.total == more
            assert (larger.tp, larger.encode_batch, larger.offload) == (
                candidate.tp,
                candidate.encode_batch,
                candidate.offload,
            )
            share = [m / more - n / gpus for n, m in zip(candidate.gpus, larger.gpus, strict=True)]
            assert max(map(abs, share)) <= sum(candidate.tp) / more

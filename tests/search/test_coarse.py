"""The lattice of a large space: with a step of one it is the space, and no step or neighbour leaves it."""

from __future__ import annotations

import pytest

from has.core.space import SearchSpace
from has.search.coarse import _lattice, _neighbours, is_large
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
    assert set(_lattice(space, gpus, 1)) == whole
    assert set(_lattice(space, gpus, 3)) <= whole
    for candidate in list(whole)[::50]:
        assert set(_neighbours(space, candidate, 1)) <= whole


def test_what_is_large():
    space = SearchSpace(version=1)
    assert not is_large(space, 16)
    assert is_large(space, 32)
    assert is_large(space, 1024)

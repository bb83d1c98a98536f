from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has.core.deployment import Deployment
from has.core.space import SearchSpace
from has.search.space import Candidate, candidate_of, enumerate_space, offload_values

SLO = {"ttft_ms": 2000, "tpot_ms": 50}


def deployment(candidate: Candidate) -> Deployment:
    return Deployment(version=1, model="m", slo=SLO, **candidate.fields())


def test_size_at_8_gpus_is_the_known_one() -> None:
    points = enumerate_space(SearchSpace(version=1), 8)
    by_topology = {t: sum(p.topology == t for p in points) for t in ("disaggregated", "e_pd", "monolithic")}
    assert by_topology == {"disaggregated": 1519, "e_pd": 49, "monolithic": 1}
    assert len(set(points)) == len(points)


@pytest.mark.parametrize(
    "label", ["5E2P1D B4 s0.5", "6E1P1D B1 s1", "1E0P7D B16 s0", "1E6P1D B12 s0.1", "8M", "7E1PD B6"]
)
def test_points_a_published_allocator_forgets_are_reached(label: str) -> None:
    assert label in {deployment(c).label for c in enumerate_space(SearchSpace(version=1), 8)}


@settings(max_examples=25, deadline=None)
@given(
    gpus=st.integers(2, 7),
    tps=st.sets(st.sampled_from([1, 2, 3, 4]), min_size=1),
    batches=st.sets(st.integers(1, 9), min_size=1, max_size=3),
    step=st.sampled_from([0.1, 0.25, 0.3, 0.5]),
)
def test_every_valid_tuple_and_no_other_is_a_candidate(
    gpus: int, tps: set[int], batches: set[int], step: float
) -> None:
    """Against brute force: build every tuple in the box, keep those the Deployment accepts."""
    space = SearchSpace(
        version=1,
        tensor_parallel={"prefill": sorted(tps), "decode": sorted(tps)},
        encode_batch=sorted(batches),
        prefill_offload={"step": step},
        topologies=["disaggregated"],
    )
    shares = offload_values(space.prefill_offload)
    expected = set()
    for e, p, tp_p, tp_d, b, s in itertools.product(
        range(1, gpus), range(gpus), sorted(tps), sorted(tps), sorted(batches), shares
    ):
        point = Candidate("disaggregated", (e, p, gpus - e - p), (1, tp_p, tp_d), b, s)
        try:
            deployment(point)
        except ValueError:
            continue
        expected.add(point)
    assert set(enumerate_space(space, gpus)) == expected


def test_offload_values_are_exact_and_end_at_the_maximum() -> None:
    assert offload_values(SearchSpace(version=1).prefill_offload) == tuple(range(0, 10**6 + 1, 10**5))
    third = SearchSpace(version=1, prefill_offload={"step": 0.3}).prefill_offload
    assert offload_values(third) == (0, 300_000, 600_000, 900_000, 1_000_000)


def test_a_candidate_survives_the_way_through_a_deployment() -> None:
    space = SearchSpace(version=1, tensor_parallel={"prefill": [1, 2], "decode": [2]})
    for point in enumerate_space(space, 8):
        assert candidate_of(deployment(point)) == point
        assert deployment(point).label == point.label


def test_ranges_bind() -> None:
    space = SearchSpace(version=1, alloc={"encode": [2, 3], "prefill": [0, 1], "decode": [4, 8]})
    points = enumerate_space(space, 8)
    assert {p.gpus for p in points if p.topology == "disaggregated"} == {
        (2, 0, 6),
        (2, 1, 5),
        (3, 0, 5),
        (3, 1, 4),
    }
    assert {p.gpus for p in points if p.topology == "e_pd"} == {(2, 6), (3, 5)}


def test_labels_tell_apart_what_differs_in_the_gpus_of_a_worker_alone() -> None:
    space = SearchSpace.model_validate(
        {"version": 1, "encode_batch": [4], "tensor_parallel": {"prefill": [1, 2], "decode": [1, 2]}}
    )
    points = enumerate_space(space, 8)
    labels = [point.label for point in points]
    assert len(set(labels)) == len(labels)
    fields = {"version": 1, "model": "m", "slo": {"ttft_ms": 1000.0, "tpot_ms": 50.0}}
    for point in points:
        assert Deployment.model_validate({**fields, **point.fields()}).label == point.label
    assert {"2E4P(2)2D B4 s0.5", "2E4P2D B4 s0.5", "2E6PD(2) B4", "8M(2)", "8M"} <= set(labels)

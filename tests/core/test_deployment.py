"""A deployment refuses every shape that could not run, and names the field."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from pydantic import ValidationError

from has.core.deployment import Deployment

GOOD: dict[str, Any] = {
    "version": 1,
    "model": "tiny-image",
    "topology": "disaggregated",
    "gpus": 8,
    "alloc": {"encode": 2, "prefill": 2, "decode": 4},
    "encode_batch": 4,
    "prefill_offload": 0.5,
    "slo": {"ttft_ms": 2000, "tpot_ms": 50},
}


def make(**changes: Any) -> Deployment:
    fields = {**GOOD, **changes}
    return Deployment.model_validate({k: v for k, v in fields.items() if v is not ...})


def test_defaults_are_those_of_the_documentation() -> None:
    d = make()
    assert (d.fill_probability, d.encode_slowdown_budget, d.offload_unit) == (0.6, 0.2, "request")
    assert (d.max_num_seqs, d.gpu_memory_utilization, d.prefill_token_budget) == (256, 0.9, 8192)
    assert (d.sm_table, d.rate, d.dispatch, d.first_token) == (None, None, "random", "prefill")
    assert d.preprocess_servers == 8
    assert d.label == "2E2P4D B4 s0.5"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gpus": 9}, "gpus"),
        ({"alloc": {"encode": 2, "decode": 6}}, "alloc"),
        ({"alloc": {"encode": 0, "prefill": 4, "decode": 4}}, "alloc.encode"),
        ({"prefill_offload": 0}, "prefill_offload"),
        ({"alloc": {"encode": 4, "prefill": 0, "decode": 4}}, "prefill_offload"),
        ({"prefill_offload": 0.1234567}, "prefill_offload"),
        ({"prefill_offload": 1.5}, "prefill_offload"),
        ({"prefill_offload": float("nan")}, "prefill_offload"),
        ({"encode_batch": ...}, "encode_batch"),
        ({"encode_batch": True}, "encode_batch"),
        ({"encode_batch": 2.5}, "encode_batch"),
        ({"tensor_parallel": {"decode": 3}}, "alloc.decode"),
        ({"tensor_parallel": {"encode": 2}}, "tensor_parallel.encode"),
        ({"tensor_parallel": {"all": 2}}, "tensor_parallel.all"),
        ({"tensor_parallel": {"decode": 4}, "gpus_per_node": 6}, "tensor_parallel.decode"),
        ({"tensor_parallel": {"local_prefill": 4}}, "alloc.encode"),
        ({"sm_table": []}, "sm_table"),
        ({"sm_table": [{"batch": 1, "encode_sm": 20}] * 2}, "sm_table"),
        ({"sm_table": [{"batch": 1, "encode_sm": 0}]}, "sm_table"),
        ({"topology": "monolithic", "alloc": {"all": 8}}, "encode_batch"),
        ({"slo": {"ttft_ms": -1, "tpot_ms": 50}}, "slo.ttft_ms"),
        ({"offload": 0.5}, "offload"),
        ({"version": 2}, "version"),
    ],
)
def test_a_shape_that_cannot_run_names_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make(**changes)
    message = str(caught.value)
    assert field.split(".")[-1] in message


def test_other_topologies_have_their_own_pools() -> None:
    e_pd = make(topology="e_pd", alloc={"encode": 2, "prefill_decode": 6}, prefill_offload=...)
    assert e_pd.label == "2E6PD B4"
    assert e_pd.prefill_token_budget == 2048
    mono = make(topology="monolithic", alloc={"all": 8}, prefill_offload=..., encode_batch=...)
    assert mono.workers("all") == 8


def test_local_prefill_spans_as_many_encode_gpus_as_prefill_has() -> None:
    assert make(tensor_parallel={"prefill": 2}).local_prefill_span == 2
    with pytest.raises(ValidationError, match="local_prefill"):
        make(alloc={"encode": 3, "prefill": 2, "decode": 3}, tensor_parallel={"prefill": 2})
    assert (
        make(
            alloc={"encode": 3, "prefill": 2, "decode": 3}, tensor_parallel={"prefill": 2}, prefill_offload=1
        ).workers("prefill")
        == 1
    )


@pytest.mark.parametrize("s", [0.1, 0.3, 0.7, 0.123456, 0.000001, 1])
def test_the_offload_share_is_its_shortest_decimal(s: float) -> None:
    assert make(prefill_offload=s).offload_fraction == Fraction(str(s))


def test_the_digest_ignores_evidence_and_nothing_else() -> None:
    assert make().digest() == make(evidence={"run": "results/x"}).digest()
    assert make().digest() != make(encode_batch=2).digest()

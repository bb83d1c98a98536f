"""Memory: KV room to the token, what a GPU of each pool must hold, and reasons with figures."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has.core.deployment import Deployment
from has.core.profile import ProfileMetadata
from has.files.facts import model
from has.latency.memory import gigabytes, kv_capacity, memory_lines, memory_verdict

GB = 10**9
SLO = {"ttft_ms": 1000, "tpot_ms": 50}


def metadata(memory=80 * GB, encoder=1 * GB, lm=60 * GB, kv=10**6, kv_heads=None) -> ProfileMetadata:
    weights = None if lm is None else {"encoder": encoder, "lm": lm}
    return ProfileMetadata(
        version=1,
        device="d",
        model="m",
        source="measured",
        memory_bytes=memory,
        weights_bytes=weights,
        kv_bytes_per_token=kv,
        kv_heads=kv_heads,
    )


def disaggregated(e=2, p=2, d=4, s=0.5, **more) -> Deployment:
    tp = more.pop("tensor_parallel", {})
    return Deployment.model_validate(
        {"version": 1, "model": "m", "topology": "disaggregated", "gpus": e + p + d, "slo": SLO}
        | {"alloc": {"encode": e, "prefill": p, "decode": d}, "encode_batch": 4, "prefill_offload": s}
        | {"tensor_parallel": tp}
        | more
    )


def other(topology, alloc, **more) -> Deployment:
    batch = {"encode_batch": 4} if topology == "e_pd" else {}
    return Deployment.model_validate(
        {
            "version": 1,
            "model": "m",
            "topology": topology,
            "gpus": sum(alloc.values()),
            "alloc": alloc,
            "slo": SLO,
        }
        | batch
        | more
    )


def test_kv_room_is_usable_memory_less_weights():
    assert kv_capacity(disaggregated(), metadata(), "decode") == (72 - 60) * 1000
    assert (
        kv_capacity(disaggregated(tensor_parallel={"decode": 2}), metadata(), "decode") == (144 - 60) * 1000
    )
    assert (
        kv_capacity(other("e_pd", {"encode": 1, "prefill_decode": 2}), metadata(), "prefill_decode") == 12_000
    )
    assert kv_capacity(other("monolithic", {"all": 2}), metadata(), "all") == 11_000
    assert kv_capacity(disaggregated(gpu_memory_utilization=0.8), metadata(), "decode") == 4_000


def test_a_room_that_comes_out_even_is_not_lost_to_binary_fractions():
    """0.7·10¹ bytes less 6 is exactly one token of 1 byte; 0.1·3 in floats is 0.30000000000000004."""
    assert (
        kv_capacity(disaggregated(gpu_memory_utilization=0.7), metadata(memory=10, lm=6, kv=1), "decode") == 1
    )
    assert (
        kv_capacity(disaggregated(gpu_memory_utilization=0.29), metadata(memory=100, lm=0, kv=29), "decode")
        == 1
    )


def test_weights_that_do_not_fit_leave_no_room_rather_than_a_negative_one():
    assert kv_capacity(disaggregated(), metadata(memory=48 * GB), "decode") == 0


def test_the_deployments_own_kv_tokens_go_first():
    assert kv_capacity(disaggregated(kv_tokens=7), metadata(), "decode") == 7
    assert kv_capacity(disaggregated(kv_tokens=7), metadata(memory=None), "decode") == 7


def test_without_the_facts_there_is_no_limit_and_that_is_said():
    assert kv_capacity(disaggregated(), metadata(memory=None), "decode") is None
    assert kv_capacity(disaggregated(), metadata(kv=None), "decode") is None
    verdict = memory_verdict(disaggregated(), metadata(memory=None))
    assert verdict.fits
    assert verdict.lines == ()
    assert "no memory_bytes" in verdict.notes[0]
    notes = memory_verdict(disaggregated(), metadata(kv=None, lm=None)).notes
    assert [note.split(":")[0] for note in notes] == ["weights are not checked", "KV is not limited"]


def needs(deployment, **more):
    return {
        line.pool: line.need_bytes for line in memory_lines(deployment, metadata(**more), request_tokens=1000)
    }


def test_each_pool_holds_what_its_stage_needs():
    assert needs(disaggregated()) == {"encode": 61 * GB, "prefill": 60 * GB, "decode": 61 * GB}
    assert needs(disaggregated(s=1.0)) == {"encode": 1 * GB, "prefill": 60 * GB, "decode": 61 * GB}
    assert needs(disaggregated(p=0, s=0.0)) == {"encode": 61 * GB, "decode": 61 * GB}
    assert needs(other("e_pd", {"encode": 1, "prefill_decode": 2})) == {
        "encode": 1 * GB,
        "prefill_decode": 61 * GB,
    }
    assert needs(other("monolithic", {"all": 2})) == {"all": 62 * GB}


def test_tensor_parallelism_spreads_weights_and_kv():
    spread = {"prefill": 2, "decode": 4}
    assert needs(disaggregated(tensor_parallel=spread)) == {
        "encode": 31 * GB,
        "prefill": 30 * GB,
        "decode": 15.25 * GB,
    }
    alone = {"prefill": 2, "decode": 4, "local_prefill": 1}
    assert needs(disaggregated(tensor_parallel=alone))["encode"] == 61 * GB
    assert needs(other("monolithic", {"all": 2}, tensor_parallel={"all": 2})) == {"all": 31 * GB}


@pytest.mark.parametrize(("tp", "copies"), [(1, 1), (2, 1), (4, 2), (8, 4)])
def test_gpus_beyond_the_kv_heads_hold_copies(tp, copies):
    """Of two heads: what a GPU holds of a token's KV is no less than one head's."""
    over = disaggregated(d=8, tensor_parallel={"decode": tp})
    room = (72 * tp - 60) * 1000
    assert kv_capacity(over, metadata(), "decode") == room
    assert kv_capacity(over, metadata(kv_heads=2), "decode") == room // copies
    assert kv_capacity(over, metadata(kv_heads=8), "decode") == room
    lines = memory_lines(over, metadata(kv_heads=2), request_tokens=1000)
    assert lines[-1].need_bytes == 60 * GB // tp + max(GB // tp, GB // 2)
    if tp > 2:
        assert lines[-1].why.endswith("KV of 1000 tokens over 2 GPUs 500.0 MB")


def test_a_34b_model_in_bf16_on_48_gb_forces_s_to_one_and_says_why():
    facts = model("llava-v1.6-34b")["computed"]
    card = metadata(
        memory=48 * GB,
        encoder=facts["encoder_plus_projector_bytes_bf16"],
        lm=facts["lm_bytes_bf16"],
        kv=facts["kv_bytes_per_token_bf16"],
    )
    impossible = memory_verdict(disaggregated(s=1.0), card, request_tokens=4000)
    assert [line.fits for line in impossible.lines] == [True, False, False]
    spread = {"prefill": 2, "decode": 2, "local_prefill": 1}
    local = memory_verdict(disaggregated(tensor_parallel=spread), card, request_tokens=4000)
    assert [line.fits for line in local.lines] == [False, True, True]
    assert local.hopeless is not None
    assert "pool encode must hold 69.5 GB" in local.reason
    assert "language model for local prefill 68.8 GB" in local.reason
    assert "43.2 GB to use" in local.reason
    assert memory_verdict(disaggregated(s=1.0, tensor_parallel=spread), card, request_tokens=4000).fits
    over_two = {"prefill": 2, "decode": 2}
    assert memory_verdict(disaggregated(tensor_parallel=over_two), card, request_tokens=4000).fits


def test_a_candidate_within_five_percent_of_the_limit_is_left_to_a_trial():
    close = memory_verdict(disaggregated(s=1.0), metadata(lm=75 * GB))
    assert not close.fits
    assert close.hopeless is None
    assert close.reason
    far = memory_verdict(disaggregated(s=1.0), metadata(lm=76 * GB))
    assert far.hopeless is not None


@settings(deadline=None, derandomize=True, max_examples=100)
@given(
    st.integers(1, 100 * GB),
    st.integers(0, 100 * GB),
    st.integers(1, 10**7),
    st.sampled_from([1, 2, 4]),
    st.floats(0.01, 1),
)
def test_a_pool_that_fits_has_room_for_its_request(memory, lm, kv, tp, share):
    deployment = disaggregated(tensor_parallel={"decode": tp}, s=1.0, gpu_memory_utilization=share)
    facts = metadata(memory=memory, lm=lm, kv=kv)
    (line,) = [line for line in memory_lines(deployment, facts, request_tokens=100) if line.pool == "decode"]
    if line.fits:
        assert kv_capacity(deployment, facts, "decode") >= 100


@pytest.mark.parametrize(
    ("n", "words"), [(68_779_669_504, "68.8 GB"), (983e6, "983.0 MB"), (2500, "2.5 kB"), (12, "12 B")]
)
def test_bytes_in_words(n, words):
    assert gigabytes(n) == words

"""Large models on 48 GB cards: what memory leaves of the space, and the reason it gives."""

from __future__ import annotations

import pytest

from has.core.deployment import Deployment
from has.core.space import SearchSpace, TpRanges
from has.errors import InfeasibleError
from has.files.shipped import shipped
from has.files.workload import load_workload
from has.latency.estimate import estimate_profile
from has.latency.memory import memory_verdict
from has.search.objective import Objective
from has.search.problem import Problem
from has.search.prune import Pruned, only_possible, prune
from has.search.space import MICRO, enumerate_space
from has.sim.draw import draw_requests


def pruned(model: str, gpu: str, tp: TpRanges, *, all_rules: bool = False) -> Pruned:
    workload = load_workload(shipped("workloads") / "image.yaml")
    space = SearchSpace(version=1, tensor_parallel=tp, encode_batch=(1, 4))
    problem = Problem(
        gpus=8,
        profile=estimate_profile(model, gpu, tp=max(tp.prefill)),
        workload=workload,
        objective=Objective("goodput", (1.0,), workload.slo),
        requests=draw_requests(workload, rate=1.0, requests=200, seed=0),
        base_rate=1.0,
        settings={"model": model},
        batches=space.encode_batch,
    )
    candidates = enumerate_space(space, 8)
    return prune(problem, candidates, 1.0) if all_rules else only_possible(problem, candidates)


@pytest.mark.parametrize("gpu", ["l40s", "rtx 6000 ada"])
def test_34b_in_bf16_is_impossible_on_48_gb_at_tp_1(gpu):
    with pytest.raises(InfeasibleError, match="memory admits no candidate") as impossible:
        pruned("llava-v1.6-34b", gpu, TpRanges(), all_rules=True)
    assert "language model 68.8 GB" in impossible.value.message
    assert "may use 43.2 GB" in impossible.value.message


def test_34b_on_48_gb_cannot_prefill_on_one_encode_gpu():
    result = pruned("llava-v1.6-34b", "rtx 6000 ada", TpRanges(prefill=(1, 2), decode=(2,)))
    local = [
        c for c in result.cuts if c.candidate.topology == "disaggregated" and c.candidate.offload < MICRO
    ]
    assert local
    assert {c.rule for c in local} == {"memory"}
    assert all("language model for local prefill 68.8 GB" in c.reason for c in local)
    kept = [c for c in result.kept if c.topology == "disaggregated"]
    assert kept
    assert all(c.tp[1] == 2 for c in kept)


def test_s_below_1_is_forced_out_where_a_local_prefill_is_not_spread():
    metadata = estimate_profile("llava-v1.6-34b", "rtx 6000 ada").metadata
    fields = {
        "version": 1,
        "model": "llava-v1.6-34b",
        "topology": "disaggregated",
        "gpus": 8,
        "alloc": {"encode": 2, "prefill": 4, "decode": 2},
        "encode_batch": 4,
        "slo": {"ttft_ms": 2000, "tpot_ms": 100},
        "tensor_parallel": {"encode": 1, "prefill": 2, "decode": 2, "local_prefill": 1},
    }
    remote = memory_verdict(Deployment(**fields, prefill_offload=1.0), metadata)
    local = memory_verdict(Deployment(**fields, prefill_offload=0.5), metadata)
    assert remote.fits
    assert not local.fits
    assert "pool encode" in local.reason
    assert "language model for local prefill 68.8 GB" in local.reason


def test_26b_with_a_6b_encoder_leaves_s_1_alone_on_48_gb():
    """39.7 GB of language model fit a card, with the encoder's 11.3 GB beside them they do not."""
    result = pruned("internvl2.5-26b", "l40s", TpRanges())
    assert result.kept
    assert {c.topology for c in result.kept} <= {"disaggregated", "e_pd"}
    assert {c.offload for c in result.kept if c.topology == "disaggregated"} == {MICRO}
    forced = [
        c for c in result.cuts if c.candidate.topology == "disaggregated" and c.candidate.offload < MICRO
    ]
    assert all("encoder 11.3 GB + language model for local prefill 39.7 GB" in c.reason for c in forced)

"""No field of a deployment is dropped in silence: it reaches what is launched, or is said to change, or says nothing there."""

from __future__ import annotations

from typing import Any

import pytest

from has.core.deployment import Deployment
from has.engine.engines import VERSIONS
from has.engine.export import render
from has.engine.names import loadable
from has.engine.place import make_plan
from has.engine.plan import EngineName, Plan
from has.engine.sizes import Sizes
from has.errors import InputError
from tests.engine.cases import MODEL, read_script

SIZES = Sizes(256, 512, 1024, {"image": 2})
BASE: dict[str, Any] = {
    "version": 1,
    "model": MODEL,
    "topology": "disaggregated",
    "gpus": 4,
    "alloc": {"encode": 1, "prefill": 1, "decode": 2},
    "encode_batch": 4,
    "prefill_offload": 1.0,
    "sm_table": "streams",
    "first_token": "decode",
    "slo": {"ttft_ms": 2000.0, "tpot_ms": 50.0},
}
OTHER: dict[str, dict[str, Any]] = {
    "model": {"model": "Qwen/Qwen2.5-VL-3B-Instruct"},
    "topology": {
        "topology": "e_pd",
        "alloc": {"encode": 1, "prefill_decode": 3},
        "prefill_offload": None,
        "sm_table": None,
    },
    "gpus": {"gpus": 5, "alloc": {"encode": 2, "prefill": 1, "decode": 2}},
    "alloc": {"alloc": {"encode": 1, "prefill": 2, "decode": 1}},
    "tensor_parallel": {"tensor_parallel": {"decode": 2}},
    "encode_batch": {"encode_batch": 2},
    "prefill_offload": {"prefill_offload": 0.5},
    "sm_table": {"sm_table": [{"batch": 1, "encode_sm": 40.0}]},
    "dtype": {"dtype": "float16"},
    "max_wait_ms": {"max_wait_ms": 30.0},
    "encode_fanout": {"encode_fanout": 2},
    "max_num_seqs": {"max_num_seqs": 99},
    "max_num_batched_tokens": {"max_num_batched_tokens": 9000},
    "max_prefill_requests": {"max_prefill_requests": 3},
    "max_queue": {"max_queue": 50},
    "kv_tokens": {"kv_tokens": 70_000},
    "gpu_memory_utilization": {"gpu_memory_utilization": 0.7},
    "preprocess_workers": {"preprocess_workers": 3},
    "dispatch": {"dispatch": "shortest_queue"},
    "first_token": {"first_token": "prefill"},
    "hardware": {"hardware": {"encode": "L4", "prefill": "H100 SXM", "decode": "H100 SXM"}},
    "gpus_per_node": {"gpus_per_node": 2},
    "fill_probability": {"fill_probability": 0.8},
    "rate": {"rate": 3.0},
    "rate_estimate": {"rate_estimate": "online"},
    "slo": {"slo": {"ttft_ms": 900.0, "tpot_ms": 50.0}},
}
"""For every field another value than `BASE` has, with what that takes."""
NOWHERE = {
    "version": "of the file",
    "evidence": "where the deployment comes from",
    "offload_unit": "counts what goes where; with s = 1 all goes to one place",
    "encode_slowdown_budget": "derives an SM table; there is nothing to split",
}
GAP_RULE = "of the gap rule, which the engine has not; emitted is max_wait_ms 0, or B = 1"
ONLY_WITH_OUR_GATEWAY = {
    "fill_probability": GAP_RULE,
    "rate": GAP_RULE,
    "rate_estimate": GAP_RULE,
    "slo": "what is asked of the whole; no engine reads it",
}
OF_OUR_GATEWAY = {
    "fill_probability": "of its gap rule",
    "rate": "of its gap rule",
    "rate_estimate": "of its gap rule",
    "max_wait_ms": "of its gap rule",
    "encode_fanout": "it spreads the media of a request",
    "dispatch": "it picks the instance",
    "max_queue": "it counts who waits",
    "kv_tokens": "it sends decode no more than that",
    "slo": "its age cap",
}
"""Of vLLM: read from deployment.yaml by the gateway in front."""
IN_PODS = {
    "gpus_per_node": "the cluster places pods, and no worker is wider than a node",
}
REASONS: dict[EngineName, dict[str, str]] = {
    "vllm": NOWHERE | OF_OUR_GATEWAY,
    "sglang": NOWHERE | ONLY_WITH_OUR_GATEWAY,
    "dynamo": NOWHERE | ONLY_WITH_OUR_GATEWAY | IN_PODS | {
        "max_wait_ms": "one request a forward waits for no other",
    },
    "llm-d": NOWHERE | ONLY_WITH_OUR_GATEWAY | IN_PODS,
}  # fmt: skip


def planned(engine: EngineName, **other: Any) -> Plan:
    fields = {key: value for key, value in (BASE | other).items() if value is not None}
    return make_plan(Deployment.model_validate(fields), engine, SIZES)


def launched(made: Plan) -> list[str]:
    """What is launched by itself: no comments, and not the deployment, which our gateway alone reads."""
    files = [one for one in render(made) if one.name != "deployment.yaml"]
    lines = [line for one in files for line in one.text.splitlines()]
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("engine", VERSIONS)
def test_every_field_arrives_or_is_said_or_says_nothing_there(engine) -> None:
    base = planned(engine)
    before = launched(base)
    silent = set()
    for field in Deployment.model_fields:
        if field not in OTHER:
            silent.add(field)
            continue
        made = planned(engine, **OTHER[field])
        said = {change.knob for change in (*base.changes, *made.changes)}
        if field not in said and launched(made) == before:
            silent.add(field)
    assert silent == set(REASONS[engine])


@pytest.mark.parametrize("engine", VERSIONS)
def test_fp8_is_a_quantization_and_unknown_formats_are_refused(engine) -> None:
    text = "\n".join(launched(planned(engine, dtype="fp8")))
    assert "--quantization" in text
    assert "--dtype" not in text
    with pytest.raises(InputError, match="no engine has this number format") as refused:
        render(planned(engine, dtype="int3"))
    assert "bfloat16" in refused.value.allowed
    assert "fp8" in refused.value.allowed


@pytest.mark.parametrize("engine", VERSIONS)
def test_a_name_of_our_facts_becomes_the_id_that_engines_load(engine) -> None:
    made = planned(engine, model="qwen2.5-vl-7b")
    assert made.emitted.model == MODEL
    assert "model: qwen2.5-vl-7b becomes Qwen/Qwen2.5-VL-7B-Instruct" in str(made.changes[0])
    files = {one.name: one.text for one in render(made)}
    for text in files.values():
        words = " ".join(line for line in text.splitlines() if not line.startswith("#")).split()
        assert not {"qwen2.5-vl-7b", "'qwen2.5-vl-7b'", '"qwen2.5-vl-7b"'} & set(words)
    assert f"model: {MODEL}" in files["deployment.yaml"]


def test_folders_and_ids_stay(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("Qwen/Qwen2.5-VL-7B-Instruct", "mine/qwen2.5-vl-7b", str(tmp_path)):
        assert loadable(name) == name
    (tmp_path / "qwen2.5-vl-7b").mkdir()
    assert loadable("qwen2.5-vl-7b") == "qwen2.5-vl-7b"


@pytest.mark.parametrize("engine", VERSIONS)
def test_a_model_that_nobody_can_load_is_said(engine) -> None:
    made = make_plan(
        Deployment.model_validate(
            {"version": 1, "model": "tiny-image", "topology": "monolithic", "gpus": 1}
            | {"alloc": {"all": 1}, "slo": BASE["slo"]}
        ),
        engine,
        SIZES,
    )
    assert any("tiny-image is neither" in note for note in made.notes)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_pools_on_different_gpus_stand_on_different_nodes(engine) -> None:
    made = planned(engine, **OTHER["hardware"])
    assert made.nodes == 2
    for instance in made.instances:
        assert made.gpu_on(instance.node) == ("L4" if instance.role == "encode" else "H100 SXM")
    (script, *_) = render(made)
    assert {one.node for one in read_script(script.text).started.values()} == {0, 1}
    for node in range(2):
        assert f"# Node {node} has {made.gpu_on(node)}.\n" in script.text


@pytest.mark.parametrize("engine", ["dynamo", "llm-d"])
def test_what_pods_say_nothing_of_is_said(engine) -> None:
    (change,) = [c for c in planned(engine, **OTHER["hardware"]).changes if c.knob == "hardware"]
    assert "encode on L4" in str(change)
    assert "nodeSelector" in str(change)


def test_an_encoder_is_not_quantized() -> None:
    started = read_script(render(planned("vllm", dtype="fp8"))[0].text).started
    assert {name: one.value("--quantization") for name, one in started.items()} == {
        "e0": None, "p0": "fp8", "d0": "fp8", "d1": "fp8",
    }  # fmt: skip


@pytest.mark.parametrize("engine", ["sglang", "llm-d"])
def test_an_engine_that_encodes_and_prefills_in_one_process_waits_for_no_company(engine) -> None:
    made = planned(
        engine, alloc={"encode": 2, "prefill": 0, "decode": 2}, prefill_offload=0.0, max_wait_ms=30.0
    )
    assert made.emitted.max_wait_ms == 0.0
    assert "max_wait_ms" in {change.knob for change in made.changes}

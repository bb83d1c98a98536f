"""Deployments, workloads and spaces: what is written loads to an equal object, and reads well."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has.core.deployment import POOLS, Deployment
from has.core.space import SearchSpace
from has.core.workload import Workload
from has.errors import InputError
from has.files.deployment import deployment_yaml, load_deployment, save_deployment
from has.files.space import load_space, save_space
from has.files.workload import load_workload, save_workload, workload_yaml
from has.files.yaml import parse_yaml

fixed = settings(deadline=None, derandomize=True, max_examples=120)

EXAMPLE = """\
version: 1
model: Qwen/Qwen2.5-VL-7B-Instruct
topology: disaggregated
gpus: 8
alloc: {encode: 2, prefill: 2, decode: 4}
tensor_parallel: {encode: 1, prefill: 1, decode: 1}
encode_batch: 4
prefill_offload: 0.5
offload_unit: request
fill_probability: 0.6
encode_slowdown_budget: 0.2
sm_table: [{batch: 1, encode_sm: 20}, {batch: 2, encode_sm: 30}, {batch: 4, encode_sm: 40}]
rate: 6
slo: {ttft_ms: 2000, tpot_ms: 50, attainment: 0.9}
evidence:
  run: results/2026-01-01-photos
  measured: {goodput_rps: 5.61, ttft_ms: {p50: 1200.5, p99: null}}
"""

positive = st.floats(1e-3, 1e6)
names = st.text(min_size=1, max_size=12)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names
free_form = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def slos(draw):
    return {"ttft_ms": draw(positive), "tpot_ms": draw(positive), "attainment": draw(st.floats(0, 1))}


@st.composite
def deployments(draw) -> Deployment:
    topology = draw(st.sampled_from(list(POOLS)))
    tp = {pool: 1 if pool == "encode" else draw(st.sampled_from([1, 2, 4])) for pool in POOLS[topology]}
    alloc = {pool: tp[pool] * draw(st.integers(1, 4)) for pool in POOLS[topology]}
    fields = {"tensor_parallel": draw(st.sampled_from([{}, tp])) if set(tp.values()) == {1} else dict(tp)}
    if topology != "monolithic":
        fields["encode_batch"] = draw(st.integers(1, 64))
    if topology == "disaggregated":
        fields["tensor_parallel"] = tp | {"local_prefill": 1}
        fields["prefill_offload"] = float(Fraction(draw(st.integers(1, 10**6)), 10**6))
        fields["offload_unit"] = draw(st.sampled_from(["request", "token"]))
        if draw(st.booleans()):
            alloc["prefill"], fields["prefill_offload"] = 0, 0.0
        rows = st.tuples(st.integers(1, 64), st.floats(1, 100))
        fields["sm_table"] = draw(
            st.none()
            | st.just("streams")
            | st.lists(rows, min_size=1, max_size=5, unique_by=lambda r: r[0]).map(
                lambda pairs: [{"batch": b, "encode_sm": x} for b, x in pairs]
            )
        )
    optional = {
        "fill_probability": st.floats(0, 1),
        "encode_slowdown_budget": st.floats(0, 2),
        "rate": positive,
        "dtype": st.sampled_from(["bfloat16", "on", "1e3", "null", "~"]),
        "max_wait_ms": st.floats(0, 1e5),
        "max_num_seqs": st.integers(1, 512),
        "max_num_batched_tokens": st.integers(1, 10**5),
        "max_queue": st.integers(1, 1000),
        "kv_tokens": st.integers(1, 10**9),
        "gpu_memory_utilization": st.floats(0.01, 1),
        "dispatch": st.sampled_from(["random", "round_robin", "shortest_queue"]),
        "rate_estimate": st.sampled_from(["known", "online"]),
        "first_token": st.sampled_from(["prefill", "decode"]),
        "hardware": st.dictionaries(names, names, max_size=2),
        "evidence": st.dictionaries(names, free_form, max_size=4),
    }
    fields |= {name: draw(values) for name, values in optional.items() if draw(st.booleans())}
    return Deployment.model_validate(
        {"version": 1, "model": draw(names), "topology": topology, "gpus": sum(alloc.values())}
        | {"alloc": alloc, "slo": draw(slos())}
        | fields
    )


@fixed
@given(deployments())
def test_a_dumped_deployment_loads_to_an_equal_one(deployment):
    again = Deployment.model_validate(parse_yaml(deployment_yaml(deployment)))
    assert again == deployment
    assert again.digest() == deployment.digest()


def test_the_dump_reads_as_the_documentation_prints_it(tmp_path):
    path = tmp_path / "best.yaml"
    path.write_text(EXAMPLE)
    deployment = load_deployment(path)
    assert deployment_yaml(deployment) == EXAMPLE
    save_deployment(deployment, path)
    assert load_deployment(path) == deployment


def test_numbers_are_short_and_evidence_is_last():
    fields = parse_yaml(EXAMPLE) | {"prefill_offload": 0.1 + 0.2 - 0.2, "rate": 6.0}
    fields["prefill_offload"] = round(fields["prefill_offload"], 6)
    text = deployment_yaml(Deployment.model_validate(fields))
    assert "prefill_offload: 0.1\n" in text
    assert "rate: 6\n" in text
    assert list(parse_yaml(text))[-1] == "evidence"


def test_what_is_at_its_default_and_rarely_set_is_not_written():
    assert "max_num_seqs" not in deployment_yaml(Deployment.model_validate(parse_yaml(EXAMPLE)))
    changed = Deployment.model_validate(parse_yaml(EXAMPLE) | {"max_num_seqs": 64})
    assert "max_num_seqs: 64" in deployment_yaml(changed)


sizes = st.one_of(
    st.integers(1, 4096),
    st.builds(lambda a, b: {"uniform": sorted([a, b])}, st.integers(0, 99), st.floats(0, 99)),
    st.builds(lambda m, s: {"normal": {"mean": m, "sd": s}}, positive, st.floats(0, 10)),
    st.builds(
        lambda p, q, top: {"lognormal": {"p50": p, "p99": p + q}, "max": top},
        positive,
        positive,
        st.integers(1, 9999),
    ),
    st.dictionaries(st.integers(1, 9) | st.floats(0.5, 9), st.floats(0.1, 1), min_size=1, max_size=3).map(
        lambda choice: {"choice": choice}
    ),
    st.lists(st.integers(1, 99), min_size=1, max_size=5).map(lambda values: {"empirical": values, "min": 1}),
)


@st.composite
def workloads(draw) -> Workload:
    def entry():
        modality = draw(st.sampled_from(["text", "image", "video", "audio"]))
        fields = {"modality": modality, "weight": draw(st.floats(0.1, 5))}
        fields |= {"prompt_tokens": draw(sizes), "output_tokens": draw(sizes)}
        if modality != "text":
            size = {"image": {"image_px": [draw(st.integers(1, 9)), 7]}, "video": {"video_s": draw(sizes), "fps": 2.0},
                    "audio": {"audio_s": draw(sizes)}}[modality]  # fmt: skip
            fields |= draw(st.sampled_from([size, {"media_tokens": draw(sizes)}]))
            fields |= {"items": draw(sizes)} if draw(st.booleans()) else {}
        return fields | ({"slo": draw(slos())} if draw(st.booleans()) else {})

    arrivals = draw(
        st.sampled_from(
            [
                {"process": "poisson"},
                {"process": "constant", "rate": 2.5},
                {"process": "gamma", "cv": 2.0, "rate": 1},
            ]
        )
    )
    requests = [entry() for _ in range(draw(st.integers(1, 3)))]
    return Workload.model_validate(
        {"version": 1, "name": draw(names), "arrivals": arrivals, "requests": requests}
    )


@fixed
@given(workloads())
def test_a_dumped_workload_loads_to_an_equal_one(workload):
    assert Workload.model_validate(parse_yaml(workload_yaml(workload))) == workload


def test_a_trace_is_found_from_the_workloads_folder(tmp_path, monkeypatch):
    folder = tmp_path / "loads"
    folder.mkdir()
    (folder / "t.csv").write_text("arrival_s\n")
    path = folder / "w.yaml"
    path.write_text("version: 1\narrivals: {process: trace, file: t.csv, time_scale: 2.0}\n")
    monkeypatch.chdir(tmp_path)
    workload = load_workload("loads/w.yaml")
    assert workload.arrivals.file == str(folder / "t.csv")
    save_workload(workload, tmp_path / "copy.yaml")
    assert load_workload(tmp_path / "copy.yaml") == workload


def test_a_trace_that_is_not_there_is_named_with_its_field(tmp_path):
    path = tmp_path / "w.yaml"
    path.write_text("version: 1\narrivals: {process: trace, file: gone.csv}\n")
    with pytest.raises(InputError) as error:
        load_workload(path)
    assert (error.value.where, error.value.field, error.value.value) == (
        str(path),
        "arrivals.file",
        "gone.csv",
    )


def test_a_space_keeps_its_values(tmp_path):
    path = tmp_path / "s.yaml"
    space = SearchSpace.model_validate(
        {"version": 1, "alloc": {"encode": [1, 3]}, "encode_batch": [1, 5], "prefill_offload": {"step": 0.05}}
    )
    save_space(space, path)
    assert load_space(path) == space
    path.write_text("version: 1\n")
    assert load_space(path) == SearchSpace(version=1)

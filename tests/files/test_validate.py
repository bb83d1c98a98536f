"""One error for all that is wrong: where, which field, what stood there, what may, and the mend."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.workload import Workload
from has.errors import InputError
from has.files.deployment import load_deployment
from has.files.profile import load_profile
from has.files.trace import load_trace
from has.files.validate import validate

DEPLOYMENT = {
    "version": 1,
    "model": "tiny-image",
    "topology": "disaggregated",
    "gpus": 4,
    "alloc": {"encode": 1, "prefill": 1, "decode": 2},
    "encode_batch": 4,
    "prefill_offload": 0.5,
    "slo": {"ttft_ms": 2000, "tpot_ms": 50},
    "sm_table": [{"batch": 1, "encode_sm": 20}],
}
ENTRY = {
    "modality": "image",
    "media_tokens": 64,
    "prompt_tokens": 9,
    "output_tokens": {"lognormal": {"p50": 5, "p99": 9}},
}
WORKLOAD = {"version": 1, "arrivals": {"process": "poisson"}, "requests": [ENTRY]}


def broken(cls, data, path, value) -> InputError:
    """The error for `data` with `value` at the dotted `path` (None removes it)."""
    data = copy.deepcopy(data)
    *head, last = path.split(".")
    here = data
    for part in head:
        here = here[int(part)] if isinstance(here, list) else here[part]
    if value is None:
        del here[last]
    else:
        here[int(last) if isinstance(here, list) else last] = value
    with pytest.raises(InputError) as error:
        validate(cls, data, "some.yaml")
    assert error.value.where == "some.yaml"
    return error.value


@pytest.mark.parametrize(
    ("path", "value", "allowed"),
    [
        ("gpus", True, "an integer from 1 to 65536"),
        ("gpus", 4.5, "an integer from 1 to 65536"),
        ("gpus", 0, "an integer from 1 to 65536"),
        ("gpus", "4", "an integer from 1 to 65536"),
        ("encode_batch", -1, "an integer from 1 to 1000000"),
        ("prefill_offload", 1.5, "a number from 0 to 1"),
        ("prefill_offload", float("nan"), "a finite number"),
        ("rate", float("inf"), "a finite number"),
        ("rate", -2, "a number from 1e-09 to 1e+06"),
        ("encode_batch", 2**31, "an integer from 1 to 1000000"),
        ("max_num_seqs", 2**31, "an integer from 1 to 1000000"),
        ("preprocess_workers", 2**31, "an integer from 1 to 1000000"),
        ("max_prefill_requests", 2**63, "an integer from 1 to 1000000"),
        ("max_queue", 2**63, "an integer from 1 to 1000000"),
        ("max_num_batched_tokens", 2**63, "an integer from 1 to 1099511627776"),
        ("kv_tokens", 2**63, "an integer from 1 to 1099511627776"),
        ("max_wait_ms", 1e308, "a number from 0 to 1e+12"),
        ("slo.tpot_ms", 1e308, "a number above 0 and at most 1e+12"),
        ("slo.tpot_ms", 10**400, "a number above 0 and at most 1e+12"),
        ("rate", 1e-320, "a number from 1e-09 to 1e+06"),
        ("gpus", 10**30, "an integer from 1 to 65536"),
        ("topology", "epd", "one of disaggregated, e_pd, monolithic"),
        ("model", "", "text"),
        ("alloc", [1, 1, 2], "a mapping with the keys encode, prefill, decode, prefill_decode, all"),
        ("alloc.encode", "one", "an integer from 1 to 65536"),
        ("slo.ttft_ms", [1], "a number above 0 and at most 1e+12"),
        ("sm_table.0.batch", 1.5, "an integer from 1 to 1000000"),
        ("sm_table.0.encode_sm", 101, "a number from 1 to 100"),
        ("sm_table", "stream", "'streams' or a list, each a mapping with the keys batch, encode_sm"),
        ("evidence", [1], "a mapping of text to a value"),
        ("tensor_parallel", {"encode": 2}, "1"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(path, value, allowed):
    error = broken(Deployment, DEPLOYMENT, path, value)
    field = path + ".encode" if path == "tensor_parallel" else path
    assert (error.field, error.allowed) == (field, allowed)
    assert repr(error.value) == repr(2 if path == "tensor_parallel" else value)


@pytest.mark.parametrize(
    ("cls", "data", "path", "value", "field", "said"),
    [
        (Deployment, DEPLOYMENT, "gpus", 5, "gpus", "sum of alloc"),
        (Deployment, DEPLOYMENT, "prefill_offload", 0.1234567, "prefill_offload", "six decimals"),
        (Deployment, DEPLOYMENT, "sm_table", [{"batch": 1, "encode_sm": 5}] * 2, "sm_table", "twice"),
        (
            Workload,
            WORKLOAD,
            "requests.0.output_tokens.lognormal.p99",
            4,
            "requests.0.output_tokens.lognormal.p99",
            "p50",
        ),
        (Workload, WORKLOAD, "requests.0.items", {"choice": {1: -1}}, "requests.0.items.choice.1", "greater"),
        (Workload, WORKLOAD, "requests.0.items", {"choice": {"x": 1}}, "requests.0.items.choice.x", "key"),
        (
            Workload,
            WORKLOAD,
            "requests.0.items",
            {"choice": {float("nan"): 1}},
            "requests.0.items.choice.nan",
            "finite",
        ),
        (Workload, WORKLOAD, "requests.0.items", {}, "requests.0.items", "exactly one"),
        (
            Workload,
            WORKLOAD,
            "requests.0.items",
            {"empirical": [1, "x"]},
            "requests.0.items.empirical.1",
            "a number",
        ),
        (Workload, WORKLOAD, "requests.0.weight", 0, "requests", "positive sum"),
        (Workload, WORKLOAD, "arrivals.cv", 2.0, "arrivals.cv", "gamma"),
    ],
)
def test_a_nouns_own_checks_name_their_field(cls, data, path, value, field, said):
    error = broken(cls, data, path, value)
    assert error.field == field
    assert said in error.message


@pytest.mark.parametrize(
    ("path", "key", "suggested"),
    [
        ("encode_bach", "encode_batch", "encode_batch"),
        ("slo.ttft", "ttft_ms", "ttft_ms"),
        ("alloc.decoed", "decode", "decode"),
    ],
)
def test_an_unknown_key_gets_its_likely_name(path, key, suggested):
    data = copy.deepcopy(DEPLOYMENT)
    owner = data[path.split(".")[0]] if "." in path else data
    owner[path.split(".")[-1]] = owner.pop(key)
    with pytest.raises(InputError) as error:
        validate(Deployment, data, "f")
    assert error.value.field == path
    assert error.value.mend == f"did you mean {suggested}?"
    assert "required" not in error.value.message


def test_an_unknown_key_like_no_other_is_to_be_removed():
    assert broken(Deployment, DEPLOYMENT, "zzz", 1).mend == "remove zzz"


@pytest.mark.parametrize("version", [2, 0, "1", 1.0, True, [1]])
def test_another_version_is_the_only_finding(version):
    error = broken(Deployment, DEPLOYMENT | {"gpus": "x"}, "version", version)
    assert error.field == "version"
    assert error.allowed == "1"
    assert "also" not in error.message


def test_a_missing_version_says_so():
    error = broken(Deployment, DEPLOYMENT, "version", None)
    assert (error.field, error.message) == ("version", "is required")


def test_all_findings_are_listed():
    data = DEPLOYMENT | {"gpus": "x", "rate": -1, "topologie": "e_pd"}
    with pytest.raises(InputError) as error:
        validate(Deployment, data, "f")
    assert error.value.field == "topologie"
    assert "also gpus" in error.value.message
    assert "also rate" in error.value.message


def test_a_non_finite_number_in_a_free_form_part_is_found():
    error = broken(Deployment, DEPLOYMENT, "evidence", {"figures": [{"a": float("-inf")}]})
    assert error.field == "evidence.figures.0.a"


@pytest.mark.parametrize(
    ("data", "said"), [(None, "is empty"), ([], "not a list"), ("x", "not text"), (3, "mapping")]
)
def test_what_is_no_mapping(data, said):
    with pytest.raises(InputError, match=said) as error:
        validate(Deployment, data, "f.yaml")
    assert "slo" in error.value.mend


def test_metadata_may_hold_more_but_rows_may_not():
    rows = [
        {"stage": s, "sm_percent": 100, "batch": 1, "tokens": 1, "latency_s": 1.0}
        for s in ("prefill", "decode")
    ]
    metadata = {"version": 1, "device": "d", "model": "m", "source": "measured", "room": "cold"}
    profile = validate(Profile, {"metadata": metadata, "rows": rows}, "p")
    assert profile.metadata.model_extra == {"room": "cold"}
    with pytest.raises(InputError) as error:
        validate(Profile, {"metadata": metadata, "rows": [rows[0] | {"latency": 1}, rows[1]]}, "p")
    assert error.value.field == "rows.0.latency"


def test_a_message_shows_everything_once():
    error = broken(Deployment, DEPLOYMENT, "gpus", True)
    assert str(error).splitlines() == [
        "some.yaml: gpus: must be an integer from 1 to 65536, not true or false",
        "  value: True",
        "  allowed: an integer from 1 to 65536",
    ]


SEVERAL = """\
version: 1
model: 7
topology: disaggregated
gpus: 9
alloc: {encode: 2, prefill: 2, decode: 4}
tensor_parallel: {decode: 3}
encode_bach: 4
encode_batch: 4
prefill_offload: 0.1234567
fill_probability: .nan
max_wait_ms: -1
slo: {ttft_ms: 2000, tpot_ms: 50, colour: red}
"""


def test_findings_of_different_kinds_are_all_listed(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(SEVERAL.replace("model: 7", "model: m"))
    with pytest.raises(InputError) as error:
        load_deployment(path)
    for place in (
        *("encode_bach: unknown key", "fill_probability: must be a finite number", "max_wait_ms: must be"),
        *("slo.colour: unknown key", "gpus: must be the sum of alloc, 8, not 9"),
        *("alloc.decode: 4 is no multiple of tensor_parallel.decode = 3", "prefill_offload: at most six"),
    ):
        assert place in str(error.value)


def test_what_follows_from_another_finding_is_not_listed(tmp_path: Path) -> None:
    """Taken out, a wrong field leaves others that lack it; that is no finding."""
    path = tmp_path / "d.yaml"
    text = (
        SEVERAL.replace("gpus: 9", "gpus: 8")
        .replace("0.1234567", "half")
        .replace("encode: 2,", "encode: two,")
    )
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_deployment(path)
    lines = [line for line in str(error.value).splitlines() if line.startswith("  also")]
    assert sum("prefill_offload" in line for line in lines) == 1
    assert sum("alloc.encode" in line for line in lines) == 1
    assert not any("has the pools" in line or "sum of alloc" in line for line in lines)


def test_a_profile_lists_its_metadata_and_its_rows_together(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(
        "stage,sm_percent,batch,tokens,latency_s\nencode,500,1,64,0.1\nprefill,100,1,64,-1\ndecode,100,1,64,0.01\n"
    )
    (tmp_path / "p.json").write_text('{"version": 1, "device": "d", "model": 3, "source": "measured"}')
    with pytest.raises(InputError) as error:
        load_profile(tmp_path / "p.csv")
    for place in ("model: must be text", "rows.0.sm_percent", "rows.1.latency_s"):
        assert place in str(error.value)


def test_a_trace_lists_its_bad_rows(tmp_path: Path) -> None:
    rows = ["0.0,image,1,64,9,0", "0.5,text,0,0,30,7", "0.4,text,0,0,30,7", *["1.0,smell,0,0,30,7"] * 40]
    (tmp_path / "t.csv").write_text(
        "arrival_s,modality,items,media_tokens,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n"
    )
    with pytest.raises(InputError) as error:
        load_trace(tmp_path / "t.csv")
    for place in ("rows.0.output_tokens", "rows.2.arrival_s", "rows.3.modality", "line 5", "more"):
        assert place in str(error.value)
    assert len(str(error.value)) < 4000

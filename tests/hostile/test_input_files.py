"""Every kind of file, wrong in every way: one InputError with file and field, nothing else, ever."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has.errors import InputError
from has.files.deployment import load_deployment
from has.files.profile import METADATA_KEY, load_profile, profile_from_rows, save_profile
from has.files.space import load_space
from has.files.trace import load_trace
from has.files.workload import load_workload

DEPLOYMENT = """\
version: 1
model: tiny-image
topology: disaggregated
gpus: 8
alloc: {encode: 2, prefill: 2, decode: 4}
encode_batch: 4
prefill_offload: 0.5
sm_table: [{batch: 1, encode_sm: 20}, {batch: 2, encode_sm: 30}]
slo: {ttft_ms: 2000, tpot_ms: 50}
"""
WORKLOAD = """\
version: 1
name: photos
arrivals: {process: poisson, rate: 6.0}
requests:
  - weight: 1.0
    modality: image
    items: {choice: {1: 0.66, 2: 0.34}}
    media_tokens: {lognormal: {p50: 576, p99: 2880}, max: 4096}
    prompt_tokens: {lognormal: {p50: 60, p99: 900}}
    output_tokens: 64
slo: {ttft_ms: 2000, tpot_ms: 50, attainment: 0.9}
"""
SPACE = """\
version: 1
alloc: {encode: [1, 6], prefill: [0, 6], decode: [1, 6]}
tensor_parallel: {encode: [1], prefill: [1, 2], decode: [1, 2]}
encode_batch: [1, 2, 4]
prefill_offload: {min: 0.0, max: 1.0, step: 0.1}
topologies: [disaggregated, e_pd]
"""
PROFILE_METADATA = json.dumps(
    {"version": 1, "device": "d", "model": "m", "source": "measured", "sm_count": 132, "error": 0.1}, indent=1
)
PROFILE = """\
stage,sm_percent,batch,tokens,latency_s
encode,100,1,64,0.1
encode,50,1,64,0.2
prefill,100,1,64,0.3
decode,100,1,64,0.01
"""
TRACE = """\
arrival_s,modality,items,media_tokens,prompt_tokens,output_tokens
0.0,image,1,64,9,5
0.5,text,0,0,30,7
"""

Loader = Callable[[Path], Any]
KINDS: dict[str, tuple[str, str, Loader]] = {
    "deployment": ("f.yaml", DEPLOYMENT, load_deployment),
    "workload": ("f.yaml", WORKLOAD, load_workload),
    "space": ("f.yaml", SPACE, load_space),
    "profile": ("f.csv", PROFILE, load_profile),
    "metadata": ("f.json", PROFILE_METADATA, lambda path: load_profile(path.with_suffix(".csv"))),
    "trace": ("f.csv", TRACE, load_trace),
}
YAML_KINDS = ("deployment", "workload", "space")


def written(folder: Path, kind: str, content: str | bytes) -> tuple[Path, Loader]:
    name, _, load = KINDS[kind]
    path = folder / name
    if kind in ("profile", "metadata"):
        (folder / "f.json").write_text(PROFILE_METADATA)
        (folder / "f.csv").write_text(PROFILE)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path, load


def refused(folder: Path, kind: str, content: str | bytes) -> InputError:
    path, load = written(folder, kind, content)
    with pytest.raises(InputError) as caught:
        load(path)
    error = caught.value
    assert error.exit_status == 2
    assert error.where == str(path)
    assert str(path) in str(error)
    assert error.field in str(error)
    assert "Traceback" not in str(error)
    assert len(str(error)) < 4000
    return error


@pytest.mark.parametrize("kind", KINDS)
def test_the_valid_ones_load(tmp_path, kind):
    path, load = written(tmp_path, kind, KINDS[kind][1])
    load(path)


# kind, what is wrong, old text, new text, field named
WRONG = [
    ("deployment", "unknown key", "encode_batch: 4", "encode_batch: 4\nencode_batches: 4", "encode_batches"),
    ("deployment", "unknown key inside", "encode_sm: 30", "sm: 30, encode_sm: 30", "sm_table.1.sm"),
    ("deployment", "NaN", "prefill_offload: 0.5", "prefill_offload: .nan", "prefill_offload"),
    ("deployment", "infinity", "ttft_ms: 2000", "ttft_ms: .inf", "slo.ttft_ms"),
    ("deployment", "overflow", "ttft_ms: 2000", "ttft_ms: 1e999", "slo.ttft_ms"),
    ("deployment", "negative", "encode_batch: 4", "encode_batch: -4", "encode_batch"),
    ("deployment", "duplicate key", "gpus: 8", "gpus: 8\ngpus: 8", "gpus"),
    ("deployment", "duplicate key inside", "tpot_ms: 50", "tpot_ms: 50, tpot_ms: 60", "slo.tpot_ms"),
    ("deployment", "wrong version", "version: 1", "version: 2", "version"),
    ("deployment", "float version", "version: 1", "version: 1.0", "version"),
    ("deployment", "no version", "version: 1\n", "", "version"),
    ("deployment", "bool for int", "gpus: 8", "gpus: true", "gpus"),
    ("deployment", "float for int", "encode_batch: 4", "encode_batch: 4.0", "encode_batch"),
    ("deployment", "text for int", "encode_batch: 4", "encode_batch: '4'", "encode_batch"),
    ("deployment", "number for text", "model: tiny-image", "model: 7", "model"),
    ("deployment", "list for mapping", "{encode: 2, prefill: 2, decode: 4}", "[2, 2, 4]", "alloc"),
    (
        "deployment",
        "mapping for list",
        "[{batch: 1, encode_sm: 20}, {batch: 2, encode_sm: 30}]",
        "{1: 20}",
        "sm_table",
    ),
    ("deployment", "null where required", "model: tiny-image", "model:", "model"),
    ("deployment", "batch twice", "batch: 2", "batch: 1", "sm_table"),
    ("deployment", "not the sum", "gpus: 8", "gpus: 9", "gpus"),
    ("deployment", "share over 100", "encode_sm: 30", "encode_sm: 130", "sm_table.1.encode_sm"),
    ("deployment", "seven decimals", "0.5", "0.1234567", "prefill_offload"),
    ("deployment", "endless number", "gpus: 8", "gpus: " + "9" * 5000, ""),
    ("deployment", "tab indent", "gpus: 8", "alloc2:\n\t- 1", ""),
    ("deployment", "two documents", "gpus: 8", "---\ngpus: 8", ""),
    ("workload", "unknown key", "name: photos", "nam: photos", "nam"),
    ("workload", "unknown key inside", "max: 4096", "maximum: 4096", "requests.0.media_tokens.maximum"),
    ("workload", "NaN", "p50: 576", "p50: .nan", "requests.0.media_tokens.lognormal.p50"),
    ("workload", "NaN key", "1: 0.66", ".nan: 0.66", "requests.0.items.choice.nan"),
    ("workload", "infinity", "rate: 6.0", "rate: .inf", "arrivals.rate"),
    ("workload", "negative", "rate: 6.0", "rate: -6.0", "arrivals.rate"),
    ("workload", "negative weight", "weight: 1.0", "weight: -1.0", "requests.0.weight"),
    ("workload", "no weight at all", "weight: 1.0", "weight: 0", "requests"),
    ("workload", "negative size", "output_tokens: 64", "output_tokens: -64", "requests.0.output_tokens"),
    ("workload", "p99 below p50", "p99: 900", "p99: 30", "requests.0.prompt_tokens.lognormal.p99"),
    (
        "workload",
        "duplicate key",
        "modality: image",
        "modality: image\n    modality: text",
        "requests.0.modality",
    ),
    ("workload", "wrong version", "version: 1", "version: '1'", "version"),
    ("workload", "bool for number", "output_tokens: 64", "output_tokens: true", "requests.0.output_tokens"),
    ("workload", "bool in a distribution", "p50: 60", "p50: true", "requests.0.prompt_tokens.lognormal.p50"),
    ("workload", "list for mapping", "{process: poisson, rate: 6.0}", "[poisson, 6.0]", "arrivals"),
    ("workload", "text for mapping", "{process: poisson, rate: 6.0}", "poisson", "arrivals"),
    ("workload", "unknown modality", "modality: image", "modality: images", "requests.0.modality"),
    ("workload", "trace without file", "process: poisson, rate: 6.0", "process: trace", "arrivals.file"),
    ("workload", "empty mixture", "requests:\n", "requests: []\nrequest:\n", "request"),
    ("space", "unknown key", "encode_batch:", "encode_batchs:", "encode_batchs"),
    ("space", "NaN", "step: 0.1", "step: .nan", "prefill_offload.step"),
    ("space", "negative", "[1, 6], prefill", "[-1, 6], prefill", "alloc.encode.0"),
    ("space", "zero batch", "[1, 2, 4]", "[0, 2, 4]", "encode_batch.0"),
    ("space", "duplicate key", "topologies:", "topologies: [e_pd]\ntopologies:", "topologies"),
    ("space", "value twice", "[1, 2, 4]", "[1, 2, 2]", "encode_batch"),
    ("space", "wrong version", "version: 1", "version: 3", "version"),
    ("space", "bool for int", "[1, 2, 4]", "[true, 2, 4]", "encode_batch.0"),
    ("space", "float for int", "[1, 2, 4]", "[1, 2.5, 4]", "encode_batch.1"),
    ("space", "list for mapping", "{min: 0.0, max: 1.0, step: 0.1}", "[0.0, 1.0, 0.1]", "prefill_offload"),
    ("space", "three bounds", "[1, 6], prefill", "[1, 2, 6], prefill", "alloc.encode"),
    ("space", "bounds reversed", "[1, 6], prefill", "[6, 1], prefill", "alloc.encode"),
    ("space", "empty list", "[1, 2, 4]", "[]", "encode_batch"),
    ("space", "number for list", "[1, 2, 4]", "4", "encode_batch"),
    ("profile", "unknown column", "latency_s", "latency_s,colour", "colour"),
    ("profile", "missing column", "latency_s", "p10_s", "latency_s"),
    ("profile", "column twice", "batch,tokens", "batch,batch", "batch"),
    ("profile", "NaN", "64,0.1", "64,nan", "rows.0.latency_s"),
    ("profile", "infinity", "64,0.1", "64,inf", "rows.0.latency_s"),
    ("profile", "overflow", "64,0.1", "64,1e999", "rows.0.latency_s"),
    ("profile", "negative", "64,0.1", "64,-0.1", "rows.0.latency_s"),
    ("profile", "bool for number", "64,0.1", "64,true", "rows.0.latency_s"),
    ("profile", "float for int", "encode,50,1,", "encode,50,1.5,", "rows.1.batch"),
    ("profile", "share over 100", "encode,50", "encode,500", "rows.1.sm_percent"),
    ("profile", "point twice", "encode,50", "encode,100", "rows.1"),
    ("profile", "hole in the grid", "encode,50,1,64", "encode,50,2,64", "rows"),
    ("profile", "unknown stage", "encode,50", "encoder,50", "rows.1.stage"),
    ("profile", "empty cell", "encode,50", "encode,", "rows.1.sm_percent"),
    ("profile", "short row", "encode,50,1,64,0.2", "encode,50,1", "rows.1"),
    ("metadata", "unknown key inside", '"error": 0.1', '"weights_bytes": {"llm": 1}', "weights_bytes.llm"),
    ("metadata", "NaN", '"error": 0.1', '"error": NaN', "error"),
    ("metadata", "overflow", '"error": 0.1', '"error": 1e999', "error"),
    ("metadata", "negative", '"sm_count": 132', '"sm_count": -132', "sm_count"),
    ("metadata", "duplicate key", '"error": 0.1', '"error": 0.1, "error": 0.2', "error"),
    ("metadata", "wrong version", '"version": 1', '"version": 2', "version"),
    ("metadata", "bool for int", '"sm_count": 132', '"sm_count": true', "sm_count"),
    ("metadata", "float for int", '"sm_count": 132', '"sm_count": 132.5', "sm_count"),
    ("metadata", "missing", '"device": "d",', "", "device"),
    ("trace", "unknown column", "items", "item", "item"),
    ("trace", "column twice", "items", "modality", "modality"),
    ("trace", "NaN", "0.5,text", "nan,text", "rows.1.arrival_s"),
    ("trace", "negative", "9,5", "-9,5", "rows.0.prompt_tokens"),
    ("trace", "float for int", "9,5", "9.5,5", "rows.0.prompt_tokens"),
    ("trace", "text for number", "9,5", "nine,5", "rows.0.prompt_tokens"),
    ("trace", "unsorted", "0.0,image", "3.0,image", "rows.1.arrival_s"),
    ("trace", "short row", "0.5,text,0,0,30,7", "0.5,text", "rows.1"),
]


@pytest.mark.parametrize(
    ("kind", "what", "old", "new", "field"), WRONG, ids=[f"{w[0]}: {w[1]}" for w in WRONG]
)
def test_what_is_wrong_is_named(tmp_path, kind, what, old, new, field):
    valid = KINDS[kind][1]
    assert old in valid
    assert refused(tmp_path, kind, valid.replace(old, new, 1)).field == field


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b"\x00\x01\x02\xff" * 50, b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "größe: 1".encode("latin-1"),
     "version: 1".encode("utf-16"), b"[1, 2]", b"just words", b"7", b"PAR1" * 20],
    ids=["empty", "blank", "binary", "png", "latin-1", "utf-16", "list", "words", "number", "parquet"],
)  # fmt: skip
def test_what_is_no_such_file_at_all(tmp_path, kind, content):
    refused(tmp_path, kind, content)


@pytest.mark.parametrize("kind", KINDS)
def test_folders_missing_files_and_impossible_names(tmp_path, kind):
    name, _, load = KINDS[kind]
    if kind == "metadata":
        return
    (tmp_path / "folder.csv").mkdir()
    for path, said in (
        (tmp_path, "folder"),
        (tmp_path / "folder.csv", "folder"),
        (tmp_path / ("gone-" + name), "no such file"),
        (tmp_path / ("x" * 5000), "cannot be looked up"),
        (Path("a\0b"), ""),
        (Path("/dev/zero"), "device"),
    ):
        with pytest.raises(InputError) as error:
            load(path)
        assert said in error.value.message


def test_an_unreadable_file_is_bad_input_too(tmp_path):
    path = tmp_path / "loop.yaml"
    path.symlink_to(path)
    with pytest.raises(InputError):
        load_deployment(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_off_anywhere_loads_whole_or_is_refused(tmp_path, kind):
    """Some cuts leave a valid, shorter file; none may end in anything but a noun or an InputError."""
    valid = KINDS[kind][1]
    outcomes = set()
    for cut in range(len(valid)):
        path, load = written(tmp_path, kind, valid[:cut])
        try:
            load(path)
            outcomes.add("loads")
        except InputError as error:
            assert error.where == str(path)  # noqa: PT017 - either outcome is right
            outcomes.add("refused")
    assert "refused" in outcomes


@pytest.mark.parametrize("kind", YAML_KINDS)
@pytest.mark.parametrize(
    "bomb",
    [
        "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60)),
        "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{l: *a{i - 1}, r: *a{i - 1}}}\n" for i in range(1, 60)),
        "alloc: &a {encode: *a}\n",
        "alloc: " + "[" * 700 + "]" * 700 + "\n",
        "alloc: " + "{a: " * 700 + "}" * 700 + "\n",
        "alloc: !!python/object/apply:os.system ['true']\n",
        "alloc: !!binary aGVsbG8=\n",
        "alloc: !!set {a, b}\n",
        "? [a, b]\n: 1\n",
        "? {a: 1}\n: 1\n",
    ],
    ids=[
        "lists",
        "mappings",
        "itself",
        "deep lists",
        "deep mappings",
        "python",
        "binary",
        "set",
        "list key",
        "map key",
    ],
)
def test_bombs_and_tags(tmp_path, kind, bomb):
    refused(tmp_path, kind, bomb + KINDS[kind][1])


chunks = st.sampled_from(
    ["{", "}", "[", "]", ": ", "- ", "&a ", "*a", "!!", "|\n", ">", "? ", "#", '"', "'", ",", "\n", "  ", "\t", "<<", "%",
     "nan", ".inf", "-1", "1e999", "true", "null", "é", "\x85", "\u2028", "\ufeff", "0x", "---\n", "...\n"]
)  # fmt: skip


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.sampled_from(list(KINDS)), st.data())
def test_random_damage_is_an_input_error_or_harmless(tmp_path_factory, kind, data):
    content = KINDS[kind][1]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        content = content[:at] + data.draw(chunks) + content[at + data.draw(st.integers(0, 4)) :]
    path, load = written(tmp_path_factory.mktemp("damage"), kind, content)
    try:
        load(path)
    except InputError as error:
        assert error.where.startswith(str(path))  # noqa: PT017 - either outcome is right


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.data())
def test_a_damaged_parquet_profile_is_an_input_error_or_harmless(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damage") / "p.parquet"
    rows = [
        {"stage": s, "sm_percent": 100.0, "batch": 1, "tokens": 1, "latency_s": 0.1}
        for s in ("prefill", "decode")
    ]
    save_profile(profile_from_rows(json.loads(PROFILE_METADATA), rows), path)
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 8))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    try:
        load_profile(path)
    except InputError as error:
        assert error.where.startswith(str(path))  # noqa: PT017 - either outcome is right


def test_a_truncated_parquet_says_so(tmp_path):
    path = tmp_path / "p.parquet"
    rows = [
        {"stage": s, "sm_percent": 100.0, "batch": 1, "tokens": 1, "latency_s": 0.1}
        for s in ("prefill", "decode")
    ]
    save_profile(profile_from_rows(json.loads(PROFILE_METADATA), rows), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="Parquet") as error:
        load_profile(path)
    assert "cut off" in error.value.mend


@pytest.mark.parametrize(
    "metadata",
    [b"", b"{", b"\xff\xfe", b"[]", b'{"version": 2}', b"null"],
    ids=["empty", "cut", "binary", "list", "version", "null"],
)
def test_wrong_metadata_inside_a_parquet_profile(tmp_path, metadata):
    path = tmp_path / "p.parquet"
    rows = [
        {"stage": s, "sm_percent": 100.0, "batch": 1, "tokens": 1, "latency_s": 0.1}
        for s in ("prefill", "decode")
    ]
    save_profile(profile_from_rows(json.loads(PROFILE_METADATA), rows), path)
    pq.write_table(pq.read_table(path).replace_schema_metadata({METADATA_KEY: metadata}), path)
    with pytest.raises(InputError) as error:
        load_profile(path)
    assert error.value.where.startswith(str(path))


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, kind):
    path, load = written(tmp_path, kind, KINDS[kind][1])
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="is a pipe, not a file"):
        load(path)


@pytest.mark.parametrize("path", [None, 5, 1.5, [], {}, b"x.yaml", Ellipsis], ids=repr)
@pytest.mark.parametrize("load", [load_deployment, load_profile, load_workload, load_space, load_trace])
def test_what_is_no_path_is_refused(load, path):
    with pytest.raises(InputError, match="not a path"):
        load(path)

"""Bad files, through every command that reads them: status 2, one message with the place, no traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

SIMULATE = ("simulate", "d.yaml", "--profile", "p.csv", "--workload", "w.yaml")
SEARCH = ("search", "--gpus", "4", "--on", "simulated", "--profile", "p.csv", "--workload", "w.yaml")
READERS = {
    "d.yaml": [
        ("show", "d.yaml"),
        SIMULATE,
        ("explain", "d.yaml", "--profile", "p.csv", "--workload", "w.yaml"),
        ("deploy", "d.yaml", "--dry-run"),
        (*SEARCH, "--baseline", "d.yaml"),
    ],
    "w.yaml": [("show", "w.yaml"), SIMULATE, SEARCH, ("bench", "http://127.0.0.1:9", "--workload", "w.yaml")],
    "s.yaml": [("show", "s.yaml"), (*SEARCH, "--space", "s.yaml")],
    "p.csv": [("show", "p.csv"), SIMULATE, SEARCH],
}
"""The commands that read a file of each kind."""

WRONG = {
    "d.yaml": {
        "unknown key": lambda text: text + "surprise: 1\n",
        "NaN": lambda text: text.replace("rate: 6.0", "rate: .nan"),
        "infinity": lambda text: text.replace("rate: 6.0", "rate: .inf"),
        "negative": lambda text: text.replace("encode_batch: 4", "encode_batch: -4"),
        "duplicate key": lambda text: text + "gpus: 8\n",
        "truncated": lambda text: text[: text.index("decode: 4")],
        "wrong version": lambda text: text.replace("version: 1", "version: 2"),
        "no version": lambda text: text.replace("version: 1\n", ""),
        "wrong type": lambda text: text.replace("encode_batch: 4", "encode_batch: true"),
        "wrong sum": lambda text: text.replace("gpus: 8", "gpus: 9"),
        "seven decimals": lambda text: text.replace("prefill_offload: 0.5", "prefill_offload: 0.1234567"),
        "no mapping": lambda text: "- 1\n- 2\n",
        "tag": lambda text: text + "evidence: !!python/object/apply:os.system [echo]\n",
    },
    "w.yaml": {
        "unknown key": lambda text: text + "surprise: 1\n",
        "NaN": lambda text: text.replace("p50: 16", "p50: .nan"),
        "negative": lambda text: text.replace("media_tokens: 64", "media_tokens: -64"),
        "duplicate key": lambda text: text + "name: again\n",
        "truncated": lambda text: text[: text.index("p99: 60")],
        "wrong version": lambda text: text.replace("version: 1", "version: 2"),
        "no requests": lambda text: text[: text.index("requests:")],
        "p99 below p50": lambda text: text.replace("p50: 16, p99: 60", "p50: 60, p99: 16"),
    },
    "s.yaml": {
        "unknown key": lambda text: text + "surprise: 1\n",
        "NaN": lambda text: text.replace("step: 0.5", "step: .nan"),
        "negative": lambda text: text.replace("encode: [1, 6]", "encode: [-1, 6]"),
        "duplicate key": lambda text: text + "version: 1\n",
        "truncated": lambda text: text[: text.index("decode: [1")],
        "wrong version": lambda text: text.replace("version: 1", "version: 2"),
        "a value twice": lambda text: text.replace("[1, 2, 4]", "[1, 2, 2]"),
    },
    "p.csv": {
        "unknown column": lambda text: "\n".join(
            f"{line},{'odd' if i == 0 else 1}" for i, line in enumerate(text.splitlines())
        ),
        "NaN": lambda text: text.replace("0.04", "nan"),
        "negative": lambda text: text.replace("0.04", "-0.04"),
        "a point twice": lambda text: text + text.splitlines()[-1] + "\n",
        "truncated": lambda text: text[: text.index("prefill") + 12],
        "share over 100": lambda text: text.replace("prefill,100", "prefill,101"),
        "missing stage": lambda text: "\n".join(text.splitlines()[:3]) + "\n",
        "empty": lambda text: "",
    },
}
CASES = [
    pytest.param(name, fault, command, id=f"{command[0]}-{name}-{fault}".replace(" ", "_"))
    for name, faults in WRONG.items()
    for fault in faults
    for command in READERS[name]
]


def is_one_clear_message(said, file: str) -> None:  # type: ignore[no-untyped-def]
    assert said.status == 2, said.err
    assert [line.startswith("error: ") for line in said.err.splitlines()].count(True) == 1
    assert Path(file).stem in said.err
    assert "nobody foresaw" not in said.err
    assert said.out == ""


@pytest.mark.parametrize(("name", "fault", "command"), CASES)
def test_a_bad_file_is_one_clear_message(name, fault, command, has, inputs) -> None:  # type: ignore[no-untyped-def]
    good = (inputs / name).read_text()
    bad = WRONG[name][fault](good)
    assert bad != good
    (inputs / name).write_text(bad)
    is_one_clear_message(has(*command), name)


METADATA_FAULTS = {
    "wrong version": lambda text: text.replace('"version": 1', '"version": 2'),
    "truncated": lambda text: text[: len(text) // 2],
    "duplicate key": lambda text: text.replace("{", '{"model": "other", ', 1),
    "NaN": lambda text: text.replace("{", '{"error": NaN, ', 1),
    "negative": lambda text: text.replace("{", '{"memory_bytes": -1, ', 1),
    "required missing": lambda text: text.replace('"model": "tiny-image", ', ""),
}


@pytest.mark.parametrize("command", READERS["p.csv"], ids=lambda c: c[0])
@pytest.mark.parametrize("fault", METADATA_FAULTS)
def test_bad_profile_metadata(fault, command, has, inputs) -> None:  # type: ignore[no-untyped-def]
    good = (inputs / "p.json").read_text()
    bad = METADATA_FAULTS[fault](good)
    assert bad != good
    (inputs / "p.json").write_text(bad)
    is_one_clear_message(has(*command), "p.json")


@pytest.mark.parametrize("command", READERS["p.csv"], ids=lambda c: c[0])
@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_torn_parquet_profile(keep, command, has, inputs) -> None:  # type: ignore[no-untyped-def]
    from has.files.profile import load_profile, save_profile

    save_profile(load_profile(inputs / "p.csv"), inputs / "p.parquet")
    (inputs / "p.parquet").write_bytes((inputs / "p.parquet").read_bytes()[:keep])
    is_one_clear_message(has(*(word.replace("p.csv", "p.parquet") for word in command)), "p.parquet")


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_not_there_and_one_that_is_a_folder(name, has, inputs) -> None:  # type: ignore[no-untyped-def]
    (inputs / name).unlink()
    for command in READERS[name]:
        is_one_clear_message(has(*command), name)
    (inputs / name).mkdir()
    for command in READERS[name]:
        is_one_clear_message(has(*command), name)


NO_YAML = {
    "empty": b"",
    "binary": b"\x00\x01\xff\xfe",
    "not UTF-8": b"\xff" * 100,
    "deep": b"[" * 700,
    "cycle": b"a: &a [*a]",
    "lists": b"- - -",
}


@pytest.mark.parametrize("name", ["d.yaml", "w.yaml", "s.yaml"])
@pytest.mark.parametrize("content", NO_YAML.values(), ids=NO_YAML)
def test_bytes_that_are_no_yaml_of_ours(name, content, has, inputs) -> None:  # type: ignore[no-untyped-def]
    (inputs / name).write_bytes(content)
    for command in READERS[name]:
        is_one_clear_message(has(*command), name)


def test_under_json_the_error_is_one_document_too(has, inputs) -> None:  # type: ignore[no-untyped-def]
    (inputs / "d.yaml").write_text(
        (inputs / "d.yaml").read_text().replace("encode_batch: 4", "encode_batch: -4")
    )
    said = has(*SIMULATE, "--json")
    error = json.loads(said.out)["error"]
    assert said.status == error["status"] == 2
    assert error["kind"] == "InputError"
    assert (error["where"], error["field"], error["value"]) == ("d.yaml", "encode_batch", -4)
    assert error["allowed"]


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_and_not_waited_for(name, has, inputs) -> None:  # type: ignore[no-untyped-def]
    (inputs / name).unlink()
    os.mkfifo(inputs / name)
    for command in READERS[name]:
        is_one_clear_message(has(*command), name)

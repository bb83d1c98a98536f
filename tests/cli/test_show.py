"""`has show`: every kind of file, in the terminal, as JSON and as a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from has.files.shipped import shipped

TRACE = """arrival_s,modality,items,media_tokens,prompt_tokens,output_tokens
0.0,image,1,64,10,5
0.5,text,0,0,20,7
2.0,image,2,128,30,9
"""


@pytest.fixture
def trace(inputs: Path) -> Path:
    (inputs / "t.csv").write_text(TRACE)
    return inputs / "t.csv"


@pytest.mark.parametrize(
    ("file", "title", "says"),
    [
        ("d.yaml", "Deployment 2E2P4D B4 s0.5 of tiny-image", "50 % of prefills locally"),
        ("w.yaml", "Workload w", "lognormal p50 16, p99 60"),
        ("s.yaml", "Search space", "0 to 1 in steps of 0.5"),
        ("p.csv", "Profile of tiny-image on test", "100 % SM"),
        ("t.csv", "Trace t.csv", "mean rate, requests/s"),
    ],
)
def test_each_kind_is_recognised_and_shown(file, title, says, has, inputs, trace) -> None:  # type: ignore[no-untyped-def]
    said = has("show", file)
    assert said.status == 0
    assert said.out.startswith(title)
    assert says in said.out
    assert all(line == line.rstrip() for line in said.out.splitlines())
    has("show", file, "--html", "page.html")
    page = (inputs / "page.html").read_text()
    assert title in page
    assert "http" not in page.replace("http-equiv", "")  # nothing is fetched


def test_a_profile_as_json_is_metadata_and_rows(has, inputs) -> None:  # type: ignore[no-untyped-def]
    shown = has("show", "p.csv", "--json").json
    assert set(shown) == {"metadata", "rows"}
    assert shown["metadata"]["device"] == "test"
    assert [(row["stage"], row["latency_s"]) for row in shown["rows"]] == [
        ("encode", 0.05),
        ("prefill", 0.04),
        ("decode", 0.01),
    ]


def test_a_parquet_profile_shows_as_its_csv(has, inputs) -> None:  # type: ignore[no-untyped-def]
    from has.files.profile import load_profile, save_profile

    save_profile(load_profile(inputs / "p.csv"), inputs / "p.parquet")
    assert has("show", "p.parquet", "--json").json == has("show", "p.csv", "--json").json


def test_a_trace_as_json_is_its_requests(has, trace) -> None:  # type: ignore[no-untyped-def]
    requests = has("show", "t.csv", "--json").json["requests"]
    assert requests[2] == {
        "arrival_s": 2.0,
        "modality": "image",
        "items": 2,
        "media_tokens": 128,
        "prompt_tokens": 30,
        "output_tokens": 9,
    }


def test_a_trace_as_json_lines_is_the_same_trace(has, trace) -> None:  # type: ignore[no-untyped-def]
    rows = has("show", "t.csv", "--json").json["requests"]
    (trace.parent / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert has("show", "t.jsonl", "--json").json["requests"] == rows


def test_shipped_files_are_shown(has) -> None:  # type: ignore[no-untyped-def]
    """All that people write, and a measured and two estimated profiles: that all of them load is tested elsewhere."""
    profiles = sorted(shipped("profiles").glob("*.parquet"))
    files = [
        *shipped("workloads").glob("*.yaml"),
        *shipped("search_spaces").glob("*.yaml"),
        *(profiles[0], profiles[len(profiles) // 2], *shipped("profiles").glob("*tiny-image*.parquet")),
    ]
    for file in files:
        said = has("show", file)
        assert said.status == 0, said.err


def test_a_file_of_no_known_kind(has, inputs) -> None:  # type: ignore[no-untyped-def]
    (inputs / "x.txt").write_text("hello")
    said = has("show", "x.txt")
    assert said.status == 2
    assert "allowed" in said.err

"""Profiles: Parquet with its metadata inside, CSV with a JSON beside, both strict."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has.core.profile import Profile
from has.errors import InputError
from has.files.profile import (
    COLUMNS,
    METADATA_KEY,
    load_profile,
    metadata_of,
    profile_from_rows,
    save_profile,
)

METADATA = {"version": 1, "device": "cpu", "model": "tiny-image", "source": "measured"}
ROWS = [
    {"stage": stage, "sm_percent": 100.0, "batch": batch, "tokens": 64, "latency_s": 0.1 * batch}
    for stage in ("encode", "prefill", "decode")
    for batch in (1, 2)
]


def csv_profile(folder, text: str, metadata=METADATA):
    (folder / "p.json").write_text(metadata if isinstance(metadata, str) else json.dumps(metadata))
    path = folder / "p.csv"
    path.write_text(text)
    return path


def csv_of(rows) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return (
        "\n".join([",".join(names), *(",".join(str(row.get(n, "")) for n in names) for row in rows)]) + "\n"
    )


seconds = st.floats(0, 1e4)
points = st.fixed_dictionaries(
    {
        "stage": st.sampled_from(["encode", "prefill", "decode", "preprocess", "kv_transfer"]),
        "sm_percent": st.floats(1, 100),
        "batch": st.integers(1, 64),
        "tokens": st.integers(0, 10**6),
        "latency_s": seconds,
    },
    optional={
        "sm_asked": st.floats(1, 100),
        "beside": st.sampled_from(["none", "prefill", "encode"]),
        "p10_s": seconds,
        "p90_s": seconds,
        "samples": st.integers(1, 999),
    },
)
metadata = st.fixed_dictionaries(
    {
        "version": st.just(1),
        "device": st.text(),
        "model": st.text(),
        "source": st.sampled_from(["measured", "silicon"]),
    },
    optional={
        "sm_count": st.integers(1, 200),
        "memory_bytes": st.integers(1, 10**12),
        "weights_bytes": st.fixed_dictionaries(
            {"encoder": st.integers(0, 10**11), "lm": st.integers(0, 10**11)}
        ),
        "notes": st.lists(st.text(max_size=5), max_size=2),
        "anything": st.dictionaries(st.text(max_size=5), st.integers() | st.none(), max_size=2),
    },
)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(metadata, st.lists(points, max_size=8))
def test_a_saved_profile_loads_to_an_equal_one(tmp_path_factory, metadata, rows):
    needed = [row for row in ROWS if row["stage"] in ("prefill", "decode") and row["batch"] == 1]
    alone = {
        (row["stage"], row.get("beside", "none")): row for row in rows
    }  # one point a grid leaves no hole
    rows = needed + [
        row for key, row in alone.items() if key not in {("prefill", "none"), ("decode", "none")}
    ]
    profile = profile_from_rows(metadata, rows)
    path = tmp_path_factory.mktemp("profile") / "p.parquet"
    save_profile(profile, path, csv_twin=True)
    assert load_profile(path) == profile
    assert load_profile(path.with_suffix(".csv")) == profile
    assert metadata_of(path) == metadata_of(path.with_suffix(".csv")) == profile.metadata


def test_absent_columns_take_their_defaults(tmp_path):
    profile = load_profile(csv_profile(tmp_path, csv_of(ROWS)))
    assert isinstance(profile, Profile)
    assert {row.beside for row in profile.rows} == {"none"}
    assert profile.rows[0].samples is None


def test_a_data_frames_habits_are_understood(tmp_path):
    """A data-frame library turns a column of integers with a gap into floats, and writes an index-free Parquet."""
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    columns["samples"] = [8.0, None, 8.0, 8.0, 8.0, 8.0]
    table = pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(METADATA)})
    pq.write_table(table, tmp_path / "p.parquet")
    profile = load_profile(tmp_path / "p.parquet")
    assert [row.samples for row in profile.rows[:2]] == [8, None]
    path = csv_profile(
        tmp_path,
        "stage,sm_percent,batch,tokens,latency_s,samples\nprefill,1e2,1.0,64,1,8.0\ndecode,100,1,64,1,\n",
    )
    assert load_profile(path).rows[0].batch == 1


def error_of(path) -> InputError:
    with pytest.raises(InputError) as error:
        load_profile(path)
    return error.value


@pytest.mark.parametrize(
    ("old", "new", "field", "said"),
    [
        ("latency_s", "latency_ms", "latency_ms", "unknown column"),
        ("sm_percent", "sm_asked", "sm_percent", "missing"),
        ("tokens,latency_s", "tokens,tokens", "tokens", "twice"),
        ("prefill,100.0,2,64,0.2", "prefill,100.0,2,64,nan", "rows.3.latency_s", "line 5"),
        ("prefill,100.0,2,64,0.2", "prefill,100.0,2,64,inf", "rows.3.latency_s", "line 5"),
        ("prefill,100.0,2,64,0.2", "prefill,100.0,2,64,-0.2", "rows.3.latency_s", "line 5"),
        ("prefill,100.0,2,64,0.2", "prefill,100.0,2,64,", "rows.3.latency_s", "line 5"),
        ("prefill,100.0,2,64,0.2", "prefill,100.0,2,64,fast", "rows.3.latency_s", "line 5"),
        ("prefill,100.0,2,64,0.2", "prefill,100.0,2.5,64,0.2", "rows.3.batch", "integer"),
        ("prefill,100.0,2,64,0.2", "prefill,100.0,0,64,0.2", "rows.3.batch", "line 5"),
        ("prefill,100.0,2,64,0.2", "prefill,120,2,64,0.2", "rows.3.sm_percent", "100"),
        ("prefill,100.0,2,64,0.2", "prefil,100.0,2,64,0.2", "rows.3.stage", "line 5"),
        ("prefill,100.0,2,64,0.2", "prefill,100.0,1,64,0.2", "rows.3", "twice"),
        ("prefill,100.0,2,64,0.2", "prefill,100.0,2", "rows.3", "line 5 has 3 values for 5 columns"),
        ("prefill,100.0,2,64,0.2", "prefill,100.0,2,64,0.2,9", "rows.3", "6 values"),
        ("prefill", "encode_", "rows.2.stage", "line 4"),
    ],
)
def test_a_wrong_csv_names_row_and_line(tmp_path, old, new, field, said):
    error = error_of(csv_profile(tmp_path, csv_of(ROWS).replace(old, new)))
    assert (error.where, error.field) == (str(tmp_path / "p.csv"), field)
    assert said in str(error)


def test_a_profile_without_decode_rows_is_refused(tmp_path):
    error = error_of(csv_profile(tmp_path, csv_of(ROWS[:4])))
    assert "decode" in error.message


@pytest.mark.parametrize(
    ("metadata", "field", "said"),
    [
        ({k: v for k, v in METADATA.items() if k != "device"}, "device", "required"),
        (METADATA | {"version": 2}, "version", "version 1 only"),
        (METADATA | {"sm_count": 1.5}, "sm_count", "integer"),
        (METADATA | {"sm_count": True}, "sm_count", "integer"),
        (METADATA | {"memory_bytes": -1}, "memory_bytes", "greater"),
        (METADATA | {"source": "guessed"}, "source", "silicon"),
        (METADATA | {"weights_bytes": {"lms": 1}}, "weights_bytes.lms", "unknown key"),
        ([METADATA], "", "not a list"),
        ('{"version": 1, "version": 1}', "version", "twice"),
        ('{"version": 1, "error": NaN}', "error", "nan"),
        ('{"version": 1, "error": 1e999}', "error", "finite"),
        ('{"version": 1', "", "cut off"),
        ("", "", "not JSON"),
    ],
)
def test_wrong_metadata_is_named_in_its_own_file(tmp_path, metadata, field, said):
    error = error_of(csv_profile(tmp_path, csv_of(ROWS), metadata))
    assert (error.where, error.field) == (str(tmp_path / "p.json"), field)
    assert said in str(error)


def test_a_hole_in_a_grid_is_named_with_the_file(tmp_path):
    rows = [*ROWS, ROWS[1] | {"sm_percent": 50.0}]
    error = error_of(csv_profile(tmp_path, csv_of(rows)))
    assert (error.where, error.field) == (str(tmp_path / "p.csv"), "rows")
    assert (
        "encode do not fill their grid: there is no point (sm_percent 50, batch 1, tokens 64)"
        in error.message
    )
    assert error.allowed == "every combination of sm_percent 50, 100; batch 1, 2; tokens 64"


def test_a_csv_without_its_metadata_says_what_to_write(tmp_path):
    path = csv_profile(tmp_path, csv_of(ROWS))
    (tmp_path / "p.json").unlink()
    error = error_of(path)
    assert "p.json" in error.message
    assert "version, device, model, source" in error.mend


def test_a_parquet_file_of_something_else_is_no_profile(tmp_path):
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    assert "no profile" in error_of(path).message


def test_a_parquet_row_is_named_as_a_row(tmp_path):
    path = tmp_path / "p.parquet"
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    columns["latency_s"] = [0.1, 0.1, float("nan"), 0.1, 0.1, 0.1]
    pq.write_table(pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(METADATA)}), path)
    error = error_of(path)
    assert error.field == "rows.2.latency_s"
    assert "row 2, counted from 0" in error.message


def test_another_ending_is_refused_both_ways(tmp_path):
    path = tmp_path / "p.xlsx"
    path.write_text("x")
    assert ".parquet" in error_of(path).allowed
    with pytest.raises(InputError):
        save_profile(profile_from_rows(METADATA, ROWS), path)


def test_the_file_lists_columns_in_the_documented_order(tmp_path):
    save_profile(profile_from_rows(METADATA, ROWS), tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    assert json.loads((tmp_path / "p.json").read_text()) == METADATA

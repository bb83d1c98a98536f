"""Traces: three kinds of table, the same requests; every fault named by row and line."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has.core.requests import Requests
from has.core.stage import MODALITIES
from has.errors import InputError
from has.files.trace import load_trace, save_trace, trace_blocks

ROWS = [
    {
        "arrival_s": 0.0,
        "modality": "image",
        "items": 2,
        "media_tokens": 128,
        "prompt_tokens": 9,
        "output_tokens": 5,
    },
    {
        "arrival_s": 0.5,
        "modality": "text",
        "items": 0,
        "media_tokens": 0,
        "prompt_tokens": 30,
        "output_tokens": 1,
    },
    {
        "arrival_s": 0.5,
        "modality": "audio",
        "items": 1,
        "media_tokens": 50,
        "prompt_tokens": 0,
        "output_tokens": 7,
    },
]


def written(path, rows):
    names = list(dict.fromkeys(name for row in rows for name in row))
    match path.suffix:
        case ".csv":
            lines = [",".join(str("" if row.get(n) is None else row[n]) for n in names) for row in rows]
            path.write_text("\n".join([",".join(names), *lines]) + "\n")
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case ".parquet":
            pq.write_table(pa.table({n: [row.get(n) for row in rows] for n in names}), path)
    return path


def equal(a: Requests, b: Requests) -> bool:
    names = ("arrival_ns", "modality", "items", "media_tokens", "prompt_tokens", "output_tokens")
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in names)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_all_three_kinds_give_the_same_requests(tmp_path, ending):
    requests = load_trace(written(tmp_path / f"t.{ending}", ROWS))
    assert equal(requests, Requests.from_rows(ROWS))
    assert requests.media_tokens.tolist() == [128, 0, 50]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_items_and_a_texts_media_tokens_may_be_missing(tmp_path, ending):
    rows = [{k: v for k, v in row.items() if k != "items"} for row in ROWS]
    rows[1]["media_tokens"] = None
    assert load_trace(written(tmp_path / f"t.{ending}", rows)).items.tolist() == [1, 0, 1]


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**13),
            st.integers(0, 3),
            st.integers(1, 9),
            st.integers(0, 10**6),
            st.integers(1, 999),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_a_saved_trace_loads_to_the_same_nanosecond(tmp_path_factory, rows):
    rows = sorted(rows)
    columns = np.array(rows, np.int64).T
    media = np.minimum(columns[1], 1)
    nan = np.full(len(rows), np.nan)
    requests = Requests(
        columns[0], columns[1], columns[2] * media, columns[3] * media, columns[3], columns[4], nan, nan
    )
    folder = tmp_path_factory.mktemp("trace")
    for name in ("t.csv", "t.parquet"):
        save_trace(requests, folder / name)
        assert equal(load_trace(folder / name), requests)


def rule(model, *, image_px=None, video_s=None, fps=None, audio_s=None):
    assert model == "a-model"
    if image_px:
        return image_px[0] * image_px[1] // 100
    return round(video_s * (fps or 2.0)) if video_s else round(audio_s * 10)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_sizes_become_tokens_by_the_models_rule(tmp_path, ending):
    base = {"arrival_s": 1.0, "prompt_tokens": 5, "output_tokens": 5}
    rows = [
        base | {"modality": "image", "items": 2, "image_px": "40x30"},
        base | {"modality": "video", "video_s": 8.0},
        base | {"modality": "video", "video_s": 8.0, "fps": 4.0},
        base | {"modality": "audio", "audio_s": 3.0},
        base | {"modality": "image", "media_tokens": 77},
        base | {"modality": "text"},
    ]
    if ending == "jsonl":
        rows[0]["image_px"] = [40, 30]
    path = written(tmp_path / f"t.{ending}", rows)
    assert load_trace(path, "a-model", token_rule=rule).media_tokens.tolist() == [24, 16, 32, 30, 77, 0]
    with pytest.raises(InputError, match="token rule") as error:
        load_trace(path)
    assert error.value.field == "rows.0.image_px"


@pytest.mark.parametrize(
    ("row", "column", "value", "said"),
    [
        (1, "arrival_s", -1, "range"),
        (2, "arrival_s", 0.4, "earlier"),
        (0, "arrival_s", None, "required"),
        (0, "arrival_s", 1e12, "range"),
        (0, "modality", "picture", "one of text, image, video, audio"),
        (0, "modality", None, "modality"),
        (0, "items", 0, "range"),
        (0, "items", 1.5, "integer"),
        (1, "items", 1, "text request"),
        (1, "media_tokens", 4, "text request"),
        (0, "media_tokens", -4, "range"),
        (0, "media_tokens", None, "required"),
        (0, "media_tokens", 10**15, "range"),
        (0, "prompt_tokens", -1, "range"),
        (2, "output_tokens", 0, "range"),
        (2, "output_tokens", 2.5, "integer"),
        (2, "audio_s", 3.0, "beside media_tokens"),
        (0, "audio_s", 3.0, "has none"),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_fault_is_named_by_row_and_line(tmp_path, ending, row, column, value, said):
    rows = [dict(r) for r in ROWS]
    rows[row][column] = value
    path = written(tmp_path / f"t.{ending}", rows)
    with pytest.raises(InputError) as error:
        load_trace(path, "a-model", token_rule=rule)
    assert (error.value.where, error.value.field) == (str(path), f"rows.{row}.{column}")
    assert said in str(error.value)
    place = {"csv": f"line {row + 2}", "jsonl": f"line {row + 1}", "parquet": f"row {row}, counted from 0"}[
        ending
    ]
    assert place in error.value.message


@pytest.mark.parametrize("value", ['"5"', "true", "[1]", "NaN", "1e999", "{}"])
def test_json_kinds_are_strict(tmp_path, value):
    path = tmp_path / "t.jsonl"
    line = json.dumps(ROWS[0]).replace('"prompt_tokens": 9', f'"prompt_tokens": {value}')
    path.write_text(line + "\n")
    with pytest.raises(InputError):
        load_trace(path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.csv", "", "empty"),
        ("t.csv", "arrival_s,modality,prompt_tokens,output_tokens\n", "no rows"),
        ("t.csv", "arrival_s,modality,prompt_tokens\n0,text,5\n", "output_tokens"),
        ("t.csv", "arrival_s,modality,prompt_tokens,output_tokens,user\n0,text,5,5,1\n", "unknown column"),
        ("t.csv", 'arrival_s,modality,prompt_tokens,output_tokens\n0,"text,5,5\n', "CSV"),
        ("t.jsonl", "", "empty"),
        ("t.jsonl", "[1]\n", "no JSON object"),
        ("t.jsonl", '{"arrival_s": 0\n', "not JSON"),
        ("t.txt", "x", "unknown kind"),
    ],
)
def test_damaged_tables(tmp_path, name, text, said):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=said) as error:
        load_trace(path)
    assert str(path) in error.value.where


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfarrival_s,modality,prompt_tokens,output_tokens\r\n0,text,5,6\r\n")
    assert load_trace(path).output_tokens.tolist() == [6]


def test_modalities_are_coded_in_their_order(tmp_path):
    rows = [ROWS[0] | {"modality": m, "items": 1} for m in MODALITIES[1:]]
    assert load_trace(written(tmp_path / "t.jsonl", rows)).modality.tolist() == [1, 2, 3]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_blocks_make_the_whole_and_name_rows_of_the_whole(tmp_path, monkeypatch, ending):
    monkeypatch.setattr("has.files.tables.BLOCK_ROWS", 3)
    rows = [
        {"arrival_s": i / 4, "modality": "image", "media_tokens": 64, "prompt_tokens": i, "output_tokens": 5}
        for i in range(10)
    ]
    path = tmp_path / f"t.{ending}"
    written(path, rows)
    blocks = list(trace_blocks(path))
    assert [len(block) for block in blocks] == [3, 3, 3, 1]
    assert load_trace(path).prompt_tokens.tolist() == list(range(10))
    rows[7]["arrival_s"] = 0.5
    written(path, rows)
    with pytest.raises(InputError, match="earlier than the row before") as raised:
        load_trace(path)
    assert raised.value.field == "rows.7.arrival_s"
    assert {"csv": "line 9", "jsonl": "line 8", "parquet": "row 7"}[ending] in str(raised.value)

"""Foreign traces, format by format: what is right arrives whole, what is wrong is counted or refused."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has.errors import InputError
from has.files.formats.convert import Options, convert
from has.files.formats.sorting import by_arrival
from has.files.trace import load_trace
from has.files.workload import load_workload
from tests.files.foreign import (
    IMAGE_TOKENS,
    WRITERS,
    asks,
    azure_lmm,
    burstgpt,
    expected,
    found,
    mooncake,
    servegen,
)

ROWS = asks()
KINDS = list(WRITERS)


def text_of(kind, rows=ROWS):
    return WRITERS[kind][1](rows)


def converted(tmp_path, kind, content, **options):
    """The conversion of a file that holds `content`."""
    source = tmp_path / "source"
    source.write_bytes(content.encode() if isinstance(content, str) else content)
    return convert(source, WRITERS[kind][0], tmp_path / "out.csv", Options(**options))


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_request_arrives(kind, ending, tmp_path):
    (tmp_path / "in").write_text(text_of(kind))
    out = tmp_path / f"out.{ending}"
    conversion = convert(tmp_path / "in", WRITERS[kind][0], out)
    assert found(out) == expected(WRITERS[kind][0], ROWS)
    assert (conversion.account.seen, conversion.account.bad) == (len(ROWS), 0)
    workload = load_workload(tmp_path / "out.yaml")
    assert workload.arrivals.file == str(out)
    assert workload.name == "out"


@pytest.mark.parametrize(
    "form",
    [
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: gzip.compress(text.encode()),
        lambda text: gzip.compress(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()),
        lambda text: text.rstrip("\n").encode(),
        lambda text: text.replace("\n", "\n\n").encode(),
    ],
    ids=["BOM", "CRLF", "gzip", "all three", "no last line end", "blank lines"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_form_of_the_text_does_not_matter(kind, form, tmp_path):
    converted(tmp_path, kind, form(text_of(kind)))
    assert found(tmp_path / "out.csv") == expected(WRITERS[kind][0], ROWS)


def spoilt(kind, line, column, value):
    """The text with one value of one row (lines count from 1) replaced."""
    lines = text_of(kind).splitlines()
    if kind.startswith("mooncake"):
        entry = json.loads(lines[line - 1])
        if column is None:
            lines[line - 1] = value
        else:
            entry[column] = value
            lines[line - 1] = json.dumps(entry)
    elif column is None:
        lines[line - 1] = value
    else:
        cells = lines[line - 1].split(",")
        cells[lines[0].split(",").index(column)] = str(value)
        lines[line - 1] = ",".join(cells)
    return "\n".join(lines) + "\n"


AZURE = [
    ("TIMESTAMP", "yesterday", "no instant of time"),
    ("TIMESTAMP", "", "is empty"),
    ("TIMESTAMP", "2023-11-16 18:61:00.0", "no instant of time"),
    ("TIMESTAMP", "2023-11-16 18:01:00.12x", "no instant of time"),
    ("TIMESTAMP", "1700000000", "no instant of time"),
    ("TIMESTAMP", "1999-01-01 00:00:00", "out of order"),
    ("ContextTokens", "nan", "is not finite"),
    ("ContextTokens", "inf", "is not finite"),
    ("ContextTokens", "-3", "is negative"),
    ("ContextTokens", "12.5", "is no whole number"),
    ("ContextTokens", "", "is empty"),
    ("ContextTokens", "1_000", "is no number"),
    ("ContextTokens", "9" * 30, "is too large"),
    ("ContextTokens", "1e400", "is too large"),
    ("GeneratedTokens", "0", "is below 1"),
    (None, "1,2", "values of the header"),
    (None, "1,2,3,4,5", "values of the header"),
    (None, 'a,"b,3', "is not CSV"),
]
BAD_ROWS = [
    *(("azure 2023", *case) for case in AZURE),
    *(("azure 2024", *case) for case in AZURE if case[1] != "1999-01-01 00:00:00"),
    ("azure-lmm", "NumImages", "-1", "is negative"),
    ("azure-lmm", "NumImages", "nan", "is not finite"),
    ("azure-lmm", "ContextTokens", "x", "is no number"),
    ("mooncake", "timestamp", -1, "is negative"),
    ("mooncake", "timestamp", float("nan"), "is not finite"),
    ("mooncake", "timestamp", True, "is no number"),
    ("mooncake", "timestamp", "soon", "is no number"),
    ("mooncake", "timestamp", 0, "out of order"),
    ("mooncake", "timestamp", 1.7e18, "another unit"),
    ("mooncake", "timestamp", None, "neither timestamp nor delay"),
    ("mooncake", "input_length", None, "is missing"),
    ("mooncake", "input_length", [1], "is no number"),
    ("mooncake", "input_length", 1.5, "is no whole number"),
    ("mooncake", "output_length", 0, "is below 1"),
    ("mooncake", None, '{"timestamp": 1, "inp', "is not JSON"),
    ("mooncake", None, "[1, 2]", "is no JSON object"),
    ("mooncake, delays", "delay", -5, "is negative"),
    ("burstgpt", "Timestamp", "-1", "is negative"),
    ("burstgpt", "Timestamp", "NaN", "is not finite"),
    ("burstgpt", "Timestamp", "0", "out of order"),
    ("burstgpt", "Timestamp", "1.7e12", "another unit"),
    ("burstgpt", "Request tokens", "-7", "is negative"),
    ("burstgpt", "Response tokens", "many", "is no number"),
    (None, None, b"caf\xe9", "is not UTF-8"),
]


@pytest.mark.parametrize(("kind", "column", "value", "reason"), BAD_ROWS)
def test_a_bad_row_is_counted_and_shown_and_the_rest_kept(kind, column, value, reason, tmp_path):
    line = 150
    if kind is None:
        kind = "azure 2023"
        lines = text_of(kind).encode().splitlines()
        lines[line - 1] = value
        content = b"\n".join(lines)
    else:
        content = spoilt(kind, line, column, value)
    account = converted(tmp_path, kind, content).account
    assert account.bad == 1
    assert account.seen == len(ROWS)
    assert account.first[0].startswith(f"line {line}: ")
    assert reason in account.first[0]
    if column is not None and "neither" not in reason:
        assert column in account.first[0]
    row = line - 1 - (not kind.startswith("mooncake"))
    if kind == "mooncake, delays":  # the gap of the bad row is lost with it
        assert len(load_trace(tmp_path / "out.csv")) == len(ROWS) - 1
    else:
        kept = ROWS[:row] + ROWS[row + 1 :]
        assert found(tmp_path / "out.csv") == expected(WRITERS[kind][0], kept)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_off_in_a_row_loses_that_row_aloud(kind, tmp_path):
    whole = text_of(kind)
    account = converted(tmp_path, kind, whole[: whole.rstrip().rindex(":" if kind.startswith("mooncake") else ",") - 3]).account  # fmt: skip
    assert account.bad == 1
    assert len(load_trace(tmp_path / "out.csv")) == len(ROWS) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_a_twentieth_of_bad_rows_is_an_error(kind, tmp_path):
    header, *lines = text_of(kind).splitlines()
    most = len(ROWS) // 20
    for bad in (most, most + 1):
        content = "\n".join([header, *["{bad" for _ in range(bad)], *lines[bad:]])
        if bad == most:
            assert converted(tmp_path, kind, content).account.bad == most
            continue
        before = (tmp_path / "out.csv").read_bytes()
        with pytest.raises(InputError, match=rf"{bad} of {len(ROWS)} rows are bad") as caught:
            converted(tmp_path, kind, content)
        assert "line 2: " in caught.value.message
        assert (tmp_path / "out.csv").read_bytes() == before, "a failed conversion replaces nothing"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"\x00\x01\x02\n" * 50, b"\x1f\x8b", None, "header", "cut gzip"]
)
def test_no_trace_at_all(kind, content, tmp_path):
    whole = text_of(kind)
    if content == "header":
        content = "" if kind.startswith("mooncake") else whole.splitlines()[0]
    if content == "cut gzip":
        content = gzip.compress(whole.encode())[:-200]
    if content is None:
        with pytest.raises(InputError, match="no such file"):
            convert(tmp_path / "absent", WRITERS[kind][0], tmp_path / "out.csv")
        with pytest.raises(InputError, match="folder"):
            convert(tmp_path, WRITERS[kind][0], tmp_path / "out.csv")
        return
    with pytest.raises(InputError) as caught:
        converted(tmp_path, kind, content)
    assert caught.value.where.endswith("source")
    assert list(tmp_path.iterdir()) == [tmp_path / "source"], "nothing is left behind"


@pytest.mark.parametrize("format", ["azure", "azure-lmm", "burstgpt"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_wrong_format_is_told(kind, format, tmp_path):
    if WRITERS[kind][0] == format:
        return
    (tmp_path / "in").write_text(text_of(kind))
    with pytest.raises(InputError) as caught:
        convert(tmp_path / "in", format, tmp_path / "out.csv")
    assert "--format" in caught.value.mend or "format" in str(caught.value)


def test_a_column_twice_is_refused(tmp_path):
    with pytest.raises(InputError, match="twice"):
        converted(
            tmp_path, "azure 2023", text_of("azure 2023").replace("ContextTokens", "GeneratedTokens", 1)
        )


def test_columns_are_found_by_name(tmp_path):
    lines = [line.split(",") for line in text_of("azure 2023").splitlines()]
    content = "\n".join(f'"{c}",{a},extra,{b}' for a, b, c in lines)
    converted(tmp_path, "azure 2023", content)
    assert found(tmp_path / "out.csv") == expected("azure", ROWS)


@pytest.mark.parametrize(
    ("kind", "per_ms"), [("mooncake", 1e-3), ("burstgpt", 1e6)], ids=["seconds for ms", "microseconds for s"]
)
def test_times_in_another_unit_are_refused(kind, per_ms, tmp_path):
    if kind == "mooncake":
        entries = [json.loads(line) | {"timestamp": a.ms * per_ms} for line, a in zip(mooncake(ROWS).splitlines(), ROWS, strict=True)]  # fmt: skip
        content = "\n".join(map(json.dumps, entries))
    else:
        header, *lines = burstgpt(ROWS).splitlines()
        content = "\n".join(
            [
                header,
                *(
                    ",".join([str(a.ms * 1000), *line.split(",")[1:]])
                    for line, a in zip(lines, ROWS, strict=True)
                ),
            ]
        )
    with pytest.raises(InputError, match="unit"):
        converted(tmp_path, kind, content)


def test_nanoseconds_are_kept(tmp_path):
    content = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2023-11-16 18:00:0{i}.6805{i}01,5,5\n" for i in range(5)
    )
    converted(tmp_path, "azure 2023", content)
    arrivals = load_trace(tmp_path / "out.csv").arrival_ns.tolist()
    assert arrivals == [i * 1_000_000_000 + i * 10_000 for i in range(5)]


def test_offsets_from_utc_count(tmp_path):
    content = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 10:00:00.5+00:00,5,5\n2024-05-10 12:00:01.5+02:00,5,5\n2024-05-10 05:00:02.5-05:00,5,5\n"
        "2024-05-10T10:00:03.500Z,5,5\n"
    )
    converted(tmp_path, "azure 2024", content)
    assert load_trace(tmp_path / "out.csv").arrival_ns.tolist() == [i * 1_000_000_000 for i in range(4)]


def test_requests_at_one_instant_are_kept(tmp_path):
    rows = [type(a)(a.ms // 10_000 * 10_000, a.images, a.context, a.output) for a in ROWS]
    conversion = converted(tmp_path, "mooncake", mooncake(rows))
    assert found(tmp_path / "out.csv") == expected("mooncake", rows)
    assert conversion.statistics.same_instant == len(rows) - len({a.ms for a in rows})


def test_failed_requests_of_burstgpt_are_left_out_not_bad(tmp_path):
    rows = [type(a)(a.ms, a.images, a.context, 0 if i % 4 == 0 else a.output) for i, a in enumerate(ROWS)]
    account = converted(tmp_path, "burstgpt", burstgpt(rows)).account
    assert account.bad == 0
    assert sum(account.left_out.values()) == len(ROWS) // 4
    assert len(load_trace(tmp_path / "out.csv")) == len(ROWS) - len(ROWS) // 4


# Azure's multimodal trace


def test_squares_are_recognised_and_said(tmp_path):
    squared = converted(tmp_path, "azure-lmm", azure_lmm(ROWS))
    assert found(tmp_path / "out.csv")["items"] == [a.images for a in ROWS]
    assert any("square of the number" in note for note in squared.account.notes)
    plain = converted(tmp_path, "azure-lmm", azure_lmm(ROWS, power=1))
    assert found(tmp_path / "out.csv")["items"] == [a.images for a in ROWS]
    assert any("as it stands" in note for note in plain.account.notes)
    assert any("no perfect square" in note for note in plain.account.notes)


def test_the_switch_overrules(tmp_path):
    converted(tmp_path, "azure-lmm", azure_lmm(ROWS), squared_images="no")
    assert found(tmp_path / "out.csv")["items"] == [a.images**2 for a in ROWS]
    with pytest.raises(InputError, match="no perfect square"):
        converted(tmp_path, "azure-lmm", azure_lmm(ROWS, power=1), squared_images="yes")


def test_tokens_of_an_image_are_estimated_or_given(tmp_path):
    conversion = converted(tmp_path, "azure-lmm", azure_lmm(ROWS))
    assert any(f"make {IMAGE_TOKENS} of the ContextTokens" in note for note in conversion.account.notes)
    converted(tmp_path, "azure-lmm", azure_lmm(ROWS), image_tokens=500)
    trace = load_trace(tmp_path / "out.csv")
    assert trace.total_tokens.tolist() == [a.context for a in ROWS], "the context stays what it was"
    assert trace.media_tokens.tolist() == [min(500 * a.images, a.context) for a in ROWS]


def test_where_nothing_tells_an_images_tokens_they_are_asked_for(tmp_path):
    only_text = [type(a)(a.ms, 0, a.context, a.output) for a in ROWS]
    with pytest.raises(InputError, match="cannot be estimated") as caught:
        converted(tmp_path, "azure-lmm", azure_lmm(only_text))
    assert "--image-tokens" in caught.value.mend


# aiperf's sessions


def test_turns_follow_the_turn_before_of_their_session(tmp_path):
    turns = [
        {"session_id": "a", "timestamp": 0, "input_length": 1, "output_length": 1},
        {"session_id": "a", "delay": 5000, "input_length": 2, "output_length": 1},
        {"session_id": "a", "delay": 5000, "input_length": 3, "output_length": 1},
        {"session_id": "b", "timestamp": 2000, "input_length": 4, "output_length": 1},
        {"session_id": "b", "delay": 4000, "input_length": 5, "output_length": 1},
    ]
    conversion = converted(tmp_path, "mooncake", "\n".join(map(json.dumps, turns)))
    out = found(tmp_path / "out.csv")
    assert list(zip(out["ms"], out["prompt_tokens"], strict=True)) == [(0, 1), (2000, 4), (5000, 2), (6000, 5), (10000, 3)]  # fmt: skip
    assert any("answer" in note for note in conversion.account.notes)


@given(st.lists(st.integers(0, 50), max_size=200), st.integers(1, 60))
def test_sorting_on_disk_is_sorting(arrivals, run_rows):
    rows = [(line, (arrival, 0, 0, 0, line, 1)) for line, arrival in enumerate(arrivals)]
    assert list(by_arrival(rows, run_rows)) == sorted(rows, key=lambda placed: placed[1][0])


# Slices, samples, images made up


def test_a_slice_counts_from_the_first_request(tmp_path):
    converted(tmp_path, "azure 2023", text_of("azure 2023"), start_s=10, end_s=40)
    kept = [a for a in ROWS if 10_000 <= a.ms < 40_000]
    assert found(tmp_path / "out.csv")["ms"] == [a.ms - 10_000 for a in kept]
    assert "10 s to 40 s" in load_workload(tmp_path / "out.yaml").description


def test_an_empty_slice_says_what_there_is(tmp_path):
    with pytest.raises(InputError, match="no request arrives") as caught:
        converted(tmp_path, "azure 2023", text_of("azure 2023"), start_s=1e6)
    assert f"{ROWS[-1].ms / 1000:g} s" in caught.value.allowed
    with pytest.raises(InputError, match="not after the start"):
        converted(tmp_path, "azure 2023", text_of("azure 2023"), start_s=10, end_s=10)


def test_a_sample_is_of_the_seed(tmp_path):
    def kept(seed):
        converted(tmp_path, "azure 2023", text_of("azure 2023"), sample=0.5, seed=seed)
        return found(tmp_path / "out.csv")["ms"]

    first = kept(1)
    assert kept(1) == first != kept(2)
    assert 70 < len(first) < 130
    with pytest.raises(InputError, match="keeps no request"):
        converted(tmp_path, "azure 2023", text_of("azure 2023"), sample=0.0)


def test_images_made_up_are_said_to_be(tmp_path):
    conversion = converted(tmp_path, "burstgpt", text_of("burstgpt"), image_share=0.5, image_tokens=576)
    trace = load_trace(tmp_path / "out.csv")
    assert 0.35 < trace.media_share < 0.65
    assert set(trace.media_tokens.tolist()) == {0, 576}
    assert trace.prompt_tokens.tolist() == [a.context for a in ROWS]
    assert any("made up" in note for note in conversion.account.notes)
    assert "made-up" in conversion.workload.description


@pytest.mark.parametrize(
    ("format", "options", "field"),
    [
        ("azure", {"image_tokens": 5}, "--image-tokens"),
        ("azure", {"image_share": 0.5}, "--image-share"),
        ("azure-lmm", {"image_share": 0.5, "image_tokens": 5}, "--image-share"),
        ("servegen", {"image_tokens": 5}, "--image-tokens"),
        ("burstgpt", {"squared_images": "yes"}, "--squared-images"),
    ],
)
def test_options_that_do_not_go_together(format, options, field, tmp_path):
    with pytest.raises(InputError) as caught:
        convert(tmp_path / "x", format, tmp_path / "out.csv", Options(**options))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("out", "compact"), [("o.yaml", False), ("o", False), ("o.csv", True), ("o.xlsx", False)]
)
def test_the_ending_says_what_is_written(out, compact, tmp_path):
    with pytest.raises(InputError, match="ending"):
        convert(tmp_path / "x", "azure", tmp_path / out, compact=compact)


def test_time_scale_is_the_workloads(tmp_path):
    converted(tmp_path, "azure 2023", text_of("azure 2023"), time_scale=0.5)
    assert found(tmp_path / "out.csv") == expected("azure", ROWS)
    assert load_workload(tmp_path / "out.yaml").arrivals.time_scale == 0.5


# Whatever is wrong, it is an InputError


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_file_never_breaks_it(data, tmp_path_factory):
    kind = data.draw(st.sampled_from(KINDS))
    content = bytearray(text_of(kind, ROWS[:40]).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        cut = data.draw(st.integers(0, 30))
        content[at : at + cut] = data.draw(st.binary(max_size=8))
    if data.draw(st.booleans()):
        content = bytearray(gzip.compress(bytes(content)))[: data.draw(st.integers(1, 5000))]
    folder = tmp_path_factory.mktemp("damaged")
    try:
        converted(folder, kind, bytes(content))
    except InputError:
        return
    assert len(load_trace(folder / "out.csv")) >= 1


# ServeGen


def test_servegen_without_media_kinds_is_text(tmp_path):
    sizes = {0: {"input_tokens": "{10: 1.0}", "output_tokens": "{0: 0.5, 7: 0.5}"}}
    servegen(tmp_path / "in", [[(1.0, "Gamma", 1.0)] * 2], sizes)
    convert(tmp_path / "in", "servegen", tmp_path / "out.csv")
    trace = load_trace(tmp_path / "out.csv")
    assert trace.media_share == 0
    assert set(trace.output_tokens.tolist()) == {1, 7}, "an answer has a token"


def test_servegen_takes_the_latest_sizes_that_hold_any(tmp_path):
    def sizes(prompt):
        return {"text_tokens": prompt, "output_tokens": "{5: 1.0}"}

    windows = {0: sizes("{1: 1.0}"), 600: sizes("{}"), 1200: sizes("{3: 1.0}")}
    servegen(tmp_path / "in", [[(1.0, "Gamma", 1.0)] * 4], windows)
    convert(tmp_path / "in", "servegen", tmp_path / "out.csv")
    trace = load_trace(tmp_path / "out.csv")
    seconds = trace.arrival_ns / 1e9
    assert set(trace.prompt_tokens[seconds < 1190].tolist()) == {1}
    assert set(trace.prompt_tokens[seconds > 1210].tolist()) == {3}


def test_servegen_media_of_several_kinds_go_under_the_larger(tmp_path):
    sizes = {
        0: {
            "text_tokens": "{10: 1.0}", "output_tokens": "{5: 1.0}", "image_tokens": "{100: 1.0}", "image_count": "{1: 1.0}",
            "audio_tokens": "{40: 1.0}", "audio_count": "{2: 1.0}",
        }
    }  # fmt: skip
    servegen(tmp_path / "in", [[(1.0, "Weibull", 0.8)]], sizes)
    conversion = convert(tmp_path / "in", "servegen", tmp_path / "out.csv")
    trace = load_trace(tmp_path / "out.csv")
    assert set(trace.media_tokens.tolist()) == {180}
    assert set(trace.items.tolist()) == {3}
    assert set(trace.modality.tolist()) == {1}
    assert any("several kinds" in note for note in conversion.account.notes)


def servegen_many(tmp_path):
    return servegen(tmp_path / "in", [[(0.5, "Gamma", 0.5)] * 60])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("30000,nan,1,Gamma,1,1", "rate: is not finite"),
        ("30000,-1,1,Gamma,1,1", "rate: is negative"),
        ("30000,fast,1,Gamma,1,1", "rate: is no number"),
        ("30000,1e9,1,Gamma,1,1", "rate: is above"),
        ("30000,1,1,Pareto,1,1", "family: is neither"),
        ("30000,1,1,Gamma,0,1", "shape: is not from"),
        ("30000,1,1", "6 values"),
        ("0,1,1,Gamma,1,1", "out of order"),
        (",1,1,Gamma,1,1", "window start: is empty"),
    ],
)
def test_a_bad_window_is_counted_and_shown(row, reason, tmp_path):
    folder = servegen_many(tmp_path)
    file = folder / "chunk-0-trace.csv"
    lines = file.read_text().splitlines()
    lines[50] = row
    file.write_text("\ufeff" + "\r\n".join(lines))
    account = convert(folder, "servegen", tmp_path / "out.csv").account
    assert account.bad == 1
    assert account.first[0].startswith("chunk-0-trace.csv line 51: ")
    assert reason in account.first[0]


@pytest.mark.parametrize(
    "value",
    [
        "__import__('os').system('true')",
        "{1: 0.4}",
        "{1: 2.0}",
        "{-1: 1.0}",
        "{'a': 1.0}",
        "{1: nan}",
        "[1]",
        "{1: 1.0",
        "{1.5: 1.0}",
        7,
        "((" * 5000,
    ],
)
def test_sizes_that_are_none_are_counted_and_nothing_is_run(value, tmp_path):
    sizes = {str(600 * i): servegen_sizes() for i in range(40)}
    sizes["1200"]["text_tokens"] = value
    folder = servegen(tmp_path / "in", [[(0.5, "Gamma", 0.5)] * 60], sizes)
    account = convert(folder, "servegen", tmp_path / "out.csv").account
    assert account.bad == 1
    assert account.first[0].startswith("chunk-0-dataset.json window 1200: text_tokens: ")


def servegen_sizes():
    return {"text_tokens": "{10: 1.0}", "output_tokens": "{5: 1.0}"}


def test_servegen_folders_that_are_none(tmp_path):
    def refused(match):
        with pytest.raises(InputError, match=match):
            convert(tmp_path / "in", "servegen", tmp_path / "out.csv")

    refused("no such folder")
    (tmp_path / "in").mkdir()
    refused("no chunk")
    (tmp_path / "in" / "chunk-0-trace.csv").write_text("0,1,1,Gamma,1,1\n")
    refused("no such file")
    (tmp_path / "in" / "chunk-0-dataset.json").write_text('{"0": {"text_tok')
    refused("is not JSON")
    (tmp_path / "in" / "chunk-0-dataset.json").write_text("[]")
    refused("no mapping")
    (tmp_path / "in" / "chunk-0-dataset.json").write_text('{"0": {}}')
    refused("no sizes at or before")


def test_windows_without_traffic_are_no_requests(tmp_path):
    servegen(tmp_path / "in", [[(1.0, "Gamma", 1.0), (0.0, "", 0.0), (1.0, "Gamma", 1.0)]])
    convert(tmp_path / "in", "servegen", tmp_path / "out.csv")
    seconds = load_trace(tmp_path / "out.csv").arrival_ns / 1e9
    assert not np.any((seconds > 600) & (seconds < 1190))
    assert np.any(seconds > 1200)

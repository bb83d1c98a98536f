"""Atomic files, logs that survive a crash, tables and records."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has.core.records import COMPLETED, Records
from has.core.requests import Requests
from has.errors import InputError, RunError
from has.files.atomic import check_writable, clear_temporaries, replace_atomic, write_atomic
from has.files.jsonl import append_line, parse_json, read_lines
from has.files.records import COLUMNS, save_records
from has.files.tables import read_table, save_table


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    write_atomic(path, "old")

    def fail(temporary):
        temporary.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        replace_atomic(path, fail)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_permissions_are_those_of_any_new_file_or_of_the_replaced_one(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    write_atomic(path, b"x")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    path.chmod(0o640)
    write_atomic(path, b"y")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_place_that_cannot_be_written_to_is_an_input_error(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "a.txt", tmp_path):
        with pytest.raises(InputError, match="cannot be written"):
            write_atomic(path, "x")


def test_a_place_is_checked_before_work_as_it_is_written_to_after_it(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "gone").symlink_to("nowhere/a.txt")
    for path in (tmp_path / "file" / "a.txt", tmp_path / "file" / "b" / "a.txt", tmp_path):
        with pytest.raises(InputError, match="cannot be written") as refused:
            check_writable(path, "--out")
        assert refused.value.field == "--out"
        assert refused.value.value == str(path)
        assert refused.value.mend
    for path in (tmp_path / "file", tmp_path / "new", tmp_path / "deep" / "er" / "new", tmp_path / "gone"):
        check_writable(path, "--out")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "gone"}


def test_a_pipe_is_not_closed_by_the_check(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(path, os.O_WRONLY)
    try:
        check_writable(path, "--records")
        os.write(writer, b"on")
        assert os.read(reader, 9) == b"on"
    finally:
        os.close(writer)
        os.close(reader)


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    for name, target in (("old", tmp_path / "there" / "old.txt"), ("new", tmp_path / "there" / "new.txt")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "there" / "old.txt").write_text("before")
    for name in ("old", "new"):
        write_atomic(tmp_path / name, "after")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "there" / f"{name}.txt").read_text() == "after"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "old", "there"]


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_written_into_and_stays(tmp_path, linked):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    path = pipe
    if linked:
        path = tmp_path / "link"
        path.symlink_to(pipe)
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()), daemon=True)
    reader.start()
    save_table([{"a": 1}], tmp_path / "wanted.parquet")
    replace_atomic(path, lambda temporary: temporary.write_bytes((tmp_path / "wanted.parquet").read_bytes()))
    reader.join(30)
    assert heard == [(tmp_path / "wanted.parquet").read_bytes()]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert not any(p.name.endswith(".tmp") for p in tmp_path.iterdir())


def test_a_socket_is_refused_and_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s")
        with pytest.raises(InputError, match="a socket or a disk, no file"):
            write_atomic("s", "x")
        assert stat.S_ISSOCK((tmp_path / "s").stat().st_mode)
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize(("minor", "full"), [(3, False), (7, True)], ids=["null", "full"])
def test_a_device_is_written_into_and_stays(tmp_path, minor, full):
    device = tmp_path / "device"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        os.close(os.open(device, os.O_WRONLY))
    except PermissionError:
        pytest.skip("device nodes cannot be made here")
    if full:
        with pytest.raises(RunError, match="device: cannot be written: No space left"):
            write_atomic(device, "x")
    else:
        write_atomic(device, "x")
    assert stat.S_ISCHR(device.stat().st_mode)
    assert [p.name for p in tmp_path.iterdir()] == ["device"]


def test_a_full_disk_is_no_fault_of_the_input(tmp_path):
    def fail(_):
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError, match=r"a\.txt: cannot be written: No space left") as raised:
        replace_atomic(tmp_path / "a.txt", fail)
    assert raised.value.exit_status == 3


def test_what_a_killed_write_left_is_cleared_and_nothing_else(tmp_path):
    kept = ["a.parquet", ".a.tmp", "a.parquet.12345678.tmp", ".hidden"]
    for name in (*kept, ".a.parquet.x1_yz890.tmp"):
        (tmp_path / name).write_text("x")
    clear_temporaries(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(kept)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    st.lists(
        st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)), min_size=1, max_size=4
    ),
    st.data(),
)
def test_a_log_cut_anywhere_keeps_every_whole_line(tmp_path_factory, objects, data):
    path = tmp_path_factory.mktemp("log") / "trials.jsonl"
    for obj in objects:
        append_line(path, obj)
    raw = path.read_bytes()
    cut = data.draw(st.integers(0, len(raw)))
    path.write_bytes(raw[:cut])
    whole = raw[:cut].count(b"\n")
    assert read_lines(path) == objects[:whole]
    assert path.read_bytes() == raw[:cut]
    assert read_lines(path, repair=True) == objects[:whole]
    append_line(path, {"next": 1})
    assert read_lines(path) == [*objects[:whole], {"next": 1}]


def test_damage_before_the_last_line_is_an_error_with_its_line(tmp_path):
    path = tmp_path / "l.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(InputError) as error:
        read_lines(path, repair=True)
    assert error.value.where == f"{path}, line 2"


def test_a_log_takes_no_nan(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_line(tmp_path / "l.jsonl", {"a": float("nan")})


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "NaN", "[Infinity]", "[" * 5000, "{", "", "9" * 5000])
def test_json_is_strict(text):
    with pytest.raises(InputError) as error:
        parse_json(text, "f.json")
    assert error.value.where == "f.json"


def test_tables_by_their_ending(tmp_path):
    rows = [{"number": 1, "state": "complete", "figures": {"a": 1.5}}, {"number": 2, "objective": 0.1}]
    save_table(rows, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == (
        'number,state,figures,objective\n1,complete,"{""a"": 1.5}",\n2,,,0.1\n'
    )
    save_table(rows, tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet").to_pylist()[1] == {
        "number": 2, "state": None, "figures": None, "objective": 0.1,
    }  # fmt: skip
    with pytest.raises(InputError, match="unknown kind"):
        save_table(rows, tmp_path / "t.html")


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("t.csv", "\na,b\n1,x\n\n2,y\n", [3, 5]),
        ("t.csv", 'a,b\n1,"x\nx"\n2,y\n', [2, 4]),
        ("t.jsonl", '\n{"a": 1}\n\n{"a": 2}\n', [2, 4]),
    ],
)
def test_lines_are_those_of_the_file_also_past_blank_ones(tmp_path, name, text, lines):
    (tmp_path / name).write_text(text)
    assert read_table(tmp_path / name, ("b",)).lines == lines


def test_truth_values_are_written_as_in_json(tmp_path):
    save_table([{"a": True}, {"a": False}], tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == "a\ntrue\nfalse\n"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_data_frame_and_an_empty_table_are_written_too(tmp_path, ending):
    path = tmp_path / f"t.{ending}"
    save_table(pd.DataFrame({"a": [1, 2], "b": [0.5, float("nan")], "c": ["x", None]}), path)
    table = read_table(path, ("c",))
    assert table.columns == ["a", "b", "c"]
    assert table.rows == [{"a": 1, "b": 0.5, "c": "x"}, {"a": 2, "b": None, "c": None}]
    save_table([], path, columns=("a", "b"))
    assert read_table(path).columns == ["a", "b"]
    save_table(pd.DataFrame({"a": [], "b": []}), path)
    assert (read_table(path).columns, read_table(path).rows) == (["a", "b"], [])


def records_of_two() -> Records:
    row = {"modality": "image", "media_tokens": 8, "prompt_tokens": 4, "output_tokens": 2}
    records = Records.empty(Requests.from_rows([row | {"arrival_s": 0.1}, row | {"arrival_s": 0.2}]))
    for name in ("encode_worker", "prefill_worker", "decode_worker", "route"):
        getattr(records, name)[0] = 1
    records.batch[0] = 3
    for i, name in enumerate(("encode_start_ns", "encode_end_ns", "prefill_ready_ns", "prefill_start_ns")):
        getattr(records, name)[0] = 123_456_789 + i
    records.finish_ns[0] = 7_000_000_001
    records.status[0] = COMPLETED
    return records


def test_records_have_their_columns_in_order_and_empty_cells_where_nothing_applies(tmp_path):
    path = tmp_path / "r.csv"
    save_records(records_of_two(), path, np.array([True, False]))
    assert path.read_text().splitlines() == [
        "request,arrival_s,preprocessed_s,encode_worker,encode_start_s,encode_end_s,batch,route,prefill_ready_s,"
        "prefill_worker,prefill_start_s,first_token_s,decode_ready_s,decode_worker,decode_start_s,finish_s,met",
        "0,0.1,,1,0.123456789,0.12345679,3,remote,0.123456791,1,0.123456792,,,1,,7.000000001,true",
        "1,0.2,,,,,,,,,,,,,,,false",
    ]


def test_records_in_parquet_have_kinds_even_where_empty(tmp_path):
    path = tmp_path / "r.parquet"
    save_records(records_of_two(), path)
    table = pq.read_table(path)
    assert table.column_names == list(COLUMNS)
    assert str(table.schema.field("decode_ready_s").type) == "double"
    assert str(table.schema.field("met").type) == "bool"
    assert table.to_pylist()[0]["finish_s"] == 7.000000001


def test_records_in_another_ending_are_refused(tmp_path):
    with pytest.raises(InputError, match="unknown kind"):
        save_records(records_of_two(), tmp_path / "r.json")


def test_numpy_numbers_are_numbers(tmp_path):
    append_line(
        tmp_path / "l.jsonl", {"n": np.int64(3), "x": np.float32(0.5), "a": np.arange(2), "b": np.bool_(True)}
    )
    assert read_lines(tmp_path / "l.jsonl") == [{"n": 3, "x": 0.5, "a": [0, 1], "b": True}]
    with pytest.raises(TypeError, match="object has no JSON form"):
        append_line(tmp_path / "l.jsonl", {"o": object()})


def test_json_written_is_json_read(tmp_path):
    append_line(tmp_path / "l.jsonl", {"zeit": "früh", "bad": "\udc80"})
    assert json.loads((tmp_path / "l.jsonl").read_bytes())["zeit"] == "früh"

"""Profiles measured for real, on the bundled image model with a kept table of small costs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from has.core.stage import Beside, Stage
from has.device import host, nominal, patience
from has.device.base import Work
from has.device.cpu import VirtualGpu
from has.device.device_model import VIRTUAL_GPU
from has.device.nominal import Costs, Nominal
from has.errors import InputError, MissingError, RunError
from has.files.jsonl import read_lines
from has.files.profile import load_profile
from has.latency.lookup import LatencyModel
from has.profiler import run as runner
from has.profiler.points import work_file_path
from has.profiler.run import profile_device

SMALL = {"sm": [50, 100], "batch": [1, 2], "tokens": [64]}


@pytest.fixture(scope="module")
def table():
    """About what the works cost: pacing needs no more than that for the host to keep up."""
    encode = Costs((1, 2), (64,), ((0.03,), (0.06,)))
    prefill = Costs((1, 2), (64,), ((0.03,), (0.06,)))
    decode = Costs((1, 2), (64,), ((0.010,), (0.012,)))
    return Nominal("tiny-image", 0.8, 0.2, {"encode": encode, "prefill": prefill, "decode": decode})


@pytest.fixture(autouse=True)
def _kept(table, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HAS_CPU_SHARE", raising=False)
    nominal.keep(table)


@pytest.fixture(scope="module")
def measured(table, tmp_path_factory):
    """One profile, measured once: interrupted after some points, then gone on with."""
    folder = tmp_path_factory.mktemp("profile")
    out = folder / "p.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.delenv("HAS_CPU_SHARE", raising=False)
        nominal.keep(table)

        def interrupt(progress):
            if progress.done == 4:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            profile_device("tiny-image", out=out, progress=interrupt, **SMALL)
        left = psutil.Process().children(recursive=True)
        early = read_lines(work_file_path(out))
        with work_file_path(out).open("a") as file:
            file.write('{"setup": "to')  # what a kill in the middle of a write leaves
        seen = []
        profile = profile_device("tiny-image", out=out, progress=seen.append, **SMALL)
        lines = read_lines(work_file_path(out))
    return {"profile": profile, "out": out, "early": early, "left": left, "lines": lines, "seen": seen}


@pytest.mark.live
def test_an_interrupt_leaves_no_process_and_loses_no_finished_point(measured):
    assert not measured["left"]
    early, lines = measured["early"], measured["lines"]
    assert len(early) >= 4
    assert lines[: len(early)] == early
    points = [tuple(line["point"]) for line in lines if "point" in line]
    assert len(points) == len(set(points)) == len(measured["profile"].rows)


@pytest.mark.live
def test_progress_ends_complete_and_never_falls(measured):
    done = [progress.done for progress in measured["seen"]]
    assert done == sorted(done)
    assert measured["seen"][-1].done == measured["seen"][-1].total == len(measured["profile"].rows)


@pytest.mark.live
def test_the_file_is_the_profile_and_look_ups_work(measured):
    profile = measured["profile"]
    assert load_profile(measured["out"]) == profile
    model = LatencyModel.from_profile(profile)
    for stage, beside in (
        ("encode", "prefill"),
        ("prefill", "encode"),
        ("decode", "none"),
        ("preprocess", "none"),
    ):
        assert model.covers(stage, beside)
    metadata = profile.metadata
    assert metadata.device == "cpu (emulated)"
    assert metadata.source == "measured"
    assert metadata.sm_count == VIRTUAL_GPU.sm_count
    assert metadata.kv_bytes_per_token == 7680
    assert metadata.kv_heads == 4
    assert metadata.weights_bytes.lm > metadata.weights_bytes.encoder > 0
    assert metadata.memory_bytes == VIRTUAL_GPU.memory_bytes
    assert VIRTUAL_GPU.digest() in str(metadata.model_extra)


@pytest.mark.live
def test_the_device_was_measured_not_its_declaration(measured, table):
    """Rows alone agree with the declared formula within its jitter; rows beside show the interference."""
    device = VirtualGpu(table)
    model = LatencyModel.from_profile(measured["profile"])
    for stage in (Stage.ENCODE, Stage.PREFILL, Stage.DECODE):
        for share in (50, 100):
            meant = device.meant_s(Work(stage, 2, 64, share))
            assert model.seconds(stage, 2, 64, share) == pytest.approx(meant, rel=0.05)
    for stage, beside in ((Stage.ENCODE, Beside.PREFILL), (Stage.PREFILL, Beside.ENCODE)):
        slowdown = model.seconds(stage, 2, 64, 50, beside) / model.seconds(stage, 2, 64, 50)
        declared = VIRTUAL_GPU.stage(stage).slowdown(0.5, 0.5)
        assert 1.02 < slowdown < declared * 1.05


@pytest.mark.live
def test_preprocessing_and_the_vision_tower_are_stages_of_their_own(measured):
    """TTFT less prefill is not encode: of a picture's time before prefill the profile says what is which."""
    model = LatencyModel.from_profile(measured["profile"])
    preprocess, encode = (model.seconds(stage, 1, 64) for stage in (Stage.PREPROCESS, Stage.ENCODE))
    assert 0 < preprocess < encode
    rows = [row for row in measured["profile"].rows if row.stage is Stage.PREPROCESS]
    assert {(row.sm_percent, row.beside, row.batch) for row in rows} == {(100.0, Beside.NONE, 1)}


@pytest.mark.live
def test_streams_are_measured_and_compared_with_the_partition(measured):
    """Both on all SMs: slower than alone, and the profile says which way of sharing does more work."""
    model, shared = LatencyModel.from_profile(measured["profile"]), measured["profile"].metadata.model_extra
    for stage, beside in ((Stage.ENCODE, Beside.PREFILL), (Stage.PREFILL, Beside.ENCODE)):
        slowdown = model.seconds(stage, 2, 64, 100, beside) / model.seconds(stage, 2, 64, 100)
        assert slowdown > 1.02
    said = {"partition": "partition does more work", "streams": "streams do more work"}
    assert shared["sharing"]["words"].startswith(said[shared["sharing"]["better"]])


@pytest.mark.live
def test_a_second_run_measures_nothing(measured, tmp_path, table, monkeypatch):
    monkeypatch.setattr(runner, "Fleet", lambda *_: pytest.fail("measured again"))
    again = profile_device("tiny-image", out=measured["out"], **SMALL)
    assert again.rows == measured["profile"].rows


def test_points_of_another_device_or_sampling_are_not_used(tmp_path):
    from has.profiler.plan import Point
    from has.profiler.points import Measured, WorkFile

    point = Point(Stage.ENCODE, 50.0, 1, 64, 50.0)
    path = tmp_path / "w.points.jsonl"
    WorkFile(path, "one", [point]).add(point, Measured((0.1, 0.2), 1.0, 1.0, 50.0))
    kept = WorkFile(path, "one", [point])
    assert (point in kept, kept.unused) == (True, "")
    assert kept.measured[point.key].samples == (0.1, 0.2)
    other = WorkFile(path, "other", [point])
    assert (point in other, other.unused[:17]) == (False, "1 kept point not ")
    path.write_text('{"setup": "one", "point": ["encode"]}\n[1]\n{"setup": "one", "facts": 3}\n')
    assert not WorkFile(path, "one", [point]).measured


def test_points_beside_another_companion_are_not_used(tmp_path):
    """Another --batch or --tokens changes what runs beside a point that stays: an old line does not say what ran, either."""
    from has.profiler.plan import Companion, Point
    from has.profiler.points import Measured, WorkFile

    path = tmp_path / "w.points.jsonl"
    alone = Point(Stage.PREFILL, 50.0, 1, 64, 50.0)
    few, many = (replace(alone, companion=Companion(Stage.ENCODE, batch, 64)) for batch in (1, 8))
    work = WorkFile(path, "one", [alone, few])
    work.add(alone, Measured((0.1,), 1.0, 1.0, 50.0))
    work.add(few, Measured((0.2,), 1.0, 1.0, 50.0))
    assert WorkFile(path, "one", [alone, few]).measured.keys() == {alone.key, few.key}
    again = WorkFile(path, "one", [alone, many])
    assert again.measured.keys() == {alone.key}
    assert again.unused.startswith("1 kept point not used")
    again.add(many, Measured((0.3,), 1.0, 1.0, 50.0))
    for point, samples in ((few, (0.2,)), (many, (0.3,))):
        both = WorkFile(path, "one", [alone, point])
        assert (both.measured[point.key].samples, both.unused) == (samples, "")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        del line["companion"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert WorkFile(path, "one", [alone, many]).measured.keys() == {alone.key}


def test_what_cannot_be_profiled_here_is_said(monkeypatch):
    with pytest.raises(MissingError, match="devices are cpu and cuda"):
        profile_device("tiny-image", "tpu")
    driver = MissingError("no NVIDIA driver")
    monkeypatch.setattr("has.device.cuda.load_driver", lambda: (_ for _ in ()).throw(driver))
    with pytest.raises(MissingError, match="no NVIDIA driver"):
        profile_device("tiny-image", "cuda")
    with pytest.raises(InputError, match="bundled"):
        profile_device("llava-v1.6-34b")
    with pytest.raises(InputError, match="virtual GPUs"):
        profile_device("tiny-image", virtual_gpus=9)


def test_at_most_as_many_gpus_are_busy_as_there_are_and_real_times_are_taken_alone():
    from has.profiler.plan import Companion, Point, load

    companion = Companion(Stage.PREFILL, 1, 64)
    waiting = [Point(Stage.ENCODE, 50.0, b, 64, 50.0, companion) for b in range(1, 4)]
    waiting += [Point(Stage.ENCODE, 20.0, b, 64, 20.0) for b in range(1, 8)]
    waiting += [Point(Stage.KV_TRANSFER, 100.0, 1, 64, 100.0)]
    running: dict = {}
    order = []
    while waiting or running:
        runner._assign(waiting, running, 6, 2)
        assert running
        assert sum(load(point) for point in running.values()) <= 2
        if any(point.stage is Stage.KV_TRANSFER for point in running.values()):
            assert len(running) == 1
        order.append(running.pop(max(running)))
    assert len(order) == 11


@pytest.mark.live
def test_a_machine_that_is_too_busy_is_said_and_given_up_with_the_finished_points_kept(
    table, tmp_path, monkeypatch
):
    """It is looked at at every reply, and said each time; patience ends after the second point."""
    monkeypatch.setattr(patience, "LOOK_S", 0.0)
    monkeypatch.setattr(patience, "SAY_S", -1.0)
    out, said = tmp_path / "p.parquet", []

    def lose_patience(step):
        if step.warning:
            said.append(step.warning)
        elif step.done == 2:
            monkeypatch.setattr(patience, "GRACE_S", 0.0)
            monkeypatch.setattr(patience, "PATIENCE", 0.0)

    with pytest.raises(RunError, match="measuring these points has taken") as caught:
        profile_device("tiny-image", out=out, progress=lose_patience, **SMALL)
    assert caught.value.mend.endswith("finished points are kept")
    assert said[0].endswith("finished points are kept")
    assert sum("point" in line for line in read_lines(work_file_path(out))) >= 2
    assert not psutil.Process().children(recursive=True)


@pytest.mark.long
@pytest.mark.live
def test_a_competing_load_is_noticed_and_what_it_disturbed_is_dropped_or_named():
    """Twelve busy processes a core, come once points are measured: the lanes are too late, and the profile says of which
    points. Without them nothing is dropped or named, unless the machine itself stutters: three times in a row it does not."""
    burners: list[subprocess.Popen] = []

    def disturb(step):
        if step.done and not burners:
            burners.extend(
                subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(12 * host.cores())
            )

    plan = {"sm": [100], "batch": [1, 2], "tokens": [64]}
    try:
        notes = profile_device("tiny-image", progress=disturb, **plan).metadata.notes
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert burners
    assert notes["samples_dropped"] + len(notes["unstable"]) > 0
    for _ in range(3):
        alone = profile_device("tiny-image", **plan).metadata.notes
        if not alone["samples_dropped"] and not alone["unstable"]:
            return
    pytest.fail(f"disturbed with nothing beside: {alone}")

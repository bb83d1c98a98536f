"""The nominal table: look-up, keeping, and what it is kept under."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from has.device import calibrate, host, nominal
from has.device.nominal import Costs
from has.errors import MissingError, RunError
from tests.device.virtual import table


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HAS_CPU_SHARE", raising=False)


def test_look_up_is_bilinear_between_points_and_goes_on_beyond():
    costs = Costs((1, 4), (64, 128), ((1.0, 2.0), (4.0, 8.0)))
    assert costs.at(1, 64) == 1.0
    assert costs.at(4, 128) == 8.0
    assert costs.at(2.5, 96) == pytest.approx((1.5 + 6.0) / 2)
    assert costs.at(7, 64) == pytest.approx(7.0)
    assert costs.at(1, 192) == pytest.approx(3.0)


def test_an_extrapolation_never_reaches_nothing():
    costs = Costs((1,), (64, 128), ((1.0, 3.0),))
    assert costs.at(1, 0) == pytest.approx(0.1)


def test_one_value_of_an_axis_holds_along_it():
    costs = Costs((1, 2), (64,), ((1.0,), (2.0,)))
    assert costs.at(2, 9999) == 2.0


def test_seconds_are_cpu_seconds_over_the_slice():
    assert table().seconds("encode", 1, 64) == pytest.approx(0.02 / 0.2)


def test_what_is_kept_comes_back_equal():
    assert nominal.kept("toy") is None
    nominal.keep(table())
    assert nominal.kept("toy") == table()
    assert nominal.kept("toy").digest() == table().digest()
    assert nominal.kept("other") is None
    with pytest.raises(MissingError, match="has profile --model other"):
        nominal.require("other")


def test_the_share_of_the_first_table_stays_in_force_unless_another_is_asked_for(monkeypatch):
    nominal.keep(table())
    assert nominal.kept("toy").total_share == 0.8
    assert nominal.kept("toy", 0.8) == table()
    assert nominal.kept("toy", 0.6) is None
    monkeypatch.setenv("HAS_CPU_SHARE", "0.6")
    assert nominal.kept("toy") is None


@pytest.mark.parametrize("damage", ["torn", "key", "zero", "shape", "version"])
def test_a_damaged_table_is_no_table(damage):
    path = nominal.keep(table())
    raw = json.loads(path.read_text())
    if damage == "key":
        del raw["costs"]["decode"]
    elif damage == "zero":
        raw["costs"]["encode"]["cpu_s"][0][0] = 0.0
    elif damage == "shape":
        raw["costs"]["encode"]["cpu_s"].pop()
    elif damage == "version":
        raw["version"] = 1
    text = json.dumps(raw)
    path.write_text(text[: len(text) // 2] if damage == "torn" else text)
    assert nominal.kept("toy") is None


def test_a_kept_table_is_not_measured_again(monkeypatch):
    nominal.keep(table())
    monkeypatch.setattr(calibrate, "measure", lambda *_: pytest.fail("measured again"))
    assert calibrate.nominal_table("toy", "nowhere:nothing") == table()


def test_a_table_of_a_busy_machine_is_measured_again_once_it_is_quiet(monkeypatch):
    busy = replace(table(), others=1.5)
    nominal.keep(busy)
    monkeypatch.setattr(host, "cores", lambda: 2)
    monkeypatch.setattr(calibrate, "measure", lambda *_: table())
    assert busy.digest() == table().digest()  # who else was there is no part of what it says
    monkeypatch.setattr(host, "busy_cores", lambda *_: 1.0)
    assert calibrate.nominal_table("toy", "nowhere:nothing", fresh=True).others == 1.5
    monkeypatch.setattr(host, "busy_cores", lambda *_: 0.1)
    assert calibrate.nominal_table("toy", "nowhere:nothing").others == 1.5
    assert calibrate.nominal_table("toy", "nowhere:nothing", fresh=True).others == 0.0
    assert nominal.kept("toy").others == 0.0


def test_what_others_used_is_all_that_was_used_less_our_own(monkeypatch):
    """10 s on 2 cores, of which 12 s idle: 8 s used, 3 of them by us, leave half a core."""
    ticks = os.sysconf("SC_CLK_TCK")
    seen = iter([(0, 0), (20 * ticks, 12 * ticks)])
    monkeypatch.setattr(host, "_jiffies", lambda: next(seen))
    monkeypatch.setattr(host.os, "cpu_count", lambda: 2)
    assert host.OthersMeter().cores(own_cpu_s=3.0) == pytest.approx(0.5)


def test_a_table_is_measured_by_worker_processes_at_the_duty_asked(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(calibrate, "SPAN_S", 0.5)
    monkeypatch.setattr(calibrate, "MOST_S", 0.5)
    measured = calibrate.nominal_table("toy", "bench_toy:open_toy", total_share=0.5)
    assert measured.total_share == 0.5
    assert set(measured.costs) == {"encode", "prefill", "decode"}
    encode = measured.costs["encode"]
    assert encode.tokens == (60, 120)  # whole media units of 20 tokens, near 64 and twice that
    assert encode.at(8, 120) > 4 * encode.at(1, 120)
    assert nominal.kept("toy", 0.5) == measured


def test_the_duty_is_kept(monkeypatch):
    """10 ms of computing at duty 1/4, in which 14 ms passed: 26 ms of rest make it a quarter."""
    slept = []
    monkeypatch.setattr(calibrate.time, "sleep", slept.append)
    ran, wall = iter([0.0, 0.010]), iter([0.0, 0.014])
    monkeypatch.setattr(calibrate.time, "thread_time", lambda: next(ran))
    monkeypatch.setattr(calibrate.time, "monotonic", lambda: next(wall))
    assert calibrate.paced_cpu_s(lambda: None, 0.25) == pytest.approx(0.010)
    assert slept == pytest.approx([0.026])


def test_a_machine_too_busy_to_calibrate_on_is_said_and_given_up(monkeypatch):
    """Half a minute passes each time the clock is looked at: less than would be a stop of the command itself."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(calibrate, "USUAL_S", 1.0)  # given up at the third look, long before it is done
    said = []
    with pytest.raises(
        RunError, match=r"too \w+ to measure on: measuring what toy costs on this CPU has taken"
    ):
        calibrate.measure("toy", "bench_toy:open_toy", 0.8, say=said.append, clock=count(0.0, 29.0).__next__)
    assert "on a quiet machine" in said[0]
    assert nominal.kept("toy") is None


@pytest.fixture
def held(tmp_path, monkeypatch):
    """Another command measures: a function that ends it."""
    monkeypatch.setattr(calibrate, "WAKE_S", 0.01)
    lock = (host.cache_folder() / "nominal.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield lock.close
    lock.close()


def test_a_command_that_waits_for_another_to_measure_says_so(held):
    nominal.keep(table())
    said = []

    def end_it(text):
        said.append(text)
        held()

    assert calibrate.nominal_table("toy", "nowhere:nothing", say=end_it) == table()
    assert said == ["another command is measuring what works cost on this CPU: waiting for it"]


def test_a_command_that_measures_for_ever_is_not_waited_for_as_long(held, monkeypatch):
    monkeypatch.setattr(calibrate, "LOCK_S", 0.0)
    with pytest.raises(RunError, match="another command has been measuring"):
        calibrate.nominal_table("toy", "nowhere:nothing")


def test_works_are_dealt_into_shares_of_equal_length():
    works = [("encode", batch, 64) for batch in range(1, 10)]
    dealt = calibrate.deal(works, {work: work[1] for work in works}, 3)
    assert sorted(work for share in dealt for work in share) == works
    lengths = [sum(batch for _, batch, _ in share) for share in dealt]
    assert max(lengths) - min(lengths) <= 2


def test_a_machine_that_wavers_is_found_out_and_measured_longer(monkeypatch):
    work, other = ("encode", 1, 64), ("decode", 1, 64)
    assert calibrate.wavering({work: [1.0] * 6, other: [2.0] * 6}) == 0.0
    assert calibrate.wavering({work: [1.0] * 3 + [1.2] * 3}) == pytest.approx(0.2)
    assert calibrate.wavering({work: [1.0]}) == float("inf")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(calibrate, "SPAN_S", 0.2)
    monkeypatch.setattr(calibrate, "MOST_S", 0.4)
    monkeypatch.setattr(calibrate, "wavering", lambda _: 0.2)
    seen = []
    measured = calibrate.measure("toy", "bench_toy:open_toy", 0.8, lambda _, of_s: seen.append(of_s * 10))
    assert (measured.wavers, measured.sound) == (0.2, False)
    assert replace(measured, wavers=0.04, others=0.0).sound


def test_a_table_that_wavered_is_measured_again_when_asked(monkeypatch):
    monkeypatch.setattr(calibrate, "_quiet", lambda: True)
    monkeypatch.setattr(calibrate, "measure", lambda *_: table())
    nominal.keep(replace(table(), wavers=0.3))
    assert calibrate.nominal_table("toy", "nowhere:nothing").wavers == 0.3
    assert calibrate.nominal_table("toy", "nowhere:nothing", fresh=True).wavers == 0.0


def test_the_headroom_is_what_three_samples_in_four_stay_within() -> None:
    """Of all works together: one that is short is disturbed as often as one that is long."""
    short = [0.001 * over for over in (1.0, 1.1, 1.3, 1.35)]
    long = [1.0 * over for over in (1.0, 1.1, 1.3, 9.0)]
    assert calibrate.headroom({("decode", 1, 64): short, ("prefill", 4, 256): long}) == pytest.approx(1.3)


@pytest.mark.parametrize(("over", "taken"), [(1.0, 1.2), (2.0, 1.4)])
def test_the_headroom_has_bounds_for_samples_that_tell_of_something_else(over: float, taken: float) -> None:
    assert calibrate.headroom({("decode", 1, 64): [0.002, *[0.002 * over] * 8]}) == taken

"""The share of the machine, and the validity gate."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from has.device import host
from has.device.base import Span
from has.device.gate import gate, p90
from has.errors import InputError


@pytest.fixture(autouse=True)
def _no_wish(monkeypatch):
    monkeypatch.delenv("HAS_CPU_SHARE", raising=False)


def test_a_quiet_machine_gives_more_than_a_busy_one(monkeypatch):
    monkeypatch.setattr(host, "cores", lambda: 4)
    monkeypatch.setattr(host, "busy_cores", lambda: 0.1)
    assert host.total_share() == 0.8
    monkeypatch.setattr(host, "busy_cores", lambda: 1.5)
    assert host.total_share() == 0.6


def test_the_argument_rules_then_the_environment(monkeypatch):
    monkeypatch.setenv("HAS_CPU_SHARE", "0.7")
    assert host.total_share() == 0.7
    assert host.total_share(0.5) == 0.5


@pytest.mark.parametrize("bad", ["0.95", "0", "-1", "much", "nan", "inf"])
def test_shares_that_break_pacing_are_refused(monkeypatch, bad):
    monkeypatch.setenv("HAS_CPU_SHARE", bad)
    with pytest.raises(InputError, match="HAS_CPU_SHARE"):
        host.total_share()


@pytest.mark.parametrize(("cores", "each"), [(2, 0.2), (4, 0.4), (64, host.LARGEST_SLICE)])
def test_a_slice_is_an_eighth_of_the_total_and_fits_a_thread(monkeypatch, cores, each):
    monkeypatch.setattr(host, "cores", lambda: cores)
    assert host.slice_cores(0.8) == pytest.approx(each)


def test_busy_cores_are_between_none_and_all():
    assert 0.0 <= host.busy_cores(over_s=0.05) <= host.cores() + 1


def test_what_a_process_and_its_children_used_is_added_up():
    script = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    before = host.family_cpu_s(os.getpid())
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline()
        childs = host.family_cpu_s(child.pid)
        assert childs > 0.25
        # Ticks as seconds: their difference is not exact in floating point.
        assert host.family_cpu_s(os.getpid()) - before >= childs - 1e-6
    finally:
        child.communicate("\n")
    assert host.family_cpu_s(child.pid) == 0.0


def spans(*ratios: float) -> list[Span]:
    return [Span(0.0, 1.0, ratio) for ratio in ratios]


def test_p90_is_interpolated():
    assert p90([1.0]) == 1.0
    assert p90([3.0, 1.0, 2.0]) == pytest.approx(2.8)


def test_the_gate_passes_a_quiet_host():
    verdict = gate({"encode": spans(1.0, 1.02), "decode": spans(1.05, 1.07), "prefill": []}, 0.004)
    assert verdict.passed
    assert verdict.reason == ""
    assert set(verdict.p90) == {"encode", "decode"}


@pytest.mark.parametrize(
    ("stage", "ratio", "passes"),
    [
        ("encode", 1.03, True),
        ("encode", 1.04, False),
        ("prefill", 1.04, False),
        ("decode", 1.08, True),
        ("decode", 1.09, False),
    ],
)
def test_the_bounds_are_per_stage(stage, ratio, passes):
    verdict = gate({stage: spans(*[ratio] * 10)})
    assert verdict.passed is passes
    assert passes or f"{stage} took {ratio}" in verdict.reason


def test_one_slow_work_in_twenty_is_forgiven_three_are_not():
    assert gate({"encode": spans(*[1.0] * 19, 2.0)}).passed
    assert not gate({"encode": spans(*[1.0] * 17, *[2.0] * 3)}).passed


def test_a_late_load_is_no_open_loop():
    assert gate({}, 0.024).passed
    assert "25 ms late" in gate({}, 0.025).reason

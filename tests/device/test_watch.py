"""A measurement's view of its GPU, against a recorded NVML. No GPU takes part in this."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from has.device import nvml
from has.device.watch import Waker, Watch
from has.errors import MissingError
from tests.device.fake_driver import L40S, FakeNvml

GPU = L40S.removeprefix("GPU-")
HOST_PID, STRANGER = 3912345, 77
SLICES = ("MIG-99999999-4455-6677-8899-aabbccddeeff", "MIG-ffffffff-2233-4455-6677-8899aabbccdd")


@pytest.fixture(autouse=True)
def _unknown(monkeypatch):
    """What one test has opened is no other's."""
    monkeypatch.setattr(Watch, "own", set())


def opened(library: FakeNvml, *listed: int, pid: int | None = None) -> Watch:
    """A watch of the GPU, once opened: NVML then lists `listed`."""
    watch = Watch(GPU, lambda: library)
    watch.opening(lambda: setattr(library, "processes", listed), lambda _: pid or os.getpid())
    return watch


def strangers(watch: Watch) -> tuple[str, ...]:
    seen = watch.snapshot()
    assert seen is not None
    return nvml.noise(seen, seen, own=watch.own).reject


def test_in_a_container_the_pid_that_came_as_we_opened_the_gpu_is_ours():
    assert strangers(opened(FakeNvml(), HOST_PID)) == ()
    assert strangers(opened(FakeNvml())) == ()  # or NVML lists nobody there


def test_who_was_there_before_is_a_stranger():
    watch = opened(FakeNvml(processes=(STRANGER,)), STRANGER, HOST_PID)
    assert strangers(watch) == (f"other processes used the GPU: {STRANGER}",)


def test_who_joins_later_is_a_stranger():
    library = FakeNvml()
    watch = opened(library, HOST_PID)
    library.processes = (HOST_PID, STRANGER)
    assert strangers(watch) == (f"other processes used the GPU: {STRANGER}",)


def test_a_process_that_has_opened_the_gpu_before_is_no_stranger_to_its_next_measurement():
    library = FakeNvml()
    opened(library, HOST_PID)
    assert strangers(opened(library, HOST_PID)) == ()


def test_where_pids_are_ours_nobody_else_who_came_at_that_moment_is():
    watch = opened(FakeNvml(), os.getpid(), STRANGER)
    assert strangers(watch) == (f"other processes used the GPU: {STRANGER}",)
    assert strangers(opened(FakeNvml(), 4711, STRANGER, pid=4711)) == (
        f"other processes used the GPU: {STRANGER}",
    )


def test_a_mig_slice_is_watched_on_its_gpu_and_by_its_own_processes():
    library = FakeNvml(mig=1, slices=SLICES, processes=(1, 2), in_slices={SLICES[1]: (STRANGER,)})
    watch = Watch(nvml.bare(SLICES[0]), lambda: library)
    seen = watch.snapshot()
    assert watch.part == SLICES[0]
    assert (seen.uuid, seen.sm_mhz, seen.mig, seen.processes) == (L40S, 2520, True, ())
    other = Watch(nvml.bare(SLICES[1]), lambda: library)
    assert strangers(other) == (f"other processes used the GPU: {STRANGER}",)


def test_a_device_that_nvml_says_nothing_of_is_measured_all_the_same():
    def none_here():
        raise MissingError("NVML is not installed", mend="pip install 'has-epd[cuda]'")

    for watch, why in (
        (Watch(GPU, none_here), "NVML is not installed"),
        (Watch("0" * 32, FakeNvml), "does not know"),
    ):
        assert watch.snapshot() is None
        assert watch.opening(lambda: "made") == "made"
        assert why in watch.blind


class Resting:
    """A GPU that is clocked down until it works, and again after `rest`."""

    def __init__(self) -> None:
        self.seen = replace(nvml.snapshot(FakeNvml(), L40S), sm_mhz=345)
        self.worked = 0

    def look(self) -> nvml.Snapshot:
        return self.seen

    def work(self) -> None:
        self.worked += 1
        self.seen = replace(self.seen, sm_mhz=2520)

    def rest(self) -> None:
        self.seen = replace(self.seen, sm_mhz=345)


def test_a_gpu_that_rests_is_woken_before_a_measurement_and_one_that_does_not_is_not():
    gpu, waker = Resting(), Waker()
    for times_woken in (1, 1):
        before = waker.before(gpu.look, gpu.work)
        waker.after(gpu.look())
        assert gpu.worked == times_woken
        assert nvml.noise(before, gpu.look()).reject == ()
    gpu.rest()
    assert waker.before(gpu.look, gpu.work).sm_mhz == 2520
    assert gpu.worked == 2


def test_a_clock_that_falls_while_measured_is_still_drift():
    gpu, waker = Resting(), Waker()
    before = waker.before(gpu.look, gpu.work)
    gpu.seen = replace(gpu.seen, sm_mhz=2000)
    assert "drifted" in nvml.noise(before, gpu.look()).reject[0]

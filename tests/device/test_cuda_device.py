"""The CUDA device against a recorded driver. No GPU takes part in this."""

from __future__ import annotations

import os

import pytest

from has.device import cuda, detect, nvml
from has.errors import InputError, MissingError, RunError
from tests.device.fake_driver import L40S, CUresult, FakeDriver, FakeNvml


@pytest.fixture(autouse=True)
def _no_mps(monkeypatch):
    monkeypatch.setattr(cuda, "mps_state", lambda: "absent")


def device(driver: FakeDriver) -> cuda.CudaDevice:
    (found,) = cuda.devices(driver)
    return found


def test_a_device_says_what_it_is():
    found = device(FakeDriver())
    assert (found.name, "GPU-" + found.uuid, found.sm_count) == ("NVIDIA L40S", L40S, 142)
    assert found.memory_bytes == 48 * 2**30
    assert found.mechanism == "green contexts"
    assert (found.min_sms, found.align_sms) == (4, 2)
    assert not found.reasons


def test_the_granularity_is_asked_of_drivers_that_know_it_and_documented_for_others():
    found = device(FakeDriver(says_granularity=(6, 3)))
    assert (found.min_sms, found.align_sms) == (6, 3)
    found = device(FakeDriver(capability=(9, 0), sm_count=132))
    assert (found.min_sms, found.align_sms) == (8, 8)


def test_the_two_sides_of_every_pair_are_disjoint_and_together_the_gpu():
    driver = FakeDriver()
    with cuda.SmPartition(driver, device(driver)) as partition:
        assert len(partition.pairs) == len(cuda.LEVELS)
        for share, pair in partition.pairs.items():
            encode, prefill = (driver.contexts[context].sms for context in pair.contexts)
            assert not set(encode) & set(prefill)
            assert (len(encode), len(prefill)) == (pair.encode_sms, pair.prefill_sms)
            assert pair.encode_sms + pair.prefill_sms == 142
            assert share == pytest.approx(100 * pair.encode_sms / 142)
    assert len(driver.splits) == len(cuda.LEVELS)  # one split a pair: its remainder is the other side
    assert not driver.live


def test_what_the_driver_gave_is_what_counts_114_for_120_asked():
    driver = FakeDriver()
    with cuda.SmPartition(driver, device(driver), [85.0]) as partition:
        (pair,) = partition.pairs.values()
        assert (pair.asked_sms, pair.encode_sms, pair.prefill_sms) == (120, 114, 28)
        assert partition.offer(85.0) == pytest.approx(100 * 114 / 142)


def test_a_share_takes_the_nearest_level():
    driver = FakeDriver()
    with cuda.SmPartition(driver, device(driver), [25.0, 50.0, 75.0]) as partition:
        assert partition.pair(30).encode_sms == 34
        assert partition.pair(95).encode_sms == 106


@pytest.mark.parametrize("level", [25.0, 37.5, 62.5, 75.0])
def test_groups_that_overlap_as_after_two_splits_are_caught(level):
    """By their sizes; so at 50 % alone, where sizes say nothing, the other levels must be there to tell."""
    driver = FakeDriver(splits_twice=True)
    with pytest.raises(RunError, match="overlap"):
        cuda.SmPartition(driver, device(driver), [level])
    assert not driver.live


def test_a_failure_on_the_way_gives_everything_back():
    driver = FakeDriver(fail_context=4)
    with pytest.raises(RunError, match="CUDA_ERROR_NOT_PERMITTED"):
        cuda.SmPartition(driver, device(driver))
    assert not driver.live


def test_levels_that_leave_too_little_are_left_out():
    driver = FakeDriver()
    with cuda.SmPartition(driver, device(driver), [0.5, 50.0, 99.9]) as partition:
        assert [pair.encode_sms for pair in partition.pairs.values()] == [4, 70]
    with pytest.raises(InputError, match="no level"):
        cuda.SmPartition(driver, device(driver), [99.9])
    with pytest.raises(InputError, match="too many levels"):
        cuda.SmPartition(driver, device(driver), range(10, 100, 10))


def test_without_a_driver_there_is_one_clear_line():
    for driver in (FakeDriver(absent=True), FakeDriver(init=CUresult.CUDA_ERROR_NO_DEVICE)):
        with pytest.raises(MissingError) as caught:
            cuda.initialise(driver)
        assert "\n" not in caught.value.message
        assert "driver" in caught.value.message
        assert "nvidia-smi" in caught.value.mend


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (FakeDriver(version=12020), "12.4 or newer; this one is 12.2"),
        (FakeDriver(no_green=True), "NOT_SUPPORTED"),
    ],
)
def test_fallbacks_are_named_with_their_reason(driver, reason, monkeypatch):
    found = device(driver)
    assert found.mechanism == "stream priority (not spatial)"
    assert reason in found.reasons["green contexts"]
    assert "MPS" in found.reasons
    with pytest.raises(MissingError, match="cannot be partitioned"):
        cuda.SmPartition(driver, found)
    monkeypatch.setattr(cuda, "mps_state", lambda: "installed")
    found = device(driver)
    assert found.mechanism == "stream priority (not spatial)"
    assert "nvidia-cuda-mps-control -d" in found.reasons["MPS"]
    monkeypatch.setattr(cuda, "mps_state", lambda: "running")
    found = device(driver)
    assert found.mechanism == "MPS"
    assert list(found.reasons) == ["green contexts"]
    assert cuda.mps_environment(40) == {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}


def test_mps_is_seen_by_its_daemon_s_pipe(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cuda.mps_state() == "absent"
    command = tmp_path / "nvidia-cuda-mps-control"
    command.write_text("")
    command.chmod(0o755)
    assert cuda.mps_state() == "installed"
    (tmp_path / "control").write_text("")
    assert cuda.mps_state() == "running"


def seen(**state) -> nvml.Snapshot:
    return nvml.snapshot(FakeNvml(**state), L40S)


def test_a_quiet_gpu_passes():
    before, after = seen(processes=(os.getpid(), 77)), seen(sm_mhz=2500)
    assert nvml.noise(before, after, own=[77]) == nvml.Noise((), ())


def test_a_foreign_process_is_noise():
    verdict = nvml.noise(seen(), seen(processes=(4242, os.getpid())))
    assert verdict.reject == ("other processes used the GPU: 4242",)


@pytest.mark.parametrize(
    ("bit", "words"),
    [(8, "hardware slowdown"), (64, "hardware thermal"), (32, "software thermal"), (128, "power brake")],
)
def test_slowdowns_are_noise(bit, words):
    verdict = nvml.noise(seen(), seen(reasons=bit))
    assert len(verdict.reject) == 1
    assert words in verdict.reject[0]


def test_clock_drift_is_noise_above_three_percent():
    assert not nvml.noise(seen(sm_mhz=1000), seen(sm_mhz=970)).reject
    assert "drifted by 4.0 %" in nvml.noise(seen(sm_mhz=1000), seen(sm_mhz=960)).reject[0]
    assert not nvml.noise(seen(sm_mhz=None), seen(sm_mhz=960)).reject


def test_a_power_cap_and_mig_are_said_and_do_not_reject():
    verdict = nvml.noise(seen(reasons=4), seen(mig=1))
    assert not verdict.reject
    assert len(verdict.flags) == 2
    assert not seen(mig=None).mig


class Rack(FakeNvml):
    """Four GPUs: 0 and 1 joined by NVLink, 2 behind the same host bridge, 3 on the other socket, silent about NVLink."""

    NVML_TOPOLOGY_INTERNAL, NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_MULTIPLE = 0, 10, 20
    NVML_TOPOLOGY_HOSTBRIDGE, NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_SYSTEM = 30, 40, 50
    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = 2, 0

    def nvmlDeviceGetCount(self):
        return 4

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}"

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetP2PStatus(self, one, other, capability):
        if 3 in (one, other):
            raise self.NVMLError("Not Supported")
        return self.NVML_P2P_STATUS_OK if {one, other} == {0, 1} else 5

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):
        if {one, other} == {2, 3}:
            raise self.NVMLError("Unknown")
        return 50 if 3 in (one, other) else 30


def test_how_gpus_reach_each_other_is_told_as_nvidia_smi_tells_it():
    assert nvml.topology(Rack(), "GPU-0") == {"GPU-1": "NVLink", "GPU-2": "PHB", "GPU-3": "SYS"}
    assert nvml.topology(Rack(), "GPU-2") == {"GPU-0": "PHB", "GPU-1": "PHB"}


@pytest.fixture
def recorded(monkeypatch):
    def put(driver: FakeDriver | None, library: FakeNvml):
        def load():
            if driver is None:
                raise MissingError(
                    "the CUDA driver bindings are not installed", mend="pip install 'has-epd[cuda]'"
                )
            cuda.initialise(driver)
            return driver

        monkeypatch.setattr(nvml, "load_nvml", lambda: library)
        monkeypatch.setattr(cuda, "load_driver", load)
        return detect.detect()

    return put


def test_doctor_lists_the_gpu_by_uuid_before_the_cpu(recorded):
    gpu, cpu = recorded(FakeDriver(), FakeNvml(bytes_names=True))
    assert (gpu.kind, gpu.uuid, gpu.sm_count, gpu.partition) == ("cuda", L40S, 142, "green contexts")
    assert gpu.driver == "570.86.15"
    assert gpu.mig is False
    assert (cpu.kind, cpu.gpus, cpu.partition) == ("cpu", 8, "deadline pacing (emulated)")


def test_doctor_says_what_is_missing_and_that_mig_is_on(recorded):
    gpu, _ = recorded(None, FakeNvml(mig=1))
    assert gpu.partition == "none"
    assert "not installed" in gpu.reasons["all"]
    assert gpu.mend == "pip install 'has-epd[cuda]'"
    assert gpu.mig is True
    assert "MIG" in gpu.reasons["whole GPU"]


def test_with_mig_on_the_slices_are_what_there_is(recorded):
    """Two slices: each a device of its own, found in the driver by its own UUID."""
    parts = ("MIG-" + L40S.removeprefix("GPU-"), "MIG-ffffffff-2233-4455-6677-8899aabbccdd")
    first, second, cpu = recorded(FakeDriver(sm_count=60), FakeNvml(mig=1, slices=parts))
    assert cpu.kind == "cpu"
    assert (first.uuid, first.sm_count, first.memory_bytes) == (parts[0], 60, 24 * 2**30)
    assert "shares are of the MIG slice" in first.reasons["whole GPU"]
    assert second.partition == "none"
    assert "does not list it" in second.reasons["all"]


def test_without_nvml_there_is_what_the_driver_lists_or_the_cpu_device_alone(monkeypatch):
    def load():
        raise MissingError("NVML is not installed", mend="pip install 'has-epd[cuda]'")

    monkeypatch.setattr(nvml, "load_nvml", load)
    assert [info.kind for info in detect.detect()] == ["cpu"]
    monkeypatch.setattr(cuda, "load_driver", FakeDriver)
    gpu, cpu = detect.detect()
    assert (gpu.kind, gpu.name, gpu.partition, cpu.kind) == ("cuda", "NVIDIA L40S", "green contexts", "cpu")
    assert gpu.reasons == {"noise gate": "NVML is not installed"}

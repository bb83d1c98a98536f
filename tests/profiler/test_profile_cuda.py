"""A profile of a CUDA device, on a recorded driver and a GPU whose times follow a formula. No GPU takes part in this."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from has.core.stage import Beside, Stage
from has.device import cuda, nvml
from has.device.cuda_lanes import CudaGpu
from has.device.watch import Watch
from has.errors import InputError, MissingError
from has.files.profile import load_profile
from has.latency.lookup import LatencyModel
from has.profiler.cuda import in_this_process, profile_cuda, with_spare
from has.profiler.points import Progress
from has.profiler.rank import sums
from tests.device.fake_driver import L40S, FakeDriver, FakeNvml, FakeTimer

FACTS = {
    "media_unit": 4,
    "weights_bytes": {"encoder": 10, "lm": 20},
    "kv_bytes_per_token": 57344,
    "kv_heads": 4,
    "embedding_bytes_per_token": 16,
    "dtype": "bfloat16",
}


class Gpu(FakeTimer):
    """Work that fills 40 % of the SMs: 1 ms a token and request, no faster on more; half as fast again beside another."""

    def __init__(self) -> None:
        super().__init__()
        self.mine = threading.local()
        self.sms: dict[str, float] = {}
        self.busy: dict[int, bool] = {}

    def on(self, stream):
        self.mine.stream, self.mine.records = stream, 0
        return super().on(stream)

    def record(self, stream):
        self.mine.records = getattr(self.mine, "records", 0) + 1
        at = self.clock_s - self.began_s
        if self.mine.records != 2:
            return at
        return at + self.mine.seconds * max(1.0, 40 / self.sms.get(stream, 100.0))


class Bench:
    kind = "image"
    facts = FACTS

    def __init__(self, timer: Gpu) -> None:
        self._timer = timer

    def prepare(self, stage: str, batch: int, tokens: int) -> Any:
        def run() -> None:
            self._timer.mine.seconds = 1e-3 * batch * tokens if stage != "decode" else 1e-3 * (10 + batch)

        return run


@pytest.fixture
def place(monkeypatch):
    """Opens an L40S; `snapshots` are what NVML says, the last one again and again."""
    monkeypatch.setattr(cuda, "mps_state", lambda: "absent")

    def make(driver: FakeDriver, snapshots: list[nvml.Snapshot | None]):
        def opened(model, shares):
            timer = Gpu()
            (device,) = cuda.devices(driver)
            partition = (
                cuda.SmPartition(driver, device, shares) if device.mechanism == "green contexts" else None
            )
            gpu = CudaGpu(device, partition, timer, clock=timer.clock)
            for pair in (partition.pairs if partition else {}).values():
                timer.sms[f"context {int(pair.encode_stream)}"] = 100 * pair.encode_sms / device.sm_count
                timer.sms[f"context {int(pair.prefill_stream)}"] = 100 * pair.prefill_sms / device.sm_count
            left = list(snapshots)
            return in_this_process(gpu, Bench(timer), True, lambda: left.pop(0) if len(left) > 1 else left[0])

        return opened

    return make


def quiet() -> nvml.Snapshot:
    return nvml.snapshot(FakeNvml(), L40S)


def measured(opened, model="qwen2.5-vl-7b", tell=lambda _: None, **more):
    given = {"size": "quick", "sm": [25, 50, 75, 100], "batch": [1, 2], "tokens": [64], "out": None} | more
    return profile_cuda(model, tell=tell, open_place=opened, **given)


def unstable_alone(profile):
    """Of points that run alone: beside another two threads race for the fake's clock, which a busy machine shows."""
    return [
        words
        for words in profile.metadata.notes["unstable"]
        if " beside " not in words and "sharing" not in words
    ]


def test_a_profile_of_a_gpu_says_what_it_is_of(place, tmp_path):
    driver = FakeDriver()
    profile = measured(place(driver, [quiet()]), out=tmp_path / "p.parquet")
    assert not driver.live
    metadata = profile.metadata
    assert (metadata.device, metadata.sm_count, metadata.driver) == ("NVIDIA L40S", 142, "570.86.15")
    assert metadata.partition_mechanism == "green contexts"
    assert metadata.notes["weights"].startswith("dummy")
    assert unstable_alone(profile) == []
    assert load_profile(tmp_path / "p.parquet") == profile


def test_shares_are_those_that_each_side_really_had(place):
    """120 of 142 SMs asked give 114: encode has 80 %, and a prefill beside it the other 20."""
    profile = measured(place(FakeDriver(), [quiet()]), sm=[15, 85, 100])
    shares = {
        stage: sorted({row.sm_percent for row in profile.rows if row.stage == stage})
        for stage in ("encode", "prefill")
    }
    assert shares["encode"] == pytest.approx([100 * 20 / 142, 100 * 114 / 142, 100])
    assert shares["prefill"] == pytest.approx([100 * 28 / 142, 100 * 122 / 142, 100])


def test_look_ups_find_what_the_gpu_took(place):
    latency = LatencyModel.from_profile(measured(place(FakeDriver(), [quiet()])))
    assert latency.seconds(Stage.ENCODE, 2, 64) == pytest.approx(0.128, rel=0.01)
    quarter = 100 * 34 / 142
    assert latency.seconds(Stage.ENCODE, 2, 64, quarter) == pytest.approx(0.128 * 40 / quarter, rel=0.01)
    assert latency.seconds(Stage.DECODE, 2, 64) == pytest.approx(0.012, rel=0.01)
    assert latency.covers(Stage.ENCODE, Beside.PREFILL)


def test_a_foreign_process_or_a_slowdown_drops_a_point_and_one_that_stays_is_named(place):
    foreign, hot = (
        replace(quiet(), processes=(4242,)),
        replace(quiet(), throttled=("hardware thermal slowdown",)),
    )
    once = measured(place(FakeDriver(), [quiet(), foreign, quiet()]))
    assert unstable_alone(once) == []
    assert any("4242" in flag for flag in once.metadata.notes["flags"])
    stays = measured(place(FakeDriver(), [hot]))
    paced = [row for row in stays.rows if row.stage in ("encode", "prefill", "decode")]
    assert len(stays.metadata.notes["unstable"]) >= len(paced)
    assert stays.metadata.notes["flags"] == ["hardware thermal slowdown"]


@pytest.fixture
def here(monkeypatch):
    """What `open_cuda` finds: a recorded driver and NVML, and in place of torch's context, model and events what follows a formula."""
    monkeypatch.setattr(cuda, "mps_state", lambda: "absent")
    monkeypatch.setattr(Watch, "own", set())

    def put(library: FakeNvml | None, uuid: str = L40S, *, joins: tuple[int, ...] = ()):
        timer = Gpu()
        timer.dummy = None

        def load_nvml():
            if library is None:
                raise MissingError("NVML is not installed")
            return library

        def opened(model, dummy, gpus):
            timer.dummy = dummy
            return Bench(timer)

        def context(*_, **__):
            if library is not None:
                library.processes = (*library.processes, *joins)

        driver = FakeDriver(uuid=uuid)
        monkeypatch.setattr(cuda, "load_driver", lambda: driver)
        monkeypatch.setattr(nvml, "load_nvml", load_nvml)
        monkeypatch.setattr(torch, "zeros", context)
        monkeypatch.setattr("has.profiler.cuda.open_rank", opened)
        monkeypatch.setattr("has.profiler.cuda.TorchTimer", lambda _: timer)
        return timer

    return put


HOST_PID = 3912345


def test_a_profile_in_a_container_is_not_disturbed_by_its_own_pid_on_the_host(here):
    here(FakeNvml(), joins=(HOST_PID,))
    notes = measured(None).metadata.notes
    assert not [flag for flag in notes["flags"] if "other processes" in flag]
    here(FakeNvml(processes=(77,)), joins=(HOST_PID,))
    assert "other processes used the GPU: 77" in measured(None).metadata.notes["flags"]


class Resting(FakeNvml):
    """Clocked down until something is launched, and again at the second look after nothing was."""

    timer: Any = None
    launched = 0
    idle_looks = 2

    def nvmlDeviceGetClockInfo(self, handle, clock):
        self.idle_looks = 0 if len(self.timer.launched) > self.launched else self.idle_looks + 1
        self.launched = len(self.timer.launched)
        return 2520 if self.idle_looks < 2 else 345


def test_the_clock_of_a_gpu_that_rests_is_no_drift(here):
    """Neither as the first point begins, nor while the host prepares media, nor after that."""
    library = Resting()
    library.timer = here(library)
    assert measured(None).metadata.notes["flags"] == []


def test_a_profile_of_a_mig_slice_says_so_and_is_judged(here):
    part = "MIG-99999999-4455-6677-8899-aabbccddeeff"
    here(FakeNvml(mig=1, slices=(part,), processes=(1, 2), in_slices={part: (77,)}), part)
    notes = measured(None).metadata.notes
    assert L40S in notes["mig"]
    assert set(notes["flags"]) == {
        "MIG is on: shares are of the MIG slice",
        "other processes used the GPU: 77",
    }


def test_without_nvml_a_profile_is_made_and_says_that_nothing_judged_it(here):
    here(None)
    told: list[Progress] = []
    notes = measured(None, tell=told.append).metadata.notes
    assert "off" in notes["noise_gate"]
    assert "NVML is not installed" in notes["noise_gate"]
    assert any("noise gate is off" in progress.warning for progress in told)


def test_a_folder_with_a_config_alone_is_measured_on_dummy_weights_and_says_so(here, tmp_path):
    asked = here(FakeNvml())
    config = {"model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    told: list[Progress] = []
    notes = measured(None, str(tmp_path), told.append).metadata.notes
    assert asked.dummy is True
    assert notes["weights"].startswith("dummy weights")
    assert "no safetensors" in notes["weights"]
    assert any("dummy weights are measured" in progress.warning for progress in told)
    (tmp_path / "model.safetensors").touch()
    assert measured(None, str(tmp_path)).metadata.notes["weights"] == "the checkpoint's weights"
    assert asked.dummy is False


def test_quantised_weights_are_refused_before_the_model_is_opened(here, tmp_path):
    asked = here(FakeNvml())
    config = {"model_type": "qwen2_5_vl", "quantization_config": {"quant_method": "gptq"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="quantised"):
        measured(None, str(tmp_path))
    assert asked.dummy is None


def test_a_gpu_that_cannot_be_partitioned_has_one_share(place):
    profile = measured(place(FakeDriver(no_green=True), [None]), sm=None)
    assert {row.sm_percent for row in profile.rows} == {100.0}
    assert "stream priority" in profile.metadata.partition_mechanism


def test_an_interrupted_profile_goes_on(place, tmp_path):
    seen = []

    def stop(progress):
        seen.append(progress)
        if len(seen) == 5:
            raise KeyboardInterrupt

    given = {"size": "quick", "sm": [50, 100], "batch": [1], "tokens": [64], "out": tmp_path / "p.parquet"}
    with pytest.raises(KeyboardInterrupt):
        profile_cuda("qwen2.5-vl-7b", tell=stop, open_place=place(FakeDriver(), [quiet()]), **given)
    lines = (tmp_path / "p.points.jsonl").read_text().splitlines()
    again = []
    profile = profile_cuda(
        "qwen2.5-vl-7b", tell=again.append, open_place=place(FakeDriver(), [quiet()]), **given
    )
    assert len(again) - 1 == len(profile.rows) - 5
    assert (tmp_path / "p.points.jsonl").read_text().splitlines()[: len(lines)] == lines


def test_the_usual_grid_is_filled_at_the_shares_each_side_has(place):
    """An encode and the prefill beside it have shares of their own; rows that follow stand at them too."""
    profile = measured(place(FakeDriver(), [quiet()]), sm=None, batch=None)
    latency = LatencyModel.from_profile(profile)  # refuses a grid with holes
    for stage in (Stage.ENCODE, Stage.PREFILL):
        shares = latency.shares(stage)
        assert len(shares) >= 5
        for share in shares:
            took_s = latency.seconds(stage, 2, 64, share)
            assert took_s == pytest.approx(0.128 * max(1.0, 40 / share), rel=0.02)
    assert any(not row.samples for row in profile.rows)


def test_a_rank_is_measured_and_the_sums_between_ranks_are_added(place):
    """Two sums a layer of all rows, on an L40S over PCIe, by the estimate's formula; encode has none, and the notes say it."""
    driver = FakeDriver()

    def opened(model, shares):
        made = place(driver, [quiet()])(model, shares)
        return replace(made, facts=made.facts | {"layers": 28, "hidden": 3584})

    alone, pair = (
        LatencyModel.from_profile(measured(of, tensor_parallel=gpus))
        for of, gpus in ((place(FakeDriver(), [quiet()]), 1), (opened, 2))
    )
    assert pair.metadata.tensor_parallel == 2
    assert pair.metadata.kv_heads == 4
    assert "sums between ranks are estimated" in pair.metadata.notes["tensor_parallel"]
    added = sums("NVIDIA L40S", 2, {"layers": 28, "hidden": 3584})
    for stage, batch, tokens in ((Stage.PREFILL, 2, 64), (Stage.DECODE, 2, 64), (Stage.ENCODE, 2, 64)):
        more = pair.seconds(stage, batch, tokens) - alone.seconds(stage, batch, tokens)
        assert more == pytest.approx(added.seconds(stage, batch, tokens), abs=1e-6)
    assert added.seconds("prefill", 2, 64) > added.seconds("decode", 2, 64) > 0


def test_spare_levels_lie_in_the_widest_gaps():
    assert with_spare([20, 25, 40, 80], 6) == pytest.approx(
        [20, 25, 2 / (1 / 25 + 1 / 40), 40, 2 / (1 / 40 + 1 / 80), 80]
    )
    assert with_spare([20, 80], 2) == [20, 80]
    assert with_spare([50], 8) == [50]

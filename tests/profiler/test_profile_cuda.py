"""A profile of a CUDA device, on a recorded driver and a GPU whose times follow a formula. No GPU takes part in this."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from has.core.stage import Beside, Stage
from has.device import cuda, nvml
from has.device.watch import Watch
from has.errors import InputError, MissingError
from has.files.profile import load_profile
from has.latency.lookup import LatencyModel
from has.profiler.cuda import partition_levels, profile_cuda, with_spare
from has.profiler.measure import Measurer
from has.profiler.plan import SAMPLING, Point
from has.profiler.points import Progress
from has.profiler.rank import sums
from tests.device.fake_driver import L40S, FakeDriver, FakeNvml
from tests.profiler.cuda_fake import Bench, Gpu, facts_of, measured, quiet, with_bench


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


def test_transfers_are_those_between_gpu_and_host(place):
    """Of few bytes; of the KV of 16k tokens of a 27B model, 8 GB, in pieces, of which the host holds one."""

    class Wide(Bench):
        facts = facts_of(10, 507904)

    profile = measured(with_bench(place, Wide), sm=[50, 100], batch=[1], tokens=[64, 16384])
    took_s = {row.tokens: row.latency_s for row in profile.rows if row.stage is Stage.KV_TRANSFER}
    assert took_s[64] >= 0.7e-3
    assert took_s[16384] >= 31 * 0.7e-3
    assert profile.metadata.notes["transfers"].startswith("from the GPU into shared memory of the host")


def test_the_first_run_at_a_shape_and_on_a_stream_is_no_sample(place):
    """Allocator pools grow and cuBLAS sets itself up in it: of the point, and of what runs beside it."""
    with place(FakeDriver(), [quiet()])("", [50.0]).gpu as gpu:
        gpu.timer.first_s = 5.0
        measurer = Measurer(Bench(gpu.timer), 0, gpu)
        point = asdict(Point(Stage.PREFILL, 50.0, 2, 64, 50.0)) | asdict(SAMPLING["quick"])
        assert measurer.measure(point)["samples"] == pytest.approx([0.128] * 2)
        (pair,) = gpu.partition.pairs.values()
        gpu.timer.launched.clear()
        reply = measurer.measure(point | {"companion": {"stage": "encode", "batch": 2, "tokens": 64}})
        on = [f"context {int(stream)}" for stream in (pair.encode_stream, pair.prefill_stream)]
        assert gpu.timer.launched[:2] == on  # each once, before the companion keeps running
        assert gpu.timer.launched.count(on[1]) == 1 + len(reply["samples"]) + reply["dropped"]


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


def test_a_profile_that_goes_on_with_other_batches_measures_again_what_ran_beside_others(place, tmp_path):
    """A prefill runs beside the largest encode, on streams beside the middle one: both are others now. An encode does not."""
    seen = []
    for batch in ([1, 2], [1, 2, 4]):
        given = {"size": "quick", "sm": [50, 100], "tokens": [64], "out": tmp_path / "p.parquet"}
        seen.clear()
        profile_cuda(
            "qwen2.5-vl-7b", tell=seen.append, open_place=place(FakeDriver(), [quiet()]), batch=batch, **given
        )
    again = [step.doing for step in seen if "batch 1," in step.doing or "batch 2," in step.doing]
    assert sorted(doing.partition(",")[0] for doing in again) == [
        *["prefill beside encode"] * 2,
        *["prefill sharing all SMs with encode"] * 2,
    ]
    assert any(step.warning.startswith("4 kept points not used") for step in seen)


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


def test_more_shares_than_a_gpu_is_split_at_are_refused(place):
    """Eight and the whole GPU are measured, each of them; a ninth is no share to lose in silence."""
    eight = [15, 20, 25, 30, 40, 50, 60, 75]
    profile = measured(place(FakeDriver(), [quiet()]), sm=[*eight, 100, 100], batch=[1])
    assert len({row.sm_percent for row in profile.rows if row.stage == "encode"}) == 9
    with pytest.raises(InputError, match="up to 8 below 100") as caught:
        measured(place(FakeDriver(), [quiet()]), sm=[*eight, 80, 100], batch=[1])
    assert (caught.value.field, caught.value.exit_status) == ("sm", 2)


@pytest.mark.parametrize("sms", [58, 80, 108, 132, 142, 148])
def test_a_full_profile_measures_encode_between_three_quarters_and_the_whole_gpu(place, sms):
    """The budget rule asks for such shares as soon as batches are large."""
    granularity = (8, 8) if sms in (132, 148) else (4, 2)
    gpu = place(FakeDriver(sm_count=sms, says_granularity=granularity), [quiet()])(
        "", partition_levels(None, None, "full")
    ).gpu
    with gpu:
        assert any(80 <= share <= 90 for share in gpu.partition.pairs)
        assert len(gpu.partition.pairs) == 8

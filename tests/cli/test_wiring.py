"""What runs the trials of a search, as the command line makes it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from has.cli import inputs, wiring
from has.device import detect
from has.errors import InputError
from has.files.profile import metadata_of
from has.trial import local


def test_a_live_search_tells_what_it_waits_for(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a busy machine its costs take minutes to measure, or another command measures them."""
    monkeypatch.setattr(local, "nominal_table", lambda *_, say, **__: say("measuring has taken 40 s"))
    monkeypatch.setattr(local, "WarmPool", lambda *_, **__: None)
    plan = SimpleNamespace(
        engine="", live=True, arguments={"model": "tiny-image", "gpus": 2}, profile=None, trial_profile=None
    )
    wiring.executor(plan)  # type: ignore[arg-type]
    assert capsys.readouterr().err == "measuring has taken 40 s\n"


def test_what_cuda_needs_is_mended_by_a_command_for_cuda() -> None:
    with pytest.raises(InputError) as refused:
        wiring.required_model(None)
    assert "--device cuda" in refused.value.mend


@pytest.mark.parametrize("option", [("--virtual-gpus", "2"), ("--modality", "image")])
def test_options_of_the_cpu_device_are_refused_on_cuda(option, monkeypatch, has) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(wiring, "device", lambda *_: "cuda")
    said = has("profile", "--device", "cuda", "--model", "qwen2.5-vl-7b", *option)
    assert said.status == 2
    assert "is of the cpu device" in said.err


def test_a_search_on_cuda_finds_what_was_measured_on_a_gpu_as_is_here(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """By the name that its driver gives; no estimate, none of another GPU, none of instances of an engine."""
    gpu = detect.DeviceInfo("cuda", "NVIDIA H100 80GB HBM3", 1, 80 * 10**9, 132, "green contexts")
    monkeypatch.setattr(detect, "detect", lambda: [gpu])
    path = inputs.shipped_profile("tiny-image")
    assert path is not None
    measured = metadata_of(path).model_copy(update={"device": gpu.name})
    assert inputs.fits(measured, "cuda")
    for other in ({"source": "roofline"}, {"device": "NVIDIA L40S"}, {"engine": "vllm"}):
        assert not inputs.fits(measured.model_copy(update=other), "cuda")

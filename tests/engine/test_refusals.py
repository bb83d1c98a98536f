"""Engines and models that cannot be served are refused, with the reason."""

from __future__ import annotations

import pytest

from has.engine.engines import engine_named
from has.engine.flags import check_flags, known_flags
from has.engine.place import make_plan
from has.errors import InfeasibleError, InputError, RunError
from tests.engine.cases import deployment, sizes


@pytest.mark.parametrize("name", ["lmdeploy", "ray", "ray-serve-llm", "Ray-Serve"])
def test_engines_without_epd(name) -> None:
    with pytest.raises(InfeasibleError, match="no encode stage"):
        engine_named(name)


def test_unknown_engine() -> None:
    with pytest.raises(InputError, match="no such engine"):
        engine_named("tgi")


@pytest.mark.parametrize(
    ("engine", "model", "modality"),
    [("sglang", "llava-hf/llava-v1.6-34b-hf", "image"), ("dynamo", "OpenGVLab/InternVL2_5-26B", "image"), ("dynamo", "Qwen/Qwen2.5-VL-7B-Instruct", "video")],
)  # fmt: skip
def test_models_an_engine_does_not_take(engine, model, modality) -> None:
    seed = next(s for s in range(50) if deployment(s).topology == "e_pd")
    asked = deployment(seed).model_copy(update={"model": model})
    wanted = sizes(seed)
    wanted.items.clear()
    wanted.items[modality] = 1
    with pytest.raises(InfeasibleError):
        make_plan(asked, engine, wanted)


def test_a_flag_the_version_does_not_have_is_never_written() -> None:
    with pytest.raises(RunError, match="--multimodal-encode-worker"):
        check_flags(
            ["--multimodal-encode-worker"], known_flags("dynamo", "1.6.1"), known_flags("vllm", "0.33.0")
        )
    check_flags(["--ec-transfer-config", "{}"], known_flags("vllm", "0.32.0"))

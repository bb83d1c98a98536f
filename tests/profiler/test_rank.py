"""A rank's part of a model: cut before its device holds it, and from the same weights as ever. No GPU takes part in this."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from has.device import cuda, nvml
from has.errors import InputError
from has.models.names import BUNDLED
from has.models.shard import cut
from has.models.stage_model import load_stage_model
from has.profiler.cuda import open_cuda
from has.profiler.rank import open_rank
from tests.device.fake_driver import FakeDriver, FakeNvml
from tests.models.cases import loaded

GPUS = 2


class Memory(TorchDispatchMode):
    """Bytes in all of the tensors that were made with memory of their own while open."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = memory_of((args, kwargs))
        made = memory_of(result := func(*args, **(kwargs or {})))
        self.bytes += sum(size for place, size in made.items() if place not in given)
        return result


def memory_of(tree: Any) -> dict[int, int]:
    """Where each tensor's memory lies -> bytes."""
    found = [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return {storage.data_ptr(): storage.nbytes() for storage in found if storage.device.type != "meta"}


def rank_of(name: str) -> Any:
    """As a rank was made before: all of it on the device, then cut."""
    whole = load_stage_model(name)
    cut(whole.family, GPUS)
    return whole.family.model


def save_config(name: str, folder: Path) -> None:
    model = loaded(name).family.model
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", BUNDLED)
def test_a_rank_has_the_weights_that_the_whole_had(name: str) -> None:
    bench = open_rank(name, False, GPUS, "cpu")
    expected = rank_of(name).state_dict()
    got = bench._model.family.model.state_dict()
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[key], expected[key]) for key in expected)
    assert bench.facts["weights_bytes"] == loaded(name).weights_bytes  # of the whole model
    assert bench.facts["layers"] == loaded(name).kv_shape[0]


@pytest.mark.parametrize("name", BUNDLED)
def test_dummy_weights_are_drawn_for_the_rank_alone(name: str, tmp_path: Path) -> None:
    """The device never holds more than the rank; buffers, which no weights file has, are those of the whole."""
    save_config(name, tmp_path)
    with Memory() as used:
        model = open_rank(str(tmp_path), True, GPUS, "cpu")._model.family.model
    former = rank_of(name)
    shapes = {key: value.shape for key, value in former.named_parameters()}
    assert {key: value.shape for key, value in model.named_parameters()} == shapes
    own, whole = (sum(value.nbytes for value in of.parameters()) for of in (model, loaded(name).family.model))
    assert own <= used.bytes < 1.02 * own < 0.9 * whole
    for key, value in model.named_parameters():
        assert value.isfinite().all(), key
        assert value.abs().max() < 10, key
    buffers = dict(model.named_buffers())
    for key, value in former.named_buffers():
        assert torch.equal(buffers[key], value), key


def test_a_rank_with_dummy_weights_runs_every_stage(tmp_path: Path) -> None:
    save_config("tiny-video", tmp_path)
    bench = open_rank(str(tmp_path), True, GPUS, "cpu")
    for stage in ("encode", "prefill", "decode"):
        bench.prepare(stage, 2, 64)()


def test_dummy_weights_of_ultravox_are_drawn_too(tmp_path: Path) -> None:
    """Its projector is no part that transformers knows."""
    audio = {"d_model": 64, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 128}
    text = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = {
        "model_type": "ultravox",
        "architectures": ["UltravoxModel"],
        "audio_config": audio,
        "text_config": text | {"num_key_value_heads": 2, "vocab_size": 512},
        "hidden_size": 128,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = open_rank(str(tmp_path), True, GPUS, "cpu")._model.family.model
    projector = model.multi_modal_projector
    assert (projector.ln_pre.weight == 0.4).all()
    for linear in (projector.linear_1, projector.linear_2):
        assert 0.01 < linear.weight.float().std() < 0.1


def test_sums_that_cannot_be_estimated_are_refused_before_the_model_is_opened(monkeypatch) -> None:
    driver = FakeDriver(name="NVIDIA GeForce RTX 4090")
    monkeypatch.setattr(cuda, "load_driver", lambda: driver)
    monkeypatch.setattr(cuda, "mps_state", lambda: "absent")
    monkeypatch.setattr(nvml, "load_nvml", FakeNvml)
    with pytest.raises(InputError, match="of NVIDIA GeForce RTX 4090 no facts are shipped") as refused:
        open_cuda("no-such-model", [50.0], gpus=4)
    assert refused.value.field == "--tensor-parallel"
    assert "H100 SXM" in refused.value.allowed

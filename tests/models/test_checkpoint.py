"""Checkpoints saved by transformers load into the same answers; what is broken is said plainly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from has.errors import InputError, MissingError
from has.models.checkpoint import Weights
from has.models.folders import why_no_weights
from has.models.names import BUNDLED
from has.models.stage_model import PromptInput, StageModel, load_stage_model
from tests.models.cases import answer_alone, case, loaded


@pytest.fixture(scope="module", params=list(BUNDLED))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    loaded(request.param).family.model.save_pretrained(folder, max_shard_size="20MB")
    return request.param, folder


@pytest.fixture
def copy(saved: tuple[str, Path], tmp_path: Path) -> Path:
    """A folder of links to the checkpoint, to break at will."""
    for path in saved[1].iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def test_a_saved_model_answers_the_same(saved: tuple[str, Path]) -> None:
    name, folder = saved
    original, again = loaded(name), load_stage_model(str(folder))
    request = case(original, 8)
    assert answer_alone(again, request, 16) == answer_alone(original, request, 16)
    assert again.weights_bytes == original.weights_bytes
    assert again.max_positions == original.max_positions
    assert again.eos is None


def test_dummy_weights_need_only_the_config(saved: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = saved
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    dummy = load_stage_model(str(tmp_path), weights="dummy", dtype=torch.bfloat16)
    original: StageModel = loaded(name)
    assert dummy.kv_shape == original.kv_shape
    assert dummy.kv_bytes_per_token * 2 == original.kv_bytes_per_token
    assert sum(dummy.weights_bytes.values()) == pytest.approx(
        sum(original.weights_bytes.values()) / 2, rel=0.02
    )
    request = case(original, 9)
    embeddings = dummy.encode(request.media)
    assert [len(e) for e in embeddings] == [item.tokens for item in request.media]
    first = dummy.prefill([PromptInput(request.ids, embeddings, [i.grid for i in request.media])])[0]
    assert first.logits.isfinite().all()
    assert not torch.equal(first.logits, torch.zeros_like(first.logits))
    with pytest.raises(MissingError, match="no weights in safetensors"):
        load_stage_model(str(tmp_path))


def test_a_missing_shard_is_named(copy: Path) -> None:
    shard = min(copy.glob("*.safetensors"))
    shard.unlink()
    with pytest.raises(MissingError, match=shard.name):
        load_stage_model(str(copy))


def test_a_torn_shard_is_an_input_error(copy: Path) -> None:
    shard = min(copy.glob("*.safetensors"))
    torn = shard.read_bytes()[:5000]
    shard.unlink()
    shard.write_bytes(torn)
    with pytest.raises(InputError, match="cannot be read"):
        load_stage_model(str(copy))


def test_pickled_weights_are_not_read(copy: Path) -> None:
    for path in copy.glob("*.safetensors*"):
        path.unlink()
    torch.save({}, copy / "pytorch_model.bin")
    with pytest.raises(MissingError, match="pickled"):
        load_stage_model(str(copy))


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ("{", InputError, "config cannot be used"),
        ('{"model_type": "no-such-type"}', InputError, "config cannot be used"),
        (
            json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}),
            MissingError,
            "no adapter for LlamaForCausalLM",
        ),
    ],
)
def test_unusable_configs(tmp_path: Path, config: str, error: type[Exception], message: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(error, match=message):
        load_stage_model(str(tmp_path))


@pytest.mark.parametrize("part", ["", "text_config"])
@pytest.mark.parametrize("weights", ["real", "dummy"])
def test_quantised_weights_are_refused_and_not_taken_for_16_bit(
    copy: Path, part: str, weights: Weights
) -> None:
    config = json.loads((copy / "config.json").read_text())
    (config[part] if part else config)["quantization_config"] = {"quant_method": "awq", "bits": 4}
    (copy / "config.json").unlink()
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="quantised weights") as refused:
        load_stage_model(str(copy), weights=weights)
    assert refused.value.field.endswith("quantization_config.quant_method")
    assert refused.value.value == "awq"
    assert "16 bit" in refused.value.mend
    with pytest.raises(InputError, match="quantised weights"):
        why_no_weights(str(copy))


def test_dummy_weights_do_where_there_are_no_safetensors(copy: Path) -> None:
    assert why_no_weights(str(copy)) == ""
    assert why_no_weights("tiny-image") == ""
    assert "no checkpoint" in why_no_weights("qwen2.5-vl-7b")
    for path in copy.glob("*.safetensors*"):
        path.unlink()
    torch.save({}, copy / "pytorch_model.bin")
    assert "no safetensors files" in why_no_weights(str(copy))


def test_what_is_not_here_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="download nobody/no-such-model"):
        load_stage_model("nobody/no-such-model")
    with pytest.raises(MissingError, match="no checkpoint"):
        load_stage_model(str(tmp_path))

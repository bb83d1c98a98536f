"""Weights and KV from a config.json alone, as the hub's checkpoints write theirs, against transformers' model of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from has.errors import InputError
from has.models.stage_model import StageModel, load_stage_model

TEXT = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MANY = {name: value for name, value in TEXT.items() if name != "num_key_value_heads"}
TOWER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
QWEN = {
    "vision_config": {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "out_hidden_size": 64,
        "fullatt_block_indexes": [1],
        "patch_size": 14,
    }
}
QWEN3 = {
    "vision_config": {
        "depth": 3,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "out_hidden_size": 64,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [0, 1],
    }
}
LLAVA = {
    "vision_config": TOWER | {"model_type": "clip_vision_model", "image_size": 56, "patch_size": 14},
    "image_grid_pinpoints": [[56, 112]],
    "image_token_index": 10,
}
INTERN = {"vision_config": TOWER | {"image_size": [56, 56], "patch_size": [14, 14]}, "image_token_id": 10}
VOXTRAL = {"audio_config": TOWER | {"model_type": "voxtral_encoder", "intermediate_size": 256}}
QWEN_AUDIO = {"audio_config": {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 128}}  # fmt: skip
HALF = {"torch_dtype": "bfloat16"}
MROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "rope_theta": 1e6}
INTERLEAVED = {
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"}
}
TIED = {"tie_word_embeddings": True}
UNTIED = {"tie_word_embeddings": False}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "text beside the rest": ("Qwen2_5_VL", "qwen2_5_vl", TEXT | MROPE | HALF | QWEN | UNTIED),
    "text beside the rest, tied": ("Qwen2_5_VL", "qwen2_5_vl", TEXT | MROPE | HALF | QWEN | TIED),
    "text within": ("Qwen2_5_VL", "qwen2_5_vl", {"text_config": TEXT | MROPE} | HALF | QWEN | UNTIED),
    "tied within": ("Qwen2_5_VL", "qwen2_5_vl", {"text_config": TEXT | MROPE | TIED} | HALF | QWEN),
    "dtype within": ("Qwen3VL", "qwen3_vl", {"text_config": TEXT | INTERLEAVED | {"head_dim": 32, "dtype": "bfloat16"}} | QWEN3 | UNTIED),
    "dtype within, tied": ("Qwen3VL", "qwen3_vl", {"text_config": TEXT | INTERLEAVED | {"head_dim": 32} | HALF | TIED} | QWEN3 | TIED),
    "experts": ("Qwen3VLMoe", "qwen3_vl_moe", {"text_config": TEXT | INTERLEAVED | {"head_dim": 32, "dtype": "bfloat16"} | EXPERTS} | QWEN3 | UNTIED),
    "mistral": ("LlavaNext", "llava_next", {"text_config": TEXT | HALF | {"model_type": "mistral"}} | HALF | LLAVA | UNTIED),
    "as many KV heads": ("LlavaNext", "llava_next", {"text_config": MANY | HALF | {"model_type": "llama"}} | {"torch_dtype": "float16"} | LLAVA),
    "internlm": ("InternVL", "internvl", {"text_config": TEXT | {"model_type": "llama", "head_dim": 48}, "dtype": "bfloat16"} | INTERN | UNTIED),
    "qwen2": ("InternVL", "internvl", {"text_config": TEXT | HALF | {"model_type": "qwen2"}} | INTERN),
    "head_dim": ("Voxtral", "voxtral", {"text_config": TEXT | {"model_type": "llama", "head_dim": 32}} | HALF | VOXTRAL),
    "no type of text": ("Qwen2Audio", "qwen2_audio", {"text_config": TEXT} | HALF | QWEN_AUDIO),
    "no dtype": ("Qwen2Audio", "qwen2_audio", {"text_config": TEXT | {"model_type": "qwen2"}} | QWEN_AUDIO),
}  # fmt: skip


def written(folder: Path, architecture: str, kind: str, more: dict[str, Any]) -> str:
    name = f"{architecture}ForConditionalGeneration"
    (folder / "config.json").write_text(json.dumps({"architectures": [name], "model_type": kind} | more))
    return str(folder)


def of_transformers(folder: str, dtype: torch.dtype) -> Any:
    config = hf.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        return getattr(hf, config.architectures[0])._from_config(config, dtype=dtype)


def kv_bytes_per_token(model: Any) -> float:
    """Of the cache that transformers' own forward pass leaves."""
    text = model.config.get_text_config()
    embedded = torch.zeros(1, 8, text.hidden_size, device="meta", dtype=model.dtype)
    cache = model.model.language_model(inputs_embeds=embedded, use_cache=True).cache
    return sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values)) / 8


@pytest.mark.parametrize("case", CONFIGS)
def test_weights_and_kv_are_those_of_transformers(tmp_path: Path, case: str) -> None:
    folder = written(tmp_path, *CONFIGS[case])
    stated = "float16" if "float16" in CONFIGS[case][2].values() else "bfloat16"
    dtype = torch.float32 if case == "no dtype" else getattr(torch, stated)
    model = load_stage_model(folder, device="meta", weights="dummy")
    whole = of_transformers(folder, dtype)
    assert model.dtype == dtype
    assert sum(model.weights_bytes.values()) == sum(p.numel() * p.element_size() for p in whole.parameters())
    assert model.kv_bytes_per_token == kv_bytes_per_token(whole)


def test_real_weights_are_loaded_as_they_are_where_no_dtype_is_stated(tmp_path: Path) -> None:
    architecture, kind, more = CONFIGS["dtype within"]
    stated = load_stage_model(written(tmp_path, architecture, kind, more), weights="dummy")
    stated.family.model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for part in (config, config["text_config"], config["vision_config"]):
        part.pop("dtype", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    again: StageModel = load_stage_model(str(tmp_path))
    assert again.dtype == torch.bfloat16
    assert again.weights_bytes == stated.weights_bytes


def test_a_dtype_that_is_none_is_an_input_error(tmp_path: Path) -> None:
    more = {"text_config": TEXT | INTERLEAVED | {"dtype": "half a byte"}} | QWEN3
    with pytest.raises(InputError, match="half a byte"):
        load_stage_model(written(tmp_path, "Qwen3VL", "qwen3_vl", more), weights="dummy")


@pytest.mark.parametrize(("window", "longest"), [({}, 4096), ({"sliding_window": None}, 131_072)])
def test_no_prompt_is_longer_than_a_window_of_all_layers(tmp_path: Path, window: Any, longest: int) -> None:
    text = TEXT | window | {"model_type": "mistral", "max_position_embeddings": 131_072}
    folder = written(tmp_path, "LlavaNext", "llava_next", {"text_config": text} | HALF | LLAVA)
    assert load_stage_model(folder, device="meta", weights="dummy").max_positions == longest

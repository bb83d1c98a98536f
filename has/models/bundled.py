"""The bundled tiny models: configurations of real families, and weights drawn from a seed.

They compute what their families compute, on shapes small enough for one CPU thread; what they say
is meaningless. Measured costs stand in docs/measurements.md.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
import transformers as hf

from has.models.names import MAX_POSITIONS, VOCAB_SIZE, Special
from has.models.tokens import TINY_AUDIO, TINY_IMAGE, TINY_VIDEO

LM: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": int(Special.BOS),
    "eos_token_id": None,
    "pad_token_id": int(Special.PAD),
    "tie_word_embeddings": False,
}
TOWER_WIDTH = 256
TOWER_LAYERS = 3
TOWER_HEADS = 4
MEL_BINS = 80


def build(name: str, seed: int = 0) -> Any:
    """The transformers model `name`, float32, in eval mode; its weights depend on name and seed alone."""
    model = {"tiny-image": _image, "tiny-video": _video, "tiny-audio": _audio}[name]()
    draw_weights(model, name, seed)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = int(Special.PAD)
    model.generation_config.do_sample = False
    return model.eval().requires_grad_(False)


def _image() -> Any:
    rule = TINY_IMAGE
    return hf.InternVLForConditionalGeneration(
        hf.InternVLConfig(
            vision_config=hf.InternVLVisionConfig(
                hidden_size=TOWER_WIDTH,
                intermediate_size=4 * TOWER_WIDTH,
                num_hidden_layers=TOWER_LAYERS,
                num_attention_heads=TOWER_HEADS,
                image_size=rule.tile,
                patch_size=14,
                use_qk_norm=False,
            ),
            text_config=hf.Qwen2Config(**LM),
            image_token_id=int(Special.IMAGE),
            image_seq_length=rule.tile_tokens,
            downsample_ratio=0.5,
            tie_word_embeddings=False,
        )
    )


def _video() -> Any:
    rule = TINY_VIDEO
    head_dim = LM["hidden_size"] // LM["num_attention_heads"]
    third = head_dim // 6
    return hf.Qwen2_5_VLForConditionalGeneration(
        hf.Qwen2_5_VLConfig(
            vision_config={
                "depth": 2,
                "hidden_size": TOWER_WIDTH,
                "intermediate_size": 3 * TOWER_WIDTH,
                "num_heads": TOWER_HEADS,
                "out_hidden_size": LM["hidden_size"],
                "fullatt_block_indexes": [1],
                "window_size": 56,
                "patch_size": rule.patch,
                "spatial_merge_size": rule.merge,
                "temporal_patch_size": rule.temporal,
                "tokens_per_second": 2,
            },
            text_config={
                **LM,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e6,
                    "mrope_section": [head_dim // 2 - 2 * third, third, third],
                },
            },
            image_token_id=int(Special.IMAGE),
            video_token_id=int(Special.VIDEO),
            vision_start_token_id=int(Special.MEDIA_START),
            vision_end_token_id=int(Special.MEDIA_END),
            tie_word_embeddings=False,
        )
    )


def _audio() -> Any:
    rule = TINY_AUDIO
    positions = round(rule.chunk_s * 50)  # 100 mel frames a second, halved by the second convolution
    return hf.VoxtralForConditionalGeneration(
        hf.VoxtralConfig(
            audio_config={
                "model_type": "voxtral_encoder",
                "hidden_size": TOWER_WIDTH,
                "intermediate_size": TOWER_WIDTH * positions // rule.chunk_tokens,
                "num_hidden_layers": TOWER_LAYERS,
                "num_attention_heads": TOWER_HEADS,
                "num_mel_bins": MEL_BINS,
                "max_source_positions": positions,
                "vocab_size": VOCAB_SIZE,
            },
            text_config=hf.LlamaConfig(**LM),
            audio_token_id=int(Special.AUDIO),
        )
    )


@torch.no_grad()
def draw_weights(model: torch.nn.Module, name: str, seed: int) -> None:
    """Normal weights that keep activations near unit variance, so that attention and media matter.

    Transformers' own initialisation (σ = 0.02) leaves tiny models that repeat their last token
    whatever they are shown. Each tensor has its own generator, keyed by its name: the weights do
    not depend on the order or the number of parameters of a transformers release.
    """
    for key, parameter in model.named_parameters():
        digest = hashlib.sha256(f"{name}/{seed}/{key}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        noise = torch.randn(parameter.shape, generator=generator)
        if key.endswith("bias"):
            parameter.copy_(0.1 * noise)
        elif parameter.ndim == 1:  # norms and layer scales: near one
            parameter.copy_(1 + 0.1 * noise)
        elif "embed" in key and "patch" not in key:  # token and position tables, class tokens
            parameter.copy_(noise)
        else:
            stacked = "experts" in key  # [experts, out, in], where others are [out, in, ...]
            parameter.copy_(noise / math.sqrt(parameter[0, 0].numel() if stacked else parameter[0].numel()))

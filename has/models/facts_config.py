"""The transformers config of a model that ships facts: enough to build it with dummy weights, without a download.

Shapes are the facts' (`has/files/facts/models`); everything else is the class's default. Token ids are none of a real
vocabulary's, so what such a model says means nothing; its weights, its KV and what it computes are as large as the real one's.
"""

from __future__ import annotations

from typing import Any

import transformers

from has.errors import MissingError
from has.models.names import Special

hf: Any = transformers  # its configs are annotated with less than they take
Facts = dict[str, Any]
IDS = {
    "image_token_id": int(Special.IMAGE),
    "video_token_id": int(Special.VIDEO),
    "vision_start_token_id": int(Special.MEDIA_START),
    "vision_end_token_id": int(Special.MEDIA_END),
}


def config_of(facts: Facts) -> tuple[str, Any]:
    """(architecture, config). Raises MissingError for a family without an adapter."""
    name = facts["name"]
    for prefix, make in _MAKERS.items():
        if name.startswith(prefix):
            architecture, config = make(facts)
            config.architectures = [architecture]
            return architecture, config
    raise MissingError(
        f"no adapter for {name}",
        mend="use one of the families " + ", ".join(prefix.rstrip("-") for prefix in _MAKERS),
    )


def _text(facts: Facts, **more: Any) -> dict[str, Any]:
    lm = facts["lm"]
    return {
        "vocab_size": lm["vocab"],
        "hidden_size": lm["hidden"],
        "intermediate_size": lm["intermediate"],
        "num_hidden_layers": lm["layers"],
        "num_attention_heads": lm["q_heads"],
        "num_key_value_heads": lm["kv_heads"],
        "head_dim": lm["head_dim"],
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": lm["tied_embeddings"],
        "bos_token_id": int(Special.BOS),
        "eos_token_id": None,
        "pad_token_id": int(Special.PAD),
        **more,
    }


def _tower(facts: Facts) -> dict[str, Any]:
    e = facts["encoder"]
    return {
        "hidden_size": e["hidden"],
        "intermediate_size": e["intermediate"],
        "num_hidden_layers": e["layers"],
        "num_attention_heads": e["heads"],
        "image_size": e["image"],
        "patch_size": e["patch"],
    }


def _llava_next(facts: Facts) -> tuple[str, Any]:
    vision = hf.CLIPVisionConfig(**_tower(facts), projection_dim=768)
    config = hf.LlavaNextConfig(
        vision_config=vision,
        text_config=hf.LlamaConfig(**_text(facts)),
        image_token_index=int(Special.IMAGE),
        tie_word_embeddings=False,
    )
    return "LlavaNextForConditionalGeneration", config


def _internvl(facts: Facts) -> tuple[str, Any]:
    e = facts["encoder"]
    large = bool(e.get("qk_norm"))
    vision = hf.InternVLVisionConfig(
        **_tower(facts) | {"image_size": [e["image"]] * 2, "patch_size": [e["patch"]] * 2},
        use_qk_norm=large,
        norm_type="rms_norm" if large else "layer_norm",
        attention_bias=bool(e.get("qkv_bias", True)),
    )
    qwen = facts["name"].endswith(("38b", "78b"))  # the others have an InternLM 2, which is a Llama in shape
    text = (hf.Qwen2Config if qwen else hf.LlamaConfig)(**_text(facts))
    config = hf.InternVLConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=int(Special.IMAGE),
        image_seq_length=256,
        tie_word_embeddings=False,
    )
    return "InternVLForConditionalGeneration", config


def _qwen2_5_vl(facts: Facts) -> tuple[str, Any]:
    e, lm = facts["encoder"], facts["lm"]
    vision = {
        "depth": e["layers"],
        "hidden_size": e["hidden"],
        "intermediate_size": e["intermediate"],
        "num_heads": e["heads"],
        "out_hidden_size": lm["hidden"],
        "patch_size": e["patch"],
        "spatial_merge_size": e["spatial_merge"],
        "temporal_patch_size": e["temporal_patch"],
        "window_size": e["window"],
        "fullatt_block_indexes": e["full_attention_blocks"],
        "tokens_per_second": 2,
    }
    text = _text(facts, rope_parameters=_mrope([16, 24, 24]))
    text.pop("head_dim")
    config = hf.Qwen2_5_VLConfig(
        vision_config=vision, text_config=text, tie_word_embeddings=lm["tied_embeddings"], **IDS
    )
    return "Qwen2_5_VLForConditionalGeneration", config


def _qwen3_vl(facts: Facts) -> tuple[str, Any]:
    e, lm = facts["encoder"], facts["lm"]
    vision = {
        "depth": e["layers"],
        "hidden_size": e["hidden"],
        "intermediate_size": e["intermediate"],
        "num_heads": e["heads"],
        "out_hidden_size": lm["hidden"],
        "patch_size": e["patch"],
        "spatial_merge_size": e["spatial_merge"],
        "temporal_patch_size": e["temporal_patch"],
        "num_position_embeddings": e["position_embeddings"],
        "deepstack_visual_indexes": [5, 11, 17] if e["layers"] == 24 else [8, 16, 24],
    }
    text = _text(facts, rope_parameters=_mrope([24, 20, 20]))
    tied = lm["tied_embeddings"]
    if moe := lm["moe"]:
        text |= {
            "num_experts": moe["experts"],
            "num_experts_per_tok": moe["experts_per_token"],
            "moe_intermediate_size": moe["expert_intermediate"],
        }
        config = hf.Qwen3VLMoeConfig(vision_config=vision, text_config=text, tie_word_embeddings=tied, **IDS)
        return "Qwen3VLMoeForConditionalGeneration", config
    config = hf.Qwen3VLConfig(vision_config=vision, text_config=text, tie_word_embeddings=tied, **IDS)
    return "Qwen3VLForConditionalGeneration", config


def _mrope(sections: list[int]) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections}


def _whisper(facts: Facts) -> dict[str, Any]:
    e = facts["encoder"]
    return {
        "d_model": e["hidden"],
        "encoder_layers": e["layers"],
        "encoder_attention_heads": e["heads"],
        "encoder_ffn_dim": e["intermediate"],
        "num_mel_bins": e["mel"],
        "max_source_positions": e["frames_per_30s"],
    }


def _qwen2_audio(facts: Facts) -> tuple[str, Any]:
    config = hf.Qwen2AudioConfig(
        audio_config=_whisper(facts),
        text_config={"model_type": "qwen2", **_text(facts)},
        audio_token_index=int(Special.AUDIO),
    )
    return "Qwen2AudioForConditionalGeneration", config


def _voxtral(facts: Facts) -> tuple[str, Any]:
    e = facts["encoder"]
    config = hf.VoxtralConfig(
        audio_config={
            "model_type": "voxtral_encoder",
            "hidden_size": e["hidden"],
            "intermediate_size": e["intermediate"],
            "num_hidden_layers": e["layers"],
            "num_attention_heads": e["heads"],
            "num_mel_bins": e["mel"],
            "max_source_positions": e["frames_per_30s"],
        },
        text_config=hf.LlamaConfig(**_text(facts)),
        audio_token_id=int(Special.AUDIO),
        tie_word_embeddings=facts["lm"]["tied_embeddings"],
    )
    return "VoxtralForConditionalGeneration", config


def _ultravox(facts: Facts) -> tuple[str, Any]:
    from has.models.ultravox import ARCHITECTURE, UltravoxConfig

    kind = "gemma3_text" if "gemma" in facts["name"] else "llama"
    config = UltravoxConfig(
        audio_config={"model_type": "whisper", "decoder_layers": 0, **_whisper(facts)},
        text_config={"model_type": kind, **_text(facts)},
        hidden_size=facts["projector"]["dims"][1],
        projector_ln_mid=True,
        audio_token_index=int(Special.AUDIO),
    )
    return ARCHITECTURE, config


_MAKERS = {
    "llava-v1.6-": _llava_next,
    "internvl2.5-": _internvl,
    "qwen2.5-vl-": _qwen2_5_vl,
    "qwen3-vl-": _qwen3_vl,
    "qwen2-audio-": _qwen2_audio,
    "voxtral-": _voxtral,
    "ultravox-": _ultravox,
}

"""Ultravox: Whisper's encoder, eight frames stacked to a token, a gated projector, in front of any causal LM.

transformers has no class for it. What stands here is its parts in the layout of its checkpoints:

    audio_tower.*                        Whisper's encoder (in some files under audio_tower.model.encoder)
    multi_modal_projector.ln_pre         RMS norm over stack_factor · d_model
    multi_modal_projector.linear_1       to hidden_size, without bias; SwiGLU halves that
    multi_modal_projector.ln_mid         RMS norm between (projector_ln_mid; from 0.5 on), else
    multi_modal_projector.linear_2       to the LM's width, without bias
    multi_modal_projector.ln_post        RMS norm at the end
    language_model.*                     a causal LM of transformers

A checkpoint may hold the projector alone, or it and the tower: its config then names where the rest is from
(`text_model_id`, `audio_model_id`), which is looked for in the hub cache.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from has.models.folders import checkpoint_folder

ARCHITECTURE = "UltravoxModel"
MODEL_TYPE = "ultravox"


class UltravoxConfig(hf.PretrainedConfig):  # type: ignore[no-untyped-call]  # transformers' hook for subclasses is untyped
    """As its checkpoints' config.json; a part that is only named there by its id is read from the hub cache."""

    model_type = MODEL_TYPE
    is_composition = True

    def __init__(
        self,
        audio_config: dict[str, Any] | Any = None,
        text_config: dict[str, Any] | Any = None,
        audio_model_id: str | None = None,
        text_model_id: str | None = None,
        hidden_size: int = 4096,
        stack_factor: int = 8,
        norm_init: float = 0.4,
        projector_act: str = "swiglu",
        projector_ln_mid: bool = False,
        audio_token_index: int = 32000,
        **kwargs: Any,
    ) -> None:
        self.audio_config = _part(audio_config, audio_model_id, "whisper")
        self.text_config = _part(text_config, text_model_id, "llama")
        self.audio_model_id, self.text_model_id = audio_model_id, text_model_id
        self.hidden_size, self.stack_factor, self.norm_init = hidden_size, stack_factor, norm_init
        self.projector_act, self.projector_ln_mid = projector_act, projector_ln_mid
        self.audio_token_index = audio_token_index
        super().__init__(**kwargs)

    def get_text_config(self, *_: Any, **__: Any) -> Any:
        """Of the language model proper, where the LM is itself multimodal (Gemma 3)."""
        return self.text_config.get_text_config()


def _part(given: Any, identity: str | None, kind: str) -> Any:
    if isinstance(given, hf.PretrainedConfig):
        return given
    if not given and identity is not None:
        return hf.AutoConfig.from_pretrained(checkpoint_folder(identity), local_files_only=True)
    fields = dict(given or {})
    return hf.CONFIG_MAPPING[fields.pop("model_type", kind)](**fields)


class RaggedWhisperEncoder(WhisperEncoder):  # type: ignore[no-untyped-call]  # transformers' hook for subclasses is untyped
    """Whisper's encoder over clips of their own length, where Whisper's own always takes 30 s."""

    def forward(self, mel: Tensor, lengths: Tensor) -> Tensor:
        """[n, frames, d_model] of mel [n, bins, 2·frames], of which `lengths` [n] mel frames are sound.

        What is beyond a clip's length is kept out of convolutions and attention, so that a clip in a
        batch is what it is alone.
        """
        sounding = torch.arange(mel.shape[-1], device=mel.device) < lengths[:, None]
        hidden = nn.functional.gelu(self.conv1(mel * sounding[:, None])) * sounding[:, None]
        hidden = nn.functional.gelu(self.conv2(hidden)).permute(0, 2, 1)
        frames = hidden.shape[1]
        hidden = hidden + self.embed_positions.weight[:frames]
        heard = torch.arange(frames, device=mel.device) < ((lengths + 1) // 2)[:, None]
        mask = heard[:, None, None].expand(-1, 1, frames, -1)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        normed: Tensor = self.layer_norm(hidden)
        return normed * heard[..., None]


class Projector(nn.Module):
    def __init__(self, config: UltravoxConfig) -> None:
        super().__init__()
        stacked, width = (
            config.stack_factor * config.audio_config.d_model,
            config.get_text_config().hidden_size,
        )
        self.stack = config.stack_factor
        self.ln_pre = nn.RMSNorm(stacked, eps=1e-6)
        self.linear_1 = nn.Linear(stacked, config.hidden_size, bias=False)
        self.gated = config.projector_act == "swiglu"
        self.act = None if self.gated else hf.activations.ACT2FN[config.projector_act]
        between = config.hidden_size // 2 if self.gated else config.hidden_size
        self.linear_2 = nn.Linear(between, width, bias=False)
        middle = config.projector_ln_mid
        self.ln_mid: nn.Module = nn.RMSNorm(between, eps=1e-6) if middle else nn.Identity()
        self.ln_post: nn.Module = nn.Identity() if middle else nn.RMSNorm(width, eps=1e-6)

    def forward(self, hidden: Tensor) -> Tensor:
        """[n, frames, d] -> [n, ⌈frames/stack⌉, width]; the last token's missing frames are zeros."""
        n, frames, width = hidden.shape
        padded = nn.functional.pad(hidden, (0, 0, 0, -frames % self.stack))
        hidden = self.linear_1(self.ln_pre(padded.reshape(n, -1, width * self.stack)))
        if self.act is not None:
            hidden = self.act(hidden)
        else:
            value, gate = hidden.chunk(2, dim=-1)
            hidden = nn.functional.silu(gate) * value
        projected: Tensor = self.ln_post(self.linear_2(self.ln_mid(hidden)))
        return projected


class UltravoxModel(hf.PreTrainedModel):  # type: ignore[no-untyped-call]  # transformers' hook for subclasses is untyped
    """Tower, projector and LM. `forward` is not there: stages call the parts."""

    config_class = UltravoxConfig
    base_model_prefix = ""
    OLDER_NAMES: ClassVar = {"^audio_tower.model.encoder.": "audio_tower."}
    _supports_sdpa = True
    _tied_weights_keys: Any = None

    def __init__(self, config: UltravoxConfig) -> None:
        super().__init__(config)
        self.audio_tower = RaggedWhisperEncoder(config.audio_config)
        self.multi_modal_projector = Projector(config)
        text = config.text_config
        auto: Any = (
            hf.AutoModelForCausalLM if text is text.get_text_config() else hf.AutoModelForImageTextToText
        )
        self.language_model = auto.from_config(text)
        self.post_init()  # type: ignore[no-untyped-call]  # untyped in transformers

    def _init_weights(self, module: nn.Module) -> None:
        """Tower and LM initialise themselves; the first norm of the projector begins where training began it."""
        super()._init_weights(module)  # type: ignore[no-untyped-call]  # untyped in transformers
        if module is self.multi_modal_projector.ln_pre:
            nn.init.constant_(module.weight, self.config.norm_init)

    def get_input_embeddings(self) -> Any:
        return self.language_model.get_input_embeddings()

    def get_output_embeddings(self) -> Any:
        return self.language_model.get_output_embeddings()


hf.AutoConfig.register(MODEL_TYPE, UltravoxConfig, exist_ok=True)

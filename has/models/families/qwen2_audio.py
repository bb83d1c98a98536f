"""Qwen2-Audio: Whisper's encoder over 30 s, frames pooled in pairs, one linear layer, in front of a Qwen2."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from has.models.families.base import Family
from has.models.media import MediaInput


class Qwen2Audio(Family):
    """`mel` is padded to the encoder's length; `grid.t` says how many of its frames are sound."""

    architecture = "Qwen2AudioForConditionalGeneration"

    @property
    def placeholders(self) -> frozenset[int]:
        return frozenset([self.model.config.audio_token_id])

    def encoder_modules(self) -> list[torch.nn.Module]:
        return [self.model.model.audio_tower, self.model.model.multi_modal_projector]

    def encode(self, kind: str, media: Sequence[MediaInput]) -> list[Tensor]:
        """The class has no feature method of its own: tower, mask and projector are put together here."""
        mel = self.tensor([item.arrays["mel"] for item in media])
        heard = torch.tensor([(item.grid.t - 1) // 2 + 1 for item in media], device=mel.device)
        length = mel.shape[-1] // 2
        keys = torch.arange(length, device=mel.device) < heard[:, None]
        mask = keys[:, None, None].expand(-1, 1, length, -1)
        hidden = self.model.model.audio_tower(mel, attention_mask=mask).last_hidden_state
        embeddings = self.model.model.multi_modal_projector(hidden)
        return [row[: item.tokens] for row, item in zip(embeddings, media, strict=True)]

"""Voxtral: Whisper-style encoder over fixed chunks, four frames to a token, in front of a Llama."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from has.models.families.base import Family
from has.models.media import MediaInput


class Voxtral(Family):
    architecture = "VoxtralForConditionalGeneration"

    @property
    def placeholders(self) -> frozenset[int]:
        return frozenset([self.model.config.audio_token_id])

    def encoder_modules(self) -> list[torch.nn.Module]:
        return [self.model.model.audio_tower, self.model.model.multi_modal_projector]

    def encode(self, kind: str, media: Sequence[MediaInput]) -> list[Tensor]:
        mels = [item.arrays["mel"] for item in media]
        embeddings: Tensor = self.model.get_audio_features(self.tensor(mels), return_dict=True).pooler_output
        return list(torch.split_with_sizes(embeddings, [item.tokens for item in media]))

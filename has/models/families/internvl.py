"""InternVL 2.5 and 3: InternViT tiles, pixel shuffle and an MLP in front of a Qwen2 or InternLM."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from has.models.families.base import Family
from has.models.media import MediaInput


class InternVL(Family):
    architecture = "InternVLForConditionalGeneration"

    @property
    def placeholders(self) -> frozenset[int]:
        return frozenset([self.model.config.image_token_id])

    def encoder_modules(self) -> list[torch.nn.Module]:
        return [self.model.model.vision_tower, self.model.model.multi_modal_projector]

    def encode(self, kind: str, media: Sequence[MediaInput]) -> list[Tensor]:
        pixels = [item.arrays["pixels"] for item in media]
        tiles: Tensor = self.model.get_image_features(
            pixel_values=self.tensor(pixels), return_dict=True
        ).pooler_output
        counts = [len(array) for array in pixels]
        return [part.flatten(0, 1) for part in torch.split_with_sizes(tiles, counts)]

"""LLaVA-NeXT (1.6): CLIP tiles, an MLP, newline embeddings between rows, in front of a Llama or Mistral."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from has.models.families.base import Family
from has.models.media import MediaInput


class LlavaNext(Family):
    """Newlines and unpadding belong to the encoder's output: prefill sees finished embeddings."""

    architecture = "LlavaNextForConditionalGeneration"

    @property
    def placeholders(self) -> frozenset[int]:
        return frozenset([self.model.config.image_token_id])

    def encoder_modules(self) -> list[torch.nn.Module]:
        return [self.model.model.vision_tower, self.model.model.multi_modal_projector]

    def encode(self, kind: str, media: Sequence[MediaInput]) -> list[Tensor]:
        counts = [len(item.arrays["pixels"]) for item in media]
        tiles = self.tensor([item.arrays["pixels"] for item in media])
        padded = torch.nn.utils.rnn.pad_sequence(
            list(torch.split_with_sizes(tiles, counts)), batch_first=True
        )
        sizes = torch.tensor([[item.grid.h, item.grid.w] for item in media])
        return list(self.model.get_image_features(padded, image_sizes=sizes, return_dict=True).pooler_output)

"""Qwen3-VL, dense and mixture of experts: as Qwen2.5-VL, and features of deeper encoder layers go into the LM too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from has.models.families.qwen2_5_vl import Qwen2_5VL
from has.models.media import MediaInput


class Qwen3VL(Qwen2_5VL):
    """An embedding carries, behind the one that replaces its placeholder, one more for each of the LM's
    first layers, which add it to their output (DeepStack): what travels is 1 + k times as wide.

    In a video every pair of frames stands by itself between its time stamps, so the prompt has a
    run of placeholders for each of the grid's t steps.
    """

    architecture = "Qwen3VLForConditionalGeneration"

    @property
    def depth(self) -> int:
        """LM layers that get features of their own."""
        return len(self.model.config.vision_config.deepstack_visual_indexes)

    @property
    def embedding_width(self) -> int:
        return (1 + self.depth) * int(self.text_config.hidden_size)

    def encode(self, kind: str, media: Sequence[MediaInput]) -> list[Tensor]:
        pixels = self.tensor([item.arrays["pixels"] for item in media])
        grids = torch.tensor([item.grid[1:4] for item in media], device=pixels.device)
        features = self.model.get_image_features if kind == "image" else self.model.get_video_features
        encoded = features(pixels, grids, return_dict=True)
        layers = [encoded.pooler_output, *encoded.deepstack_features]
        return [torch.cat(parts, dim=-1) for parts in zip(*layers, strict=True)]

    def inputs(self, embedded: Tensor) -> dict[str, Any]:
        """Text has zeros where media have deeper features: adding them everywhere needs no mask."""
        first, *deeper = torch.tensor_split(embedded, 1 + self.depth, dim=-1)
        return {
            "inputs_embeds": first,
            "visual_pos_masks": torch.ones(embedded.shape[:2], dtype=torch.bool, device=embedded.device),
            "deepstack_visual_embeds": [features.flatten(0, 1) for features in deeper],
        }


class Qwen3VLMoe(Qwen3VL):
    architecture = "Qwen3VLMoeForConditionalGeneration"

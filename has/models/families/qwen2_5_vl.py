"""Qwen2.5-VL: images and videos as patches of any grid, and rotary positions in time, height and width."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from has.models.families.base import Family
from has.models.media import Grid, MediaInput


class Qwen2_5VL(Family):
    architecture = "Qwen2_5_VLForConditionalGeneration"
    mrope = True

    @property
    def placeholders(self) -> frozenset[int]:
        return frozenset([self.model.config.image_token_id, self.model.config.video_token_id])

    def encoder_modules(self) -> list[torch.nn.Module]:
        return [self.model.model.visual]

    def encode(self, kind: str, media: Sequence[MediaInput]) -> list[Tensor]:
        pixels = self.tensor([item.arrays["pixels"] for item in media])
        grids = torch.tensor([item.grid[1:4] for item in media], device=pixels.device)
        features = self.model.get_image_features if kind == "image" else self.model.get_video_features
        return list(features(pixels, grids, return_dict=True).pooler_output)

    def positions(self, ids: Sequence[int], grids: Sequence[Grid]) -> tuple[Tensor, int]:
        """M-RoPE positions, from the model's own rule but without its hidden `rope_deltas` state.

        The next token stands right behind the last one, as `generate()` of transformers has it.
        (`rope_deltas` would put it behind the largest position so far, which is further where a
        long clip's time axis overtakes the text after it.)
        """
        config = self.model.config
        row = torch.tensor([list(ids)])
        kinds = (row == config.image_token_id).int() + 2 * (row == config.video_token_id).int()
        images = [grid for grid in grids if grid.kind == "image"]
        videos = [grid for grid in grids if grid.kind == "video"]
        place, _ = self.model.model.get_rope_index(
            row,
            kinds,
            image_grid_thw=torch.tensor([grid[1:4] for grid in images]) if images else None,
            video_grid_thw=torch.tensor([grid[1:4] for grid in videos]) if videos else None,
            second_per_grid_ts=torch.tensor([grid.step_s for grid in videos]) if videos else None,
        )
        return place[:, 0], int(place[:, 0, -1].max()) + 1

"""Ultravox: Whisper's encoder over clips of their own length, eight frames to a token, in front of a Llama, Qwen or Gemma."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from has.models.families.base import Family
from has.models.media import MediaInput
from has.models.ultravox import ARCHITECTURE


class Ultravox(Family):
    """`mel` is [chunks, bins, frames], the last chunk padded; `grid.t` says how many mel frames are sound.

    A token of silence is no token: each chunk gives ⌈frames/16⌉.
    """

    architecture = ARCHITECTURE

    def __init__(self, model: Any) -> None:
        self.model = model
        lm = model.language_model
        inner = lm.model
        self.language_model = getattr(inner, "language_model", inner)
        self.head = lm.lm_head
        self.embed = model.get_input_embeddings()
        self.text_config = model.config.get_text_config()

    @property
    def eos(self) -> int | None:
        eos: int | list[int] | None = self.model.language_model.generation_config.eos_token_id
        return eos[0] if isinstance(eos, list) else eos

    @property
    def placeholders(self) -> frozenset[int]:
        return frozenset([self.model.config.audio_token_index])

    def encoder_modules(self) -> list[torch.nn.Module]:
        return [self.model.audio_tower, self.model.multi_modal_projector]

    def encode(self, kind: str, media: Sequence[MediaInput]) -> list[Tensor]:
        mels = [item.arrays["mel"] for item in media]
        longest = max(mel.shape[-1] for mel in mels)
        chunks = torch.cat(
            [torch.nn.functional.pad(torch.from_numpy(mel), (0, longest - mel.shape[-1])) for mel in mels]
        )
        weight = self.embed.weight
        chunks = chunks.to(weight.device, weight.dtype)
        lengths = torch.tensor(
            [length for item in media for length in chunk_lengths(item)], device=weight.device
        )
        hidden = self.model.audio_tower(chunks, lengths)
        embeddings = self.model.multi_modal_projector(hidden)
        each = 2 * self.model.config.stack_factor
        tokens = [row[: -(-int(length) // each)] for row, length in zip(embeddings, lengths, strict=True)]
        parts = iter(tokens)
        return [torch.cat([next(parts) for _ in mel]) for mel in mels]


def chunk_lengths(item: MediaInput) -> list[int]:
    """Mel frames of sound in each chunk of an item."""
    chunks, _, frames = item.arrays["mel"].shape
    if chunks == 1:
        return [item.grid.t]
    return [min(frames, item.grid.t - frames * chunk) for chunk in range(chunks)]

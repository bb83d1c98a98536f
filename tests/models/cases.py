"""Bundled models, built once; prompts and reference answers from transformers' own `generate()`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from has.models.media import MediaInput, decode_media
from has.models.names import BUNDLED, Special
from has.models.stage_model import PromptInput, StageModel, load_stage_model
from has.models.synthetic import synthetic_media
from has.models.text import chat_prompt


@cache
def loaded(name: str) -> StageModel:
    return load_stage_model(name)


@dataclass(frozen=True)
class Case:
    """A request: media items and the prompt they stand in."""

    media: list[MediaInput]
    ids: list[int]

    def prompt(self, model: StageModel) -> PromptInput:
        return PromptInput(self.ids, model.encode(self.media), [item.grid for item in self.media])


def case(model: StageModel, index: int, text: str = "What is it?", sizes: tuple[int, ...] = (64,)) -> Case:
    """A prompt with one media item per entry of `sizes` (tokens), all of them different."""
    kind = BUNDLED[model.name]
    media = [
        decode_media(kind, synthetic_media(kind, model.name, 10 * index + place, 7, tokens), model.name)
        for place, tokens in enumerate(sizes)
    ]
    content: list[dict[str, str]] = [{"type": "text", "text": text}]
    for _ in media:
        content += [{"type": kind}, {"type": "text", "text": " and"}]
    ids, _ = chat_prompt([{"role": "user", "content": content}], [item.tokens for item in media])
    return Case(media, ids)


def generate(model: StageModel, request: Case, count: int) -> list[int]:
    """What transformers' own generate() answers, greedily."""
    ids = torch.tensor([request.ids])
    extra: dict[str, Any] = {}
    if request.media:
        array = "mel" if model.name == "tiny-audio" else "pixels"
        joined = torch.cat([torch.from_numpy(item.arrays[array]) for item in request.media])
        grids = torch.tensor([item.grid[1:4] for item in request.media])
        extra = {
            "tiny-image": {"pixel_values": joined},
            "tiny-audio": {"input_features": joined},
            "tiny-video": {
                "pixel_values_videos": joined,
                "video_grid_thw": grids,
                "second_per_grid_ts": torch.tensor([item.grid.step_s for item in request.media]),
                "mm_token_type_ids": (ids == Special.VIDEO).int() * 2,
            },
        }[model.name]
    out = model.family.model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, **extra
    )
    answer: list[int] = out[0, len(request.ids) :].tolist()
    return answer


def answer_alone(model: StageModel, request: Case, count: int) -> list[int]:
    """The same through the stages, one request at a time."""
    first = model.prefill([request.prompt(model)])[0]
    slots = model.slots(1, len(request.ids) + count)
    slots.load(0, first.kv, first.next_position)
    out = [int(first.logits.argmax())]
    while len(out) < count:
        out.append(int(slots.step([0], [out[-1]])[0].argmax()))
    return out

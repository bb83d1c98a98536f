"""Families beyond the bundled models, on small configurations of their own classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from has.models.bundled import draw_weights
from has.models.families import family_of
from has.models.image_rules import AnyresRule
from has.models.media import Grid, MediaInput
from has.models.pixels import anyres
from has.models.stage_model import StageModel
from tests.models.conftest import Case, answer_alone
from tests.models.test_media import picture

IMAGE = 10


def built(model: Any) -> StageModel:
    draw_weights(model, "family", 0)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return StageModel("family", family_of(model.eval().requires_grad_(False)), max_positions=4096)


@pytest.fixture(scope="module")
def llava_next() -> StageModel:
    text = hf.LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    vision = hf.CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=112,
        patch_size=14,
        projection_dim=64,
    )
    config = hf.LlavaNextConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE,
        image_grid_pinpoints=[[112, 224], [224, 112], [224, 224]],
        image_seq_length=64,
        tie_word_embeddings=False,
    )
    return built(hf.LlavaNextForConditionalGeneration(config))


RULE = AnyresRule(tile=112, patch=14, grids=((1, 2), (2, 1), (2, 2)))


def llava_case(sizes: list[tuple[int, int]]) -> Case:
    media, ids = [], [1, 50, 60]
    for seed, size in enumerate(sizes):
        image = picture(*size, seed)
        cut = anyres(image, RULE)
        media.append(
            MediaInput("image", {"pixels": cut}, RULE.image(*size), Grid("image", len(cut), size[1], size[0]))
        )
        ids += [IMAGE] * media[-1].tokens + [70, 80]
    return Case(media, ids)


@pytest.mark.parametrize("sizes", [[(224, 224)], [(300, 100), (90, 200)], [(77, 311)]])
def test_llava_next_is_generate(llava_next: StageModel, sizes: list[tuple[int, int]]) -> None:
    request = llava_case(sizes)
    most = max(len(item.arrays["pixels"]) for item in request.media)
    pixels = [
        np.pad(i.arrays["pixels"], ((0, most - len(i.arrays["pixels"])),) + ((0, 0),) * 3)
        for i in request.media
    ]
    ids = torch.tensor([request.ids])
    reference = llava_next.family.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=torch.from_numpy(np.stack(pixels)),
        image_sizes=torch.tensor([[item.grid.h, item.grid.w] for item in request.media]),
        max_new_tokens=24,
        do_sample=False,
    )[0, len(request.ids) :].tolist()
    assert [len(e) for e in llava_next.encode(request.media)] == [item.tokens for item in request.media]
    answer = answer_alone(llava_next, request, 24)
    assert answer == reference
    assert len(set(answer)) > 5

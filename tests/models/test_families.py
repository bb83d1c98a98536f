"""Families beyond the bundled models, on small configurations of their own classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from has.models.audio import SAMPLE_RATE
from has.models.bundled import draw_weights
from has.models.families import family_of
from has.models.image_rules import AnyresRule, PixelGridRule, TileRule
from has.models.media import Grid, MediaInput, decode_media
from has.models.pixels import anyres, patches, tiles
from has.models.stage_model import ChunkInput, StageModel
from tests.models.cases import Case, answer_alone
from tests.models.clips import tone
from tests.models.test_media import picture

IMAGE = 10


def built(model: Any, seed: int = 0) -> StageModel:
    draw_weights(model, "family", seed)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return StageModel("family", family_of(model.eval().requires_grad_(False)), max_positions=4096)


KINDS = {  # LM, key and value heads, a seed at which answers are lively
    "vicuna 7B, 13B": (hf.LlamaConfig, 4, 5),  # as many key and value heads as query heads
    "mistral 7B": (hf.MistralConfig, 2, 0),
    "34B": (hf.LlamaConfig, 1, 0),
}


@pytest.fixture(scope="module", params=KINDS)
def llava_next(request: pytest.FixtureRequest) -> StageModel:
    kind, kv_heads, seed = KINDS[request.param]
    text = kind(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
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
    return built(hf.LlavaNextForConditionalGeneration(config), seed)


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


@pytest.mark.parametrize(
    ("text", "norm"),
    [(hf.LlamaConfig, "rms_norm"), (hf.Qwen2Config, "layer_norm")],
    ids=["2.5-26B: InternViT-6B", "2.5-8B, 3: InternViT-300M"],
)
def test_internvl_is_generate(text: type, norm: str) -> None:
    """Tiles of two pictures in one encode; the large tower normalises queries and keys, and by RMS."""
    vision = hf.InternVLVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=[56, 56],
        patch_size=[14, 14],
        use_qk_norm=norm == "rms_norm",
        norm_type=norm,
    )
    lm = text(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, tie_word_embeddings=False)  # fmt: skip
    config = hf.InternVLConfig(
        vision_config=vision,
        text_config=lm,
        image_token_id=IMAGE,
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    model = built(hf.InternVLForConditionalGeneration(config))
    rule = TileRule(tile=56, tile_tokens=4, max_tiles=4)
    cuts = [tiles(picture(*size, seed), rule) for seed, size in enumerate([(200, 100), (70, 70)])]
    media = [MediaInput("image", {"pixels": cut}, 4 * len(cut), Grid("image", len(cut))) for cut in cuts]
    request = Case(media, [1, 50, *[IMAGE] * media[0].tokens, 60, *[IMAGE] * media[1].tokens, 70])
    ids = torch.tensor([request.ids])
    reference = model.family.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=torch.from_numpy(np.concatenate(cuts)),
        max_new_tokens=24,
        do_sample=False,
    )[0, len(request.ids) :].tolist()
    assert answer_alone(model, request, 24) == reference
    assert len(set(reference)) > 5


VIDEO, OPEN, CLOSE = 11, 8, 9


@pytest.fixture(scope="module", params=["dense", "experts"])
def qwen3_vl(request: pytest.FixtureRequest) -> StageModel:
    vision = {
        "depth": 3,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "out_hidden_size": 128,
        "patch_size": 16,
        "deepstack_visual_indexes": [0, 1],
        "num_position_embeddings": 64,
    }
    text = {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [6, 5, 5]},
    }
    ids = {
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": OPEN,
        "vision_end_token_id": CLOSE,
    }
    if request.param == "dense":
        config = hf.Qwen3VLConfig(vision_config=vision, text_config=text, tie_word_embeddings=False, **ids)
        return built(hf.Qwen3VLForConditionalGeneration(config))
    text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    config = hf.Qwen3VLMoeConfig(vision_config=vision, text_config=text, tie_word_embeddings=False, **ids)
    return built(hf.Qwen3VLMoeForConditionalGeneration(config))


def test_qwen3_vl_is_generate(qwen3_vl: StageModel) -> None:
    """An image, and a clip whose every step stands alone; deeper features travel with the embeddings."""
    rule = PixelGridRule(
        patch=16, min_pixels=32 * 32, max_pixels=96 * 96, video_min_pixels=1024, video_max_pixels=40_000,
        video_total=True, whole_groups=False, centred=True,
    )  # fmt: skip
    media = []
    for kind, frames in [("image", [picture(100, 60)]), ("video", [picture(80, 90, s) for s in range(6)])]:
        flat, grid = patches(frames, rule, video=kind == "video")
        media.append(MediaInput(kind, {"pixels": flat}, grid[0] * grid[1] * grid[2] // 4, Grid(kind, *grid)))
    step = media[1].tokens // 3
    ids = [1, 50, OPEN, *[IMAGE] * media[0].tokens, CLOSE, 60]
    for stamp in (70, 71, 72):
        ids += [stamp, OPEN, *[VIDEO] * step, CLOSE]
    request = Case(media, [*ids, 80, 81])
    tensor = torch.tensor([request.ids])
    reference = qwen3_vl.family.model.generate(
        input_ids=tensor,
        attention_mask=torch.ones_like(tensor),
        pixel_values=torch.from_numpy(media[0].arrays["pixels"]),
        image_grid_thw=torch.tensor([media[0].grid[1:4]]),
        pixel_values_videos=torch.from_numpy(media[1].arrays["pixels"]),
        video_grid_thw=torch.tensor([media[1].grid[1:4]]),
        mm_token_type_ids=(tensor == IMAGE).int() + 2 * (tensor == VIDEO).int(),
        max_new_tokens=24,
        do_sample=False,
    )[0, len(request.ids) :].tolist()
    embeddings = qwen3_vl.encode(media)
    assert [tuple(e.shape) for e in embeddings] == [(item.tokens, 3 * 128) for item in media]
    assert qwen3_vl.width == 3 * 128
    answer = answer_alone(qwen3_vl, request, 24)
    assert answer == reference
    assert len(set(answer)) > 5
    prompt = request.prompt(qwen3_vl)
    part = qwen3_vl.prefill_chunk([ChunkInput(prompt, 0, 20)])[0]
    rest = qwen3_vl.prefill_chunk([ChunkInput(prompt, 20, len(prompt.ids), part.kv)])[0]
    torch.testing.assert_close(rest.logits, qwen3_vl.prefill([prompt])[0].logits, rtol=1e-4, atol=1e-4)


AUDIO = 12


@pytest.fixture(scope="module")
def qwen2_audio() -> StageModel:
    config = hf.Qwen2AudioConfig(
        audio_config={
            "d_model": 64,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 128,
            "num_mel_bins": 128,
        },
        text_config={
            "model_type": "qwen2",
            "vocab_size": 512,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        audio_token_index=AUDIO,
    )
    return built(hf.Qwen2AudioForConditionalGeneration(config))


def test_qwen2_audio_is_generate(qwen2_audio: StageModel) -> None:
    """Sounds of different length, each padded to 30 s, in one prompt; the processor's mel frames and mask."""
    sounds = [tone(1.27, SAMPLE_RATE), tone(3.5, SAMPLE_RATE)]
    media = [decode_media("audio", samples, "qwen2-audio-7b") for samples in sounds]
    extracted = hf.WhisperFeatureExtractor(feature_size=128)(
        sounds,
        sampling_rate=SAMPLE_RATE,
        return_attention_mask=True,
        padding="max_length",
        return_tensors="pt",
    )
    mel = torch.cat([torch.from_numpy(item.arrays["mel"]) for item in media])
    torch.testing.assert_close(mel, extracted["input_features"], rtol=0, atol=1e-4)
    assert [item.grid.t for item in media] == extracted["attention_mask"].sum(-1).tolist()
    request = Case(media, [1, 50, *[AUDIO] * media[0].tokens, 60, *[AUDIO] * media[1].tokens, 70, 80])
    ids = torch.tensor([request.ids])
    reference = qwen2_audio.family.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        input_features=mel,
        feature_attention_mask=extracted["attention_mask"],
        max_new_tokens=24,
        do_sample=False,
    )[0, len(request.ids) :].tolist()
    assert answer_alone(qwen2_audio, request, 24) == reference
    assert len(set(reference)) > 5

"""Media tokens of every model that ships facts, on many sizes, against transformers' own processors.

Processors are built from class defaults and the facts' bounds; nothing is downloaded. Where transformers has none
(Ultravox), or one that only counts with a package of the vendor (Voxtral), the facts' formula is written out, over what
transformers' extractor hears. Every row states the pixel bounds it holds for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import transformers as hf

from has.files import facts
from has.models.image_rules import PixelGridRule
from has.models.tokens import media_tokens, token_rule
from tests.models.processor_folders import qwen_audio, qwen_audio_tokens
from tests.models.test_tokens import SIZES, processor_method

SECONDS = [
    *(round(0.02 + 1.37 * i, 3) for i in range(22)),
    0.005,
    0.1,
    0.5,
    1.0,
    2.0,
    2.345,
    0.165,
    5.0,
    10.0,
    15.0,
    29.99,
    30.0,
]
LONGER = [30.005, 30.01, 31.0, 45.5, 60.0, 61.7, 119.99, 600.0]
CLIPS = [(s, size) for s in (0.9, 1.6, 3.3, 7.75, 30.0, 400.0) for size in ((320, 240), (640, 360), (1280, 720), (1920, 1080), (360, 640))]  # fmt: skip


class Row(NamedTuple):
    model: str
    size: str
    min_pixels: int | None
    max_pixels: int | None
    tokens: int
    reference: int


def bounds(model: str, video: bool = False) -> tuple[int | None, int | None]:
    rule = token_rule(model)
    if not isinstance(rule, PixelGridRule):
        return None, None
    return (rule.video_min_pixels, rule.video_max_pixels) if video else (rule.min_pixels, rule.max_pixels)


def image_rows(model: str) -> Iterator[Row]:
    reference = image_reference(model)
    for width, height in SIZES:
        yield Row(
            model, f"{width}x{height}", *bounds(model), media_tokens(model, image_px=(width, height)), reference(width, height)
        )  # fmt: skip


def image_reference(model: str) -> Callable[[int, int], int]:
    if model.startswith("qwen"):
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        least, most = bounds(model)
        patch = 16 if model.startswith("qwen3") else 14
        qwen = Qwen2VLImageProcessorPil(patch_size=patch, size={"shortest_edge": least, "longest_edge": most})
        return lambda width, height: qwen.get_number_of_image_patches(height, width, {}) // 4
    if model.startswith("internvl"):
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

        tiles = GotOcr2ImageProcessorPil(
            size={"height": 448, "width": 448}, crop_to_patches=True, max_patches=12
        )
        return lambda width, height: 256 * tiles.get_number_of_image_patches(height, width, {})
    if model.startswith("llava"):
        from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

        grids = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
        llava = SimpleNamespace(
            image_processor=SimpleNamespace(image_grid_pinpoints=grids),
            patch_size=14,
            num_additional_image_tokens=0,
        )
        llava._get_unpadded_features = lambda *sizes: LlavaNextProcessor._get_unpadded_features(llava, *sizes)
        return lambda width, height: LlavaNextProcessor._get_number_of_features(
            llava, height, width, 336, 336
        )
    if model.startswith("pixtral"):
        from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

        def pixtral(width: int, height: int) -> int:
            if min(width, height) * 1024 < max(width, height):
                return media_tokens(model, image_px=(width, height))  # the processor scales a side to nothing
            high, wide = get_resize_output_image_size(np.zeros((height, width, 1), np.uint8), 1024, 16)
            return (wide // 16 + 1) * (high // 16)

        return pixtral
    return lambda width, height: 256  # gemma, by the facts' formula: whatever the size


def video_rows(model: str) -> Iterator[Row]:
    """Frames as the family's processor samples them from 25 a second, resized by its own rule."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as per_frame
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as per_clip

    three = model.startswith("qwen3")
    module = "qwen3_vl/video_processing_qwen3_vl.py" if three else "qwen2_vl/video_processing_qwen2_vl.py"
    sample = processor_method(module, "sample_frames")
    least, most = bounds(model, video=True)
    processor = SimpleNamespace(num_frames=None, fps=2, temporal_patch_size=2, min_frames=4, max_frames=768)
    rule = token_rule(model)
    for seconds, (width, height) in CLIPS:
        total = round(seconds * 25)
        frames = len(sample(processor, SimpleNamespace(total_num_frames=total, fps=25.0), fps=2))
        if three:
            high, wide = per_clip(frames, height, width, factor=32, min_pixels=least, max_pixels=most)
        else:
            high, wide = per_frame(height, width, 28, min_pixels=least, max_pixels=most)
        side = 32 if three else 28
        reference = math.ceil(frames / 2) * (high // side) * (wide // side)
        counted = rule.video_frames(rule.frame_count(total / 25, None, total), width, height)
        yield Row(model, f"{seconds} s of {width}x{height}", least, most, counted, reference)


def audio_rows(model: str) -> Iterator[Row]:
    reference = audio_reference(model)
    short = model.startswith(
        "qwen2-audio"
    )  # takes 30 s at most; its processor gives less than 30 ms no token at all
    for seconds in [s for s in SECONDS if s >= 0.03] if short else SECONDS + LONGER:
        yield Row(model, f"{seconds} s", None, None, media_tokens(model, audio_s=seconds), reference(seconds))


def audio_reference(model: str) -> Callable[[float], int]:
    if model.startswith("qwen2-audio"):
        return partial(qwen_audio_tokens, qwen_audio(hf.WhisperFeatureExtractor(feature_size=128)))
    if model.startswith("voxtral"):
        return lambda seconds: 375 * math.ceil(round(seconds / 30, 9))

    extractor = hf.WhisperFeatureExtractor(feature_size=128)

    def ultravox(seconds: float) -> int:
        """Whisper's extractor, asked as Ultravox's processor asks it; 3,000 frames a chunk, 16 a token."""
        sound = [np.zeros(max(320, round(seconds * 16_000)), np.float32)]
        asked = {"padding": "longest", "truncation": False, "pad_to_multiple_of": 160}
        heard = extractor(sound, sampling_rate=16_000, return_attention_mask=True, **asked)["attention_mask"]
        whole, rest = divmod(int(heard.sum()), 3000)
        return 188 * whole + math.ceil(rest / 16)

    return ultravox


def rows(model: str) -> list[Row]:
    if model.startswith(("ultravox", "voxtral", "qwen2-audio")):
        return list(audio_rows(model))
    found = list(image_rows(model))
    return found + (list(video_rows(model)) if model.startswith("qwen") else [])


@pytest.mark.parametrize("model", facts.models())
def test_every_named_model_counts_as_its_processor_on_thirty_sizes(model: str) -> None:
    table = rows(model)
    assert len(table) >= 30
    assert [row for row in table if row.tokens != row.reference] == []
    if model.startswith("qwen") and "audio" not in model:
        assert all(row.min_pixels and row.max_pixels for row in table)
        assert len(table) >= 60


def test_the_public_facts_are_in_the_table() -> None:
    qwen = {row.size: row for row in image_rows("qwen2.5-vl-7b")}["1920x1080"]
    assert (qwen.min_pixels, qwen.max_pixels, qwen.tokens) == (3136, 12_845_056, 2691)
    assert {row.size: row.tokens for row in image_rows("qwen3-vl-8b")}["640x640"] == 400

"""Token rules against public facts and against transformers' own processors."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from has.errors import InputError
from has.models.image_rules import PixelGridRule, TileRule
from has.models.names import BUNDLED
from has.models.tokens import media_tokens, nearest_media_tokens, token_rule

SIZES = [
    (1, 1),
    (20, 31),
    (28, 28),
    (100, 3000),
    (224, 224),
    (300, 200),
    (336, 336),
    (448, 448),
    (500, 333),
    (512, 512),
    (640, 360),
    (640, 480),
    (640, 640),
    (672, 672),
    (672, 336),
    (719, 1281),
    (800, 600),
    (896, 448),
    (1000, 1000),
    (1008, 336),
    (1024, 768),
    (1024, 1024),
    (1080, 1920),
    (1280, 720),
    (1333, 777),
    (1344, 448),
    (1600, 1200),
    (1920, 1080),
    (2000, 150),
    (2048, 2048),
    (3000, 100),
    (3840, 2160),
    (4000, 3000),
    (5000, 5000),
]


@pytest.mark.parametrize(
    ("model", "size", "tokens"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", {"image_px": (1920, 1080)}, 2691),  # max_pixels 12,845,056
        ("qwen2.5-vl-7b", {"image_px": (640, 640)}, 529),
        ("qwen2.5-vl-7b", {"image_px": (1280, 720)}, 1196),
        ("qwen3-vl-8b", {"image_px": (640, 640)}, 400),
        ("Qwen3-VL-235B-A22B", {"image_px": (1280, 720)}, 880),
        ("qwen3-vl-8b", {"image_px": (1920, 1080)}, 2040),
        ("llava-hf/llava-v1.6-34b-hf", {"image_px": (1000, 1000)}, 2928),
        ("OpenGVLab/InternVL2_5-26B", {"image_px": (4000, 3000)}, 13 * 256),
        ("internvl2.5-8b", {"image_px": (448, 448)}, 256),
        ("internvl2.5-8b", {"video_s": 60.0}, 8 * 256),
        ("pixtral-12b", {"image_px": (1024, 1024)}, 4160),
        ("gemma-3-27b", {"image_px": (3000, 200)}, 256),
        ("ultravox-v0.6-gemma-3-27b", {"audio_s": 30.0}, 188),
        ("ultravox-v0.5-llama-3.1-8b", {"audio_s": 31.0}, 188 + 7),
        ("voxtral-mini-3b", {"audio_s": 0.1}, 375),
        ("voxtral-mini-3b", {"audio_s": 30.0}, 375),
        ("voxtral-small-24b", {"audio_s": 30.1}, 750),
        ("qwen2-audio-7b", {"audio_s": 30.0}, 750),
        ("tiny-image", {"image_px": (224, 224)}, 64),
        ("tiny-image", {"image_px": (448, 224)}, 128),
        ("tiny-video", {"video_s": 4.0}, 64),
        ("tiny-audio", {"audio_s": 4.0}, 50),
    ],
)
def test_public_facts(model: str, size: dict, tokens: int) -> None:
    assert media_tokens(model, **size) == tokens


@pytest.mark.parametrize(
    ("smallest", "largest"), [(56 * 56, 28 * 28 * 1280), (3136, 12_845_056), (448 * 448, 448 * 448 * 4)]
)
def test_qwen2_images_are_the_processor_s(smallest: int, largest: int) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(size={"shortest_edge": smallest, "longest_edge": largest})
    rule = PixelGridRule(min_pixels=smallest, max_pixels=largest)
    for width, height in SIZES:
        patches = processor.get_number_of_image_patches(height, width, {})
        assert rule.image(width, height) == patches // 4


def test_qwen3_images_are_the_processor_s() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(
        patch_size=16, size={"shortest_edge": 65_536, "longest_edge": 16_777_216}
    )
    for width, height in SIZES:
        patches = processor.get_number_of_image_patches(height, width, {})
        assert media_tokens("qwen3-vl-8b", image_px=(width, height)) == patches // 4


@pytest.mark.parametrize("frames", [2, 4, 5, 9, 16, 64, 601])
def test_video_frames_are_resized_as_the_processors_do(frames: int) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as per_frame
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as per_clip

    two, three = token_rule("qwen2.5-vl-7b"), token_rule("qwen3-vl-8b")
    assert isinstance(two, PixelGridRule)
    assert isinstance(three, PixelGridRule)
    for width, height in SIZES:
        high, wide = per_frame(
            height, width, 28, min_pixels=two.video_min_pixels, max_pixels=two.video_max_pixels
        )
        assert two.resized(width, height, frames) == (wide, high)
        high, wide = per_clip(
            frames,
            height,
            width,
            factor=32,
            min_pixels=three.video_min_pixels,
            max_pixels=three.video_max_pixels,
        )
        assert three.resized(width, height, frames) == (wide, high)
        assert three.video_frames(frames, width, height) == math.ceil(frames / 2) * wide * high // 1024


def processor_method(module: str, name: str) -> Callable[..., Any]:
    """A method out of a transformers source file that cannot be imported without torchvision."""
    path = Path(transformers.__file__).parent / "models" / module
    tree = ast.parse(path.read_text())
    found = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name)
    found.decorator_list = []
    names: dict[str, Any] = {"math": math, "torch": torch, "np": np, "VideoMetadata": None}
    exec(compile(ast.Module([found], []), str(path), "exec"), names)
    return names[name]


@pytest.mark.parametrize("seconds", [0.1, 0.9, 1.0, 1.6, 2.0, 3.3, 7.75, 30.0, 64.2, 400.0])
@pytest.mark.parametrize(
    ("model", "module"),
    [
        ("qwen2.5-vl-7b", "qwen2_vl/video_processing_qwen2_vl.py"),
        ("qwen3-vl-8b", "qwen3_vl/video_processing_qwen3_vl.py"),
    ],
)
def test_video_frames_are_sampled_as_the_processors_do(model: str, module: str, seconds: float) -> None:
    total = max(4, round(seconds * 25))
    metadata = SimpleNamespace(total_num_frames=total, fps=25.0)
    processor = SimpleNamespace(num_frames=None, fps=2, temporal_patch_size=2, min_frames=4, max_frames=768)
    sampled = processor_method(module, "sample_frames")(processor, metadata, fps=2)
    rule = token_rule(model)
    assert isinstance(rule, PixelGridRule)
    assert rule.frame_count(total / 25, None, total) == len(sampled)


def test_internvl_tiles_are_the_processor_s() -> None:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    for tile, most in [(448, 12), (448, 6), (448, 40), (224, 12)]:
        processor = GotOcr2ImageProcessorPil(
            size={"height": tile, "width": tile}, crop_to_patches=True, max_patches=most
        )
        rule = TileRule(tile=tile, max_tiles=most)
        for width, height in SIZES:
            tiles = processor.get_number_of_image_patches(height, width, {})
            assert rule.image(width, height) == 256 * tiles


def test_llava_next_is_the_processor_s() -> None:
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

    grids = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    processor = SimpleNamespace(
        image_processor=SimpleNamespace(image_grid_pinpoints=grids),
        patch_size=14,
        num_additional_image_tokens=0,
    )
    processor._get_unpadded_features = lambda *sizes: LlavaNextProcessor._get_unpadded_features(
        processor, *sizes
    )
    for width, height in SIZES:
        reference = LlavaNextProcessor._get_number_of_features(processor, height, width, 336, 336)
        assert media_tokens("llava-v1.6-34b", image_px=(width, height)) == reference


def test_pixtral_is_the_processor_s() -> None:
    from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

    for width, height in SIZES:
        if min(width, height) * 1024 < max(width, height):
            continue  # the processor would scale a side to nothing
        high, wide = get_resize_output_image_size(np.zeros((height, width, 3), np.uint8), 1024, 16)
        assert media_tokens("pixtral-12b", image_px=(width, height)) == (wide // 16 + 1) * (high // 16)


@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.5, 1.0, 1.01, 2.345, 10.0, 15.5, 29.99, 30.0])
def test_audio_lengths_follow_the_encoders(seconds: float) -> None:
    """Qwen2-Audio's own formula over mel frames; Ultravox's ceiling over stacks of 8 encoder frames."""
    frames = max(3, math.ceil(seconds * 100 - 1e-6))
    assert media_tokens("qwen2-audio-7b", audio_s=seconds) == (((frames - 1) // 2 + 1) - 2) // 2 + 1
    mel = math.ceil(seconds * 100 - 1e-6)
    assert media_tokens("ultravox-v0.5-llama-3.1-8b", audio_s=seconds) == math.ceil(mel / 16)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.integers(1, 6000), st.integers(1, 6000))
def test_resized_pictures_keep_the_bounds(width: int, height: int) -> None:
    rule = PixelGridRule()
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(InputError, match="200 times"):
            rule.resized(width, height)
        return
    wide, high = rule.resized(width, height)
    assert wide % 28 == high % 28 == 0
    assert wide * high <= rule.max_pixels
    assert wide * high >= rule.min_pixels


@pytest.mark.parametrize(
    "model", [*BUNDLED, "qwen2.5-vl-7b", "internvl2.5-8b", "llava-v1.6-34b", "pixtral-12b", "ultravox"]
)
@pytest.mark.parametrize("tokens", [1, 64, 100, 300, 512, 2000])
def test_nearest_size_has_the_tokens_it_says(model: str, tokens: int) -> None:
    rule = token_rule(model)
    kind = next(k for k in ("video", "image", "audio") if _takes(rule, k))
    size = rule.nearest(kind, tokens)
    if kind == "image":
        assert rule.image(size.width, size.height) == size.tokens
    elif kind == "audio":
        assert rule.audio(size.seconds) == size.tokens
    else:
        assert rule.video(size.seconds, size.fps, size.width, size.height) == size.tokens
    others = [other.tokens for other in rule.sizes(kind)]
    assert abs(size.tokens - tokens) == min(abs(other - tokens) for other in others)
    assert nearest_media_tokens(model, kind, size.tokens) == size.tokens


def _takes(rule: object, kind: str) -> bool:
    try:
        return next(iter(rule.sizes(kind))) is not None  # type: ignore[attr-defined]
    except InputError:
        return False


@pytest.mark.parametrize(
    ("model", "size", "message"),
    [
        ("tiny-image", {"audio_s": 3.0}, "takes no audio"),
        ("tiny-audio", {"image_px": (3, 3)}, "takes no image"),
        ("tiny-image", {"video_s": 3.0}, "takes no video"),
        ("tiny-image", {"image_px": (0, 3)}, "positive"),
        ("tiny-audio", {"audio_s": 0.0}, "positive"),
        ("tiny-audio", {"audio_s": math.nan}, "positive"),
        ("tiny-video", {"video_s": math.inf}, "positive"),
        ("qwen2-audio-7b", {"audio_s": 31.0}, "no more"),
        ("some-model", {"image_px": (3, 3)}, "no token rule"),
        ("tiny-image", {}, "is needed"),
    ],
)
def test_bad_sizes_are_refused(model: str, size: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        media_tokens(model, **size)

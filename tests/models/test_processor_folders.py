"""Counts from a folder against transformers' processors, read from the same folder: every family and layout of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as hf
from PIL import Image

from has.models.media import decode_media
from has.models.tokens import media_tokens, token_rule
from tests.models.processor_folders import (
    assembled,
    clip_tokens,
    of_transformers,
    qwen_audio,
    qwen_audio_tokens,
    read_back,
    write,
)
from tests.models.test_tokens import SIZES

LAYOUTS = ["nested", "apart", "alone"]
CLIPS = [(total, size) for total in (25, 40, 190, 750, 5000) for size in ((320, 240), (640, 360), (1280, 720), (1920, 1080), (360, 640))]  # fmt: skip
QWEN_IMAGES = "qwen2_vl.image_processing_pil_qwen2_vl", "Qwen2VLImageProcessorPil"
QWEN = {
    "qwen2_5_vl": ("qwen2_5_vl.processing_qwen2_5_vl", "Qwen2_5_VLProcessor", "qwen2_vl.video_processing_qwen2_vl", "Qwen2VLVideoProcessor"),
    "qwen3_vl": ("qwen3_vl.processing_qwen3_vl", "Qwen3VLProcessor", "qwen3_vl.video_processing_qwen3_vl", "Qwen3VLVideoProcessor"),
}  # fmt: skip


def edges(shortest: int, longest: int) -> dict[str, Any]:
    return {"size": {"shortest_edge": shortest, "longest_edge": longest}}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("images", "videos"),
    [
        ({}, {}),
        (edges(3136, 12_845_056), {}),
        ({"min_pixels": 3136, "max_pixels": 602_112}, edges(4096, 25_165_824)),
        (edges(65_536, 16_777_216), {"min_frames": 8, "max_frames": 96, "fps": 1}),
        (edges(3136, 12_845_056), edges(4096, 25_165_824) | {"cap_pixels_per_frame": True}),
        ({}, {"min_pixels": 4096, "max_pixels": 401_408}),
        ({}, edges(4096, 802_816) | {"cap_pixels_per_frame": True, "max_video_tokens": 4096}),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", QWEN)
def test_qwen(tmp_path: Path, kind: str, images: Any, videos: Any, layout: str) -> None:
    module, name, clips, clip_name = QWEN[kind]
    patch = 16 if kind == "qwen3_vl" else 14  # no model takes patches of another size than its own
    image_class, clip_class = of_transformers(*QWEN_IMAGES), of_transformers(clips, clip_name)
    made = assembled(
        of_transformers(module, name),
        image_processor=image_class(patch_size=patch, **images),
        video_processor=clip_class(**videos),
    )
    config = {"model_type": kind, "vision_config": {"patch_size": patch, "spatial_merge_size": 2}}
    folder = write(tmp_path, config, layout, made)
    rule = token_rule(folder)
    processor = image_class.from_pretrained(folder)
    for width, height in SIZES:
        patches = processor.get_number_of_image_patches(height, width, {})
        assert media_tokens(folder, image_px=(width, height)) == patches // 4, (width, height)
    reference = clip_tokens(clip_class.from_pretrained(folder))
    for total, (width, height) in CLIPS:
        counted = rule.video_frames(rule.frame_count(total / 25, None, total), width, height)
        assert counted == reference(total, width, height), (total, width, height)


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-8B-Instruct"])
def test_a_qwen_by_name_counts_as_its_checkpoint_s_files(tmp_path: Path, name: str) -> None:
    """What the hub holds: Qwen2.5-VL one file, for images; Qwen3-VL one each."""
    three = "Qwen3" in name
    kind, patch = ("qwen3_vl", 16) if three else ("qwen2_5_vl", 14)
    module, cls, clips, clip_name = QWEN[kind]
    mean = [0.5, 0.5, 0.5] if three else None
    images = edges(65_536, 16_777_216) if three else {"min_pixels": 3136, "max_pixels": 12_845_056}
    clip_class = of_transformers(clips, clip_name)
    made = assembled(
        of_transformers(module, cls),
        image_processor=of_transformers(*QWEN_IMAGES)(patch_size=patch, image_mean=mean, **images),
        video_processor=clip_class(**edges(4096, 25_165_824)),
    )
    folder = write(tmp_path, {"model_type": kind}, "apart" if three else "alone", made)
    assert token_rule(folder) == token_rule(name)
    seen = clip_tokens(clip_class.from_pretrained(folder))(1500, 1280, 720)
    assert media_tokens(name, video_s=60.0, image_px=(1280, 720)) == seen
    if three:
        assert seen == 11_400


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("crop", [False, True])
@pytest.mark.parametrize(
    ("settings", "each"),
    [({}, 256), ({"size": {"height": 448, "width": 448}}, 256), ({"max_patches": 6}, 64), ({"min_patches": 3}, 256), ({"max_patches": 1}, 256)],
    ids=str,
)  # fmt: skip
def test_internvl(tmp_path: Path, settings: Any, each: int, crop: bool, layout: str) -> None:
    """Its processor asks for tiles whatever the files say of crop_to_patches."""
    cls = of_transformers("internvl.processing_internvl", "InternVLProcessor")
    image_class = of_transformers("got_ocr2.image_processing_pil_got_ocr2", "GotOcr2ImageProcessorPil")
    images = image_class(crop_to_patches=crop, **settings)
    made = assembled(
        cls,
        image_processor=images,
        video_processor=of_transformers("internvl.video_processing_internvl", "InternVLVideoProcessor")(),
        image_seq_length=each,
    )
    config = {"model_type": "internvl", "vision_config": {"image_size": [448, 448]}, "image_seq_length": 256}
    folder = write(tmp_path, config, layout, made)
    processor = read_back(cls, folder, image_processor=image_class.from_pretrained(folder))
    for width, height in SIZES:
        marks = 2
        [count] = processor._get_num_multimodal_tokens([(height, width)]).num_image_tokens
        assert media_tokens(folder, image_px=(width, height)) == count - marks
    picture = Image.fromarray(np.arange(300 * 700 * 3, dtype=np.uint8).reshape(300, 700, 3))
    item = decode_media("image", np.asarray(picture), folder)
    asked = processor._merge_kwargs()["images_kwargs"] | {"image_mean": [0.485, 0.456, 0.406]}
    tiles = processor.image_processor(picture, image_std=[0.229, 0.224, 0.225], return_tensors="np", **asked)
    assert item.arrays["pixels"].shape == tiles["pixel_values"].shape
    np.testing.assert_allclose(item.arrays["pixels"], tiles["pixel_values"], atol=2e-2)


@pytest.mark.parametrize("layout", ["nested", "apart"])
@pytest.mark.parametrize(
    ("side", "grids"),
    [
        (336, [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]),
        (336, [[672, 336], [336, 1344]]),
        (224, [[224, 448], [448, 448], [672, 224]]),
    ],
)
def test_llava_next(tmp_path: Path, side: int, grids: Any, layout: str) -> None:
    cls = of_transformers("llava_next.processing_llava_next", "LlavaNextProcessor")
    image_class = of_transformers("llava_next.image_processing_pil_llava_next", "LlavaNextImageProcessorPil")
    images = image_class(
        size={"shortest_edge": side}, crop_size={"height": side, "width": side}, image_grid_pinpoints=grids
    )
    made = assembled(
        cls,
        image_processor=images,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    folder = write(tmp_path, {"model_type": "llava_next"}, layout, made)
    processor = read_back(cls, folder, image_processor=image_class.from_pretrained(folder))
    for width, height in SIZES:
        [count] = processor._get_num_multimodal_tokens([(height, width)]).num_image_tokens
        assert media_tokens(folder, image_px=(width, height)) == count, (width, height)


@pytest.mark.parametrize("layout", ["nested", "apart"])
@pytest.mark.parametrize(("patch", "merge", "longest"), [(16, 1, 1024), (14, 2, 1540), (16, 2, 512)])
def test_pixtral(tmp_path: Path, patch: int, merge: int, longest: int, layout: str) -> None:
    cls = of_transformers("pixtral.processing_pixtral", "PixtralProcessor")
    image_class = of_transformers("pixtral.image_processing_pil_pixtral", "PixtralImageProcessorPil")
    images = image_class(size={"longest_edge": longest})
    made = assembled(cls, image_processor=images, patch_size=patch, spatial_merge_size=merge)
    config = {"model_type": "llava", "vision_config": {"model_type": "pixtral", "patch_size": 16}}
    folder = write(tmp_path, config, layout, made)
    processor = read_back(cls, folder, image_processor=image_class.from_pretrained(folder))
    for width, height in SIZES:
        if min(width, height) * longest < max(width, height):
            continue  # the processor would scale a side to nothing
        [count] = processor._get_num_multimodal_tokens([(height, width)]).num_image_tokens
        assert media_tokens(folder, image_px=(width, height)) == count, (width, height)


@pytest.mark.parametrize("layout", ["nested", "apart"])
@pytest.mark.parametrize("tokens", [64, 256])
def test_gemma3(tmp_path: Path, tokens: int, layout: str) -> None:
    cls = of_transformers("gemma3.processing_gemma3", "Gemma3Processor")
    image_class = of_transformers("gemma3.image_processing_pil_gemma3", "Gemma3ImageProcessorPil")
    made = assembled(cls, image_processor=image_class(), image_seq_length=tokens)
    folder = write(tmp_path, {"model_type": "gemma3", "mm_tokens_per_image": 16}, layout, made)
    processor = read_back(cls, folder)
    for width, height in SIZES:
        [count] = processor._get_num_multimodal_tokens([(height, width)]).num_image_tokens
        assert media_tokens(folder, image_px=(width, height)) == count


@pytest.mark.parametrize("layout", ["saved", "alone"])
@pytest.mark.parametrize("chunk", [30, 15])
def test_qwen2_audio(tmp_path: Path, chunk: int, layout: str) -> None:
    made = qwen_audio(hf.WhisperFeatureExtractor(feature_size=128, chunk_length=chunk))
    if layout == "saved":
        made.save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text('{"model_type": "qwen2_audio"}')
        folder = str(tmp_path)
    else:
        folder = write(tmp_path, {"model_type": "qwen2_audio"}, layout, made)
    processor = qwen_audio(hf.WhisperFeatureExtractor.from_pretrained(folder))
    for seconds in (0.03, 0.1, 1.0, 2.345, 7.77, 14.99, float(chunk)):
        assert media_tokens(folder, audio_s=seconds) == qwen_audio_tokens(processor, seconds)


@pytest.mark.parametrize("layout", ["nested", "alone"])
@pytest.mark.parametrize("chunk", [30, 15])
@pytest.mark.parametrize("width", [1280, 1024])
def test_voxtral(tmp_path: Path, width: int, chunk: int, layout: str) -> None:
    """Tokens are what the encoder's frames of all chunks are joined to."""
    cls = of_transformers("voxtral.processing_voxtral", "VoxtralProcessor")
    made = assembled(cls, feature_extractor=hf.WhisperFeatureExtractor(feature_size=128, chunk_length=chunk))
    audio = {"hidden_size": width, "intermediate_size": 5120}
    folder = write(tmp_path, {"model_type": "voxtral", "audio_config": audio}, layout, made)
    extractor = hf.WhisperFeatureExtractor.from_pretrained(folder)
    processor = assembled(cls, feature_extractor=extractor)
    asked = processor._merge_kwargs()["audio_kwargs"]
    for seconds in (0.1, 14.0, 30.0, 30.1, 61.0):
        sound = np.zeros(round(seconds * 16_000), np.float32)
        mel = processor._retrieve_input_features([sound], **asked)
        each = mel.shape[-1] // 2 * width // 5120
        assert media_tokens(folder, audio_s=seconds) == len(mel) * each

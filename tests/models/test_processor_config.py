"""Token rules from the files of a checkpoint, in folders as transformers writes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from has.errors import InputError
from has.models.image_rules import AnyresRule, PixelGridRule, TileRule
from has.models.media import decode_media
from has.models.tokens import media_tokens, token_rule
from tests.models.test_media import picture


def folder(tmp_path: Path, config: dict, images: dict | None = None, videos: dict | None = None) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name, content in (("preprocessor_config.json", images), ("video_preprocessor_config.json", videos)):
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))
    return str(tmp_path)


QWEN = {"model_type": "qwen2_5_vl", "vision_config": {"patch_size": 14, "spatial_merge_size": 2}}


@pytest.mark.parametrize(
    "images",
    [
        {"min_pixels": 3136, "max_pixels": 602_112},
        {"size": {"shortest_edge": 3136, "longest_edge": 602_112}},
        {"min_pixels": 3136, "max_pixels": 602_112, "size": {"shortest_edge": 1, "longest_edge": 2}},
        {"min_pixels": 3136, "max_pixels": 602_112, "size": None, "patch_size": None, "max_frames": None},
    ],
)
def test_pixel_bounds_are_the_checkpoints_own(tmp_path, images):
    model = folder(tmp_path, QWEN, images)
    rule = token_rule(model)
    assert (rule.min_pixels, rule.max_pixels) == (3136, 602_112)
    assert media_tokens(model, image_px=(1920, 1080)) <= 602_112 // 784
    assert media_tokens("qwen2.5-vl-7b", image_px=(1920, 1080)) == 2691
    item = decode_media("image", np.asarray(picture(1000, 900)), model)
    assert item.tokens == rule.image(1000, 900)


def test_clips_have_bounds_of_their_own(tmp_path):
    videos = {"size": {"shortest_edge": 4096, "longest_edge": 25_165_824}, "fps": 1, "max_frames": 32}
    qwen3 = {"model_type": "qwen3_vl", "vision_config": {"patch_size": 16}}
    images = {
        "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
        "patch_size": 16,
        "image_mean": [0.5] * 3,
    }
    rule = token_rule(folder(tmp_path, qwen3, images, videos))
    assert isinstance(rule, PixelGridRule)
    assert (rule.video_min_pixels, rule.video_max_pixels, rule.fps, rule.max_frames) == (
        4096,
        25_165_824,
        1.0,
        32,
    )
    assert rule.centred
    assert rule.video_total
    assert rule.frame_count(100.0) == 32


def test_without_a_preprocessor_config_the_family_s_usual_bounds_hold(tmp_path):
    assert token_rule(folder(tmp_path, QWEN)) == PixelGridRule()


def test_grids_tiles_and_strides(tmp_path):
    grids = [[336, 672], [672, 336], [1344, 336]]
    llava = token_rule(folder(tmp_path, {"model_type": "llava_next"}, {"image_grid_pinpoints": grids}))
    assert llava == AnyresRule(grids=((1, 2), (2, 1), (4, 1)))
    intern = {"model_type": "internvl", "vision_config": {"image_size": [448, 448]}, "image_seq_length": 256}
    (tmp_path / "preprocessor_config.json").write_text('{"max_patches": 6}')
    token_rule.__globals__["_by_files"].cache_clear()
    assert token_rule(folder(tmp_path, intern)) == TileRule(max_tiles=6, frames=8)


@pytest.mark.parametrize(
    ("config", "size", "tokens"),
    [
        ({"model_type": "ultravox", "stack_factor": 4}, {"audio_s": 30.0}, 375),
        ({"model_type": "qwen2_audio"}, {"audio_s": 30.0}, 750),
        ({"model_type": "voxtral", "audio_config": {"hidden_size": 1280, "intermediate_size": 5120}}, {"audio_s": 3.0}, 375),
        ({"model_type": "gemma3", "mm_tokens_per_image": 64}, {"image_px": (900, 100)}, 64),
        ({"model_type": "llava", "vision_config": {"model_type": "pixtral", "patch_size": 16, "image_size": 1024}}, {"image_px": (1024, 1024)}, 4160),
    ],
)  # fmt: skip
def test_families_that_need_their_config_alone(tmp_path, config, size, tokens):
    assert media_tokens(folder(tmp_path, config), **size) == tokens


@pytest.mark.parametrize(
    "images",
    [{"min_pixels": 10, "max_pixels": 3}, {"patch_size": "x"}, {"size": 5}, {"min_pixels": -1}, [1]],
    ids=repr,
)
def test_what_cannot_be_is_an_input_error(tmp_path, images):
    with pytest.raises(InputError):
        token_rule(folder(tmp_path, QWEN, images))


@pytest.mark.parametrize("part", [[1], None, {"size": 5}], ids=repr)
def test_so_is_what_cannot_be_within_a_nested_file(tmp_path, part):
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": part}))
    with pytest.raises(InputError, match="cannot be used"):
        token_rule(folder(tmp_path, QWEN))


def test_a_folder_of_an_unknown_family_goes_by_its_name(tmp_path):
    named = tmp_path / "ultravox-of-mine"
    named.mkdir()
    assert token_rule(folder(named, {"model_type": "mine"})).audio(30.0) == 188
    with pytest.raises(InputError, match="no token rule"):
        token_rule(folder(tmp_path, {"model_type": "mine"}))

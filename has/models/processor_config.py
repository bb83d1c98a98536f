"""The token rule of a checkpoint, from the configs in its folder: pixel bounds, tiles and strides as they are there.

A name says a family, and the family's usual bounds; a checkpoint may have others (Qwen's max_pixels most of all), and what
the files of its processor say is what that does. No torch, no transformers.

    file                              what is read
    config.json                       model_type; patch, merge and tile sizes; strides of sound
    processor_config.json             tokens of a tile; and, as transformers 5 writes it, in `image_processor`, `video_processor`
                                      and `feature_extractor` all that the files below would say, which then go unread
    preprocessor_config.json          min/max pixels or size, grids, min/max patches, image_mean, chunk_length
    video_preprocessor_config.json    the same for clips, frame rate and counts; without it the one above is read for clips too

Which file goes before which, and what holds where a file says nothing (the class's default, not the family's usual), is as in
transformers' processors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from has.errors import InputError
from has.files.jsonl import parse_json
from has.files.reading import read_text
from has.models.audio_rules import ChunkRule, Qwen2AudioRule, StackRule
from has.models.image_rules import QWEN3_VL, AnyresRule, FixedRule, PixelGridRule, RowBreakRule, TileRule
from has.models.rules import TokenRule

Config = Mapping[str, Any]

QWEN3_VL_CLASSES = replace(
    QWEN3_VL,
    min_pixels=56 * 56,
    max_pixels=1280 * 28 * 28,
    video_min_pixels=128 * 32 * 32,
    video_max_pixels=768 * 32 * 32,
    centred=False,
)
"""What holds where its files leave something out: its images are processed by Qwen2-VL's class."""


def rule_of_folder(folder: Path) -> TokenRule | None:
    """None for a family that has no rule here. Raises InputError for files that cannot be read, or values that cannot be."""
    config, processor, own, clips = (
        _read(folder / name)
        for name in (
            "config.json",
            "processor_config.json",
            "preprocessor_config.json",
            "video_preprocessor_config.json",
        )
    )
    kind = str(config.get("model_type", ""))
    try:
        images = _stated(processor.get("image_processor", own))
        videos = _stated(processor.get("video_processor", clips or own))
        sounds = _stated(processor.get("feature_extractor", processor.get("audio_processor", own)))
        return _rule(kind, config, processor, images, videos, sounds)
    except (TypeError, ValueError, KeyError, AttributeError, ZeroDivisionError, IndexError) as error:
        raise InputError(
            f"the processor's config cannot be used: {type(error).__name__}: {error}", where=str(folder)
        ) from error


def _rule(
    kind: str, config: Config, processor: Config, images: Config, videos: Config, sounds: Config
) -> TokenRule | None:
    vision = config.get("vision_config") or {}
    if kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"):
        return _pixel_grid(kind, vision, images, videos)
    if kind == "llava_next":
        tile = _side(images.get("crop_size") or vision.get("image_size", 336))
        patch = int(processor.get("patch_size") or vision.get("patch_size", 14))
        grids = images.get("image_grid_pinpoints") or config.get("image_grid_pinpoints")
        rule = AnyresRule(tile=tile, patch=patch)
        if not grids:
            return rule
        # A grid is written as pixels, height first; the order decides between equally good ones.
        return replace(rule, grids=tuple((int(high) // tile, int(wide) // tile) for high, wide in grids))
    if kind == "internvl":
        # Its processor cuts into tiles whatever crop_to_patches says in the files.
        return TileRule(
            tile=_side(images.get("size") or vision.get("image_size", 448)),
            tile_tokens=int(processor.get("image_seq_length", config.get("image_seq_length", 256))),
            max_tiles=int(images.get("max_patches", 12)),
            min_tiles=int(images.get("min_patches", 1)),
            frames=int(videos.get("num_frames") or 8),
        )
    if kind == "llava" and vision.get("model_type") == "pixtral":
        longest = (images.get("size") or {}).get("longest_edge", vision.get("image_size", 1024))
        patch = processor.get("patch_size", images.get("patch_size", vision.get("patch_size", 16)))
        return RowBreakRule(
            patch=_side(patch) * int(processor.get("spatial_merge_size", 1)), longest=int(longest)
        )
    if kind == "gemma3":
        usual = images.get("image_seq_length", config.get("mm_tokens_per_image", 256))
        return FixedRule(int(processor.get("image_seq_length", usual)))
    if kind == "ultravox":
        return StackRule(stack=int(config.get("stack_factor", 8)))
    if kind == "qwen2_audio":
        return Qwen2AudioRule(max_s=float(sounds.get("chunk_length", 30)))
    if kind == "voxtral":
        # Its processor pads to 30 s whatever chunk_length says in the files.
        audio = config.get("audio_config") or {}
        joined = int(audio.get("intermediate_size", 5120)) // int(audio.get("hidden_size", 1280))
        return ChunkRule(chunk_tokens=1500 // joined)
    return None


def _pixel_grid(kind: str, vision: Config, images: Config, videos: Config) -> PixelGridRule:
    three = kind.startswith("qwen3")
    usual = PixelGridRule() if not three else QWEN3_VL_CLASSES if images or videos else QWEN3_VL
    least, most = _bounds(images, usual.min_pixels, usual.max_pixels)
    # Qwen3-VL's class for clips knows no min_pixels and max_pixels.
    clips = {"size": videos.get("size")} if three else videos
    clip_least, clip_most = _bounds(clips, usual.video_min_pixels, usual.video_max_pixels)
    capped = bool(videos.get("cap_pixels_per_frame"))
    return replace(
        usual,
        patch=int(images.get("patch_size", vision.get("patch_size", usual.patch))),
        merge=int(images.get("merge_size", vision.get("spatial_merge_size", usual.merge))),
        temporal=int(images.get("temporal_patch_size", vision.get("temporal_patch_size", usual.temporal))),
        min_pixels=least,
        max_pixels=most,
        video_min_pixels=clip_least,
        video_max_pixels=clip_most,
        frame_tokens=int(videos.get("max_video_tokens", 768 if three else 128_000)) if capped else None,
        centred=_centred(images, usual.centred),
        video_centred=_centred(videos, usual.video_centred),
        min_frames=int(videos.get("min_frames", usual.min_frames)),
        max_frames=int(videos.get("max_frames", usual.max_frames)),
        fps=float(videos.get("fps") or usual.fps),
    )


def _bounds(media: Config, least: int, most: int) -> tuple[int, int]:
    """min_pixels and max_pixels go before size, as in the processors."""
    size = media.get("size") or {}
    found = (
        int(media.get("min_pixels") or size.get("shortest_edge") or least),
        int(media.get("max_pixels") or size.get("longest_edge") or most),
    )
    if not 0 < found[0] <= found[1]:
        raise ValueError(f"min_pixels {found[0]}, max_pixels {found[1]}")
    return found


def _centred(media: Config, usual: bool) -> bool:
    mean = media.get("image_mean")
    return list(mean) == [0.5, 0.5, 0.5] if mean else usual


def _stated(settings: Config) -> Config:
    """Without what is null there: to a processor that is the same as absent."""
    return {name: value for name, value in settings.items() if value is not None}


def _side(value: Any) -> int:
    if isinstance(value, Mapping):
        value = value["height"]
    return int(value[0] if isinstance(value, list | tuple) else value)


def _read(path: Path) -> dict[str, Any]:
    """An absent file says nothing."""
    if not path.is_file():
        return {}
    content = parse_json(read_text(path), str(path))
    if not isinstance(content, dict):
        raise InputError("holds no mapping", where=str(path))
    return content

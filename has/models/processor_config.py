"""The token rule of a checkpoint, from the configs in its folder: pixel bounds, tiles and strides as they are there.

A name says a family, and the family's usual bounds; a checkpoint may have others (Qwen's max_pixels most of all), and what
its preprocessor_config.json says is what its processor does. No torch, no transformers.

    file                              what is read
    config.json                       model_type; patch, merge and tile sizes; chunks and strides of sound
    preprocessor_config.json          min/max pixels or size.shortest/longest_edge, grids, max_patches, image_mean
    video_preprocessor_config.json    the same for clips, frame rate and counts
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
from has.models.image_rules import AnyresRule, FixedRule, PixelGridRule, RowBreakRule, TileRule
from has.models.rules import TokenRule

Config = Mapping[str, Any]


def rule_of_folder(folder: Path) -> TokenRule | None:
    """None for a family that has no rule here. Raises InputError for files that cannot be read, or values that cannot be."""
    config = _read(folder / "config.json")
    images = _read(folder / "preprocessor_config.json")
    videos = _read(folder / "video_preprocessor_config.json") or images
    kind = str(config.get("model_type", ""))
    try:
        return _rule(kind, config, images, videos)
    except (TypeError, ValueError, KeyError, AttributeError, ZeroDivisionError, IndexError) as error:
        raise InputError(
            f"the processor's config cannot be used: {type(error).__name__}: {error}", where=str(folder)
        ) from error


def _rule(kind: str, config: Config, images: Config, videos: Config) -> TokenRule | None:
    vision = config.get("vision_config") or {}
    if kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"):
        return _pixel_grid(kind, vision, images, videos)
    if kind == "llava_next":
        tile, patch = int(vision.get("image_size", 336)), int(vision.get("patch_size", 14))
        grids = images.get("image_grid_pinpoints") or config.get("image_grid_pinpoints")
        rule = AnyresRule(tile=tile, patch=patch)
        if not grids:
            return rule
        # A grid is written as pixels, height first; the order decides between equally good ones.
        return replace(rule, grids=tuple((int(high) // tile, int(wide) // tile) for high, wide in grids))
    if kind == "internvl":
        tile = _side(vision.get("image_size", 448))
        each = int(config.get("image_seq_length", 256))
        whole = images.get("crop_to_patches", True)
        return TileRule(tile, each, int(images.get("max_patches", 12)) if whole else 1, frames=8)
    if kind == "llava" and vision.get("model_type") == "pixtral":
        longest = (images.get("size") or {}).get("longest_edge", vision.get("image_size", 1024))
        return RowBreakRule(
            patch=_side(images.get("patch_size", vision.get("patch_size", 16))), longest=int(longest)
        )
    if kind == "gemma3":
        return FixedRule(int(images.get("image_seq_length", config.get("mm_tokens_per_image", 256))))
    if kind == "ultravox":
        return StackRule(stack=int(config.get("stack_factor", 8)))
    if kind == "qwen2_audio":
        return Qwen2AudioRule(max_s=float(images.get("chunk_length", 30)))
    if kind == "voxtral":
        seconds = float(images.get("chunk_length", 30))
        audio = config.get("audio_config") or {}
        joined = int(audio.get("intermediate_size", 5120)) // int(audio.get("hidden_size", 1280))
        return ChunkRule(seconds, round(50 * seconds) // joined)
    return None


def _pixel_grid(kind: str, vision: Config, images: Config, videos: Config) -> PixelGridRule:
    three = kind.startswith("qwen3")
    usual = PixelGridRule()
    if three:
        usual = PixelGridRule(
            patch=16,
            min_pixels=65_536,
            max_pixels=16_777_216,
            video_min_pixels=128 * 32 * 32,
            video_max_pixels=768 * 32 * 32,
            video_total=True,
            whole_groups=False,
            centred=True,
        )
    least, most = _bounds(images, usual.min_pixels, usual.max_pixels)
    # Image and clip bounds are told apart only where clips have a file of their own.
    clip_least, clip_most = usual.video_min_pixels, usual.video_max_pixels
    if videos is not images:
        clip_least, clip_most = _bounds(videos, clip_least, clip_most)
    mean = images.get("image_mean")
    return replace(
        usual,
        patch=int(images.get("patch_size", vision.get("patch_size", usual.patch))),
        merge=int(images.get("merge_size", vision.get("spatial_merge_size", usual.merge))),
        temporal=int(images.get("temporal_patch_size", vision.get("temporal_patch_size", usual.temporal))),
        min_pixels=least,
        max_pixels=most,
        video_min_pixels=clip_least,
        video_max_pixels=clip_most,
        centred=usual.centred if not mean else list(mean) == [0.5, 0.5, 0.5],
        min_frames=int(videos.get("min_frames", usual.min_frames)),
        max_frames=int(videos.get("max_frames", usual.max_frames)),
        fps=float(videos.get("fps") or usual.fps),
    )


def _bounds(images: Config, least: int, most: int) -> tuple[int, int]:
    """min_pixels and max_pixels go before size, as in the processors."""
    size = images.get("size") or {}
    found = (
        int(images.get("min_pixels") or size.get("shortest_edge") or least),
        int(images.get("max_pixels") or size.get("longest_edge") or most),
    )
    if not 0 < found[0] <= found[1]:
        raise ValueError(f"min_pixels {found[0]}, max_pixels {found[1]}")
    return found


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

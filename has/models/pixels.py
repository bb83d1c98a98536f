"""Pixels to what a vision tower eats: resizing, tiles, patches. NumPy and Pillow, no torch.

The families' own processors do the same; tests hold the two equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from has.models.image_rules import AnyresRule, PixelGridRule, TileRule

if TYPE_CHECKING:
    from PIL.Image import Image

Floats = npt.NDArray[np.float32]

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
CENTRED = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Mean and standard deviation of each colour, for pixels scaled to 0..1."""


def tiles(image: Image, rule: TileRule) -> Floats:
    """[tiles, 3, tile, tile]: the image stretched over its grid and cut row by row, thumbnail last."""
    columns, rows = rule.tiles(*image.size)
    side = rule.tile
    sheet = _pixels(image, columns * side, rows * side, *IMAGENET)
    cut = sheet.reshape(3, rows, side, columns, side).transpose(1, 3, 0, 2, 4).reshape(-1, 3, side, side)
    if rule.thumbnail and len(cut) > 1:
        cut = np.concatenate([cut, _pixels(image, side, side, *IMAGENET)[None]])
    return np.ascontiguousarray(cut)


def anyres(image: Image, rule: AnyresRule) -> Floats:
    """[1 + rows·columns, 3, tile, tile]: the whole image in one tile, then the best grid, row by row.

    On its grid the image keeps its aspect ratio, centred on black.
    """
    from PIL import Image as pillow

    rows, columns = rule.best_grid(*image.size)
    side = rule.tile
    wide, high = columns * side, rows * side
    if wide / image.width < high / image.height:
        fitted = (wide, min(math.ceil(image.height * (wide / image.width)), high))
    else:
        fitted = (min(math.ceil(image.width * (high / image.height)), wide), high)
    sheet = pillow.new("RGB", (wide, high))
    place = ((wide - fitted[0]) // 2, (high - fitted[1]) // 2)
    sheet.paste(image.resize(fitted, pillow.Resampling.BICUBIC), place)
    grid = _pixels(sheet, wide, high, *CLIP)
    cut = grid.reshape(3, rows, side, columns, side).transpose(1, 3, 0, 2, 4).reshape(-1, 3, side, side)
    return np.concatenate([_pixels(image, side, side, *CLIP)[None], cut])


def patches(
    frames: Sequence[Image], rule: PixelGridRule, *, video: bool
) -> tuple[Floats, tuple[int, int, int]]:
    """Patches [t·h·w, 3·temporal·patch²] and the grid (t, h, w) in patches.

    Patches of one merge square lie together. An image is one frame, repeated to fill `temporal`.
    """
    wide, high = rule.resized(*frames[0].size, len(frames) if video else None)
    statistics = CENTRED if (rule.video_centred if video else rule.centred) else CLIP
    sheet = np.stack([_pixels(frame, wide, high, *statistics) for frame in frames])
    missing = -len(sheet) % rule.temporal
    if missing:
        sheet = np.concatenate([sheet, np.repeat(sheet[-1:], missing, axis=0)])
    side, merge = rule.patch, rule.merge
    grid = (len(sheet) // rule.temporal, high // side, wide // side)
    blocks = sheet.reshape(
        grid[0], rule.temporal, 3, grid[1] // merge, merge, side, grid[2] // merge, merge, side
    )
    flat = blocks.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(grid[0] * grid[1] * grid[2], -1)
    return np.ascontiguousarray(flat), grid


def _pixels(
    image: Image, width: int, height: int, mean: tuple[float, ...], deviation: tuple[float, ...]
) -> Floats:
    """[3, height, width], normalised."""
    from PIL import Image as pillow

    if image.size != (width, height):
        image = image.resize((width, height), pillow.Resampling.BICUBIC)
    raw = np.asarray(image, dtype=np.float32).transpose(2, 0, 1) * np.float32(1 / 255)
    scaled: Floats = (raw - np.array(mean, np.float32)[:, None, None]) / np.array(deviation, np.float32)[
        :, None, None
    ]
    return scaled

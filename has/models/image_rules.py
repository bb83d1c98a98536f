"""Token rules of vision families."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from has.errors import InputError
from has.models.rules import MediaSize, TokenRule, positive_px, positive_s


@dataclass(frozen=True, slots=True)
class FixedRule(TokenRule):
    """Gemma 3: every image has the same number of tokens."""

    tokens: int = 256

    def image(self, width: int, height: int) -> int:
        positive_px(width, height)
        return self.tokens

    def sizes(self, kind: str) -> Iterator[MediaSize]:
        if kind != "image":
            raise self.not_taken(kind)
        yield MediaSize("image", self.tokens, 896, 896)


@dataclass(frozen=True, slots=True)
class TileRule(TokenRule):
    """InternVL: an image becomes columns x rows square tiles of `tile_tokens`, and a thumbnail if more than one.

    The grid is the one of `min_tiles` to `max_tiles` tiles whose aspect ratio is nearest to the
    image's. Of equally near ones, tried by rising tile count, a later one wins only if the image
    covers more than half of it (InternVL's `dynamic_preprocess`). A video is one tile a frame.
    """

    tile: int = 448
    tile_tokens: int = 256
    max_tiles: int = 12
    min_tiles: int = 1
    thumbnail: bool = True
    frames: int | None = None
    """Frames sampled from a video however long; None where the family takes no video."""

    def _grids(self) -> list[tuple[int, int]]:
        return [
            (columns, rows)
            for columns in range(1, self.max_tiles + 1)
            for rows in range(1, self.max_tiles // columns + 1)
            if columns * rows >= self.min_tiles
        ]

    def tiles(self, width: int, height: int) -> tuple[int, int]:
        """Columns and rows of tiles."""
        positive_px(width, height)
        aspect = width / height
        best, best_gap = (1, 1), math.inf
        for columns, rows in sorted(self._grids(), key=math.prod):
            gap = abs(aspect - columns / rows)
            covers_half = width * height > 0.5 * self.tile**2 * columns * rows
            if gap < best_gap or (gap == best_gap and covers_half):
                best, best_gap = (columns, rows), gap
        return best

    def image(self, width: int, height: int) -> int:
        columns, rows = self.tiles(width, height)
        count = columns * rows
        return self.tile_tokens * (count + (self.thumbnail and count > 1))

    def video(self, seconds: float, fps: float | None, width: int, height: int) -> int:
        if self.frames is None:
            raise self.not_taken("video")
        positive_s(seconds, "video_s")
        return self.tile_tokens * (max(1, int(seconds * fps + 1e-9)) if fps else self.frames)

    def sizes(self, kind: str) -> Iterator[MediaSize]:
        if kind != "image":
            raise self.not_taken(kind)
        for columns, rows in self._grids():
            width, height = columns * self.tile, rows * self.tile
            yield MediaSize("image", self.image(width, height), width, height)


@dataclass(frozen=True, slots=True)
class AnyresRule(TokenRule):
    """LLaVA-NeXT (1.6): one overview tile, and the image on the best of a few grids of tiles, unpadded.

    Each row of the unpadded grid ends with a newline token. The best grid keeps most of the
    image's pixels, then wastes least.
    """

    tile: int = 336
    patch: int = 14
    grids: tuple[tuple[int, int], ...] = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))
    """Rows and columns of tiles, in the order of the family's configuration."""

    def best_grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tiles."""
        positive_px(width, height)

        def worth(grid: tuple[int, int]) -> tuple[int, int]:
            high, wide = grid[0] * self.tile, grid[1] * self.tile
            scale = min(wide / width, high / height)
            kept = min(int(width * scale) * int(height * scale), width * height)
            return kept, kept - wide * high

        return max(self.grids, key=worth)  # the first of the best, as the processor does

    def image(self, width: int, height: int) -> int:
        side = self.tile // self.patch
        rows, columns = self.best_grid(width, height)
        high, wide = rows * side, columns * side
        if width / height > wide / high:
            high -= (high - int(round(height * (wide / width), 7))) // 2 * 2
        else:
            wide -= (wide - int(round(width * (high / height), 7))) // 2 * 2
        return side * side + high * wide + high

    def sizes(self, kind: str) -> Iterator[MediaSize]:
        if kind != "image":
            raise self.not_taken(kind)
        for width in range(2 * self.patch, 3 * self.tile + 1, 2 * self.patch):
            for height in range(2 * self.patch, 3 * self.tile + 1, 2 * self.patch):
                yield MediaSize("image", self.image(width, height), width, height)


@dataclass(frozen=True, slots=True)
class RowBreakRule(TokenRule):
    """Pixtral: the image fitted into a square, one token per patch, and a break or end after each row."""

    patch: int = 16
    longest: int = 1024

    def image(self, width: int, height: int) -> int:
        positive_px(width, height)
        ratio = max(width / self.longest, height / self.longest)
        if ratio > 1:
            width, height = math.floor(width / ratio), math.floor(height / ratio)
        return (-(-width // self.patch) + 1) * -(-height // self.patch)

    def sizes(self, kind: str) -> Iterator[MediaSize]:
        if kind != "image":
            raise self.not_taken(kind)
        for width in range(self.patch, self.longest + 1, self.patch):
            for height in range(self.patch, self.longest + 1, self.patch):
                yield MediaSize("image", self.image(width, height), width, height)


@dataclass(frozen=True, slots=True)
class PixelGridRule(TokenRule):
    """Qwen2-VL, 2.5-VL, 3-VL: sides rounded to multiples of patch·merge, area kept within min and max pixels.

    One token per patch·merge square of an image, and per square and `temporal` frames of a video.
    A video's pixel bounds hold per frame, or over all its frames together (`video_total`,
    Qwen3-VL, whose time stamps between frames are text and not counted here). Its frame count is
    a multiple of `temporal` (Qwen2-VL, 2.5-VL), or is filled up by repeating the last frame
    (`whole_groups` false). `frame_tokens`, where there are any, bound a frame besides: a number of tokens
    (Qwen3-VL), or its even share of nine tenths of as many over all frames (Qwen2-VL, 2.5-VL). Pixels are
    normalised by CLIP's statistics, or to -1..1 (`centred`, `video_centred`).
    """

    patch: int = 14
    merge: int = 2
    temporal: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    video_min_pixels: int = 128 * 28 * 28
    video_max_pixels: int = 768 * 28 * 28
    video_total: bool = False
    frame_tokens: int | None = None
    whole_groups: bool = True
    centred: bool = False
    video_centred: bool = False
    min_frames: int = 4
    max_frames: int = 768
    fps: float = 2.0
    frame_px: tuple[int, int] = (1280, 720)

    @property
    def factor(self) -> int:
        """Pixels along a side of the square that becomes one token."""
        return self.patch * self.merge

    @property
    def video_frame_px(self) -> tuple[int, int]:
        return self.frame_px

    def resized(self, width: int, height: int, frames: int | None = None) -> tuple[int, int]:
        """Width and height after resizing; `frames` for a video, None for an image."""
        positive_px(width, height)
        factor = self.factor
        if max(width, height) > 200 * min(width, height):
            raise InputError(
                "the longer side is more than 200 times the shorter", field="image_px", value=[width, height]
            )
        least, most = self.min_pixels, self.max_pixels
        depth = whole_depth = 1
        if frames is not None:
            least, most = self.video_min_pixels, self._most_video_pixels(frames)
            if self.video_total:
                depth, whole_depth = frames, round(frames / self.temporal) * self.temporal
                if min(width, height) < factor:
                    scale = factor / min(width, height)
                    width, height = int(width * scale), int(height * scale)
        wide, high = round(width / factor) * factor, round(height / factor) * factor
        if whole_depth * wide * high > most:
            scale = math.sqrt(depth * width * height / most)
            wide = max(factor, math.floor(width / scale / factor) * factor)
            high = max(factor, math.floor(height / scale / factor) * factor)
        elif whole_depth * wide * high < least:
            scale = math.sqrt(least / (depth * width * height))
            wide = math.ceil(width * scale / factor) * factor
            high = math.ceil(height * scale / factor) * factor
        return wide, high

    def _most_video_pixels(self, frames: int) -> int:
        """Of a frame, or of all with `video_total`. Frames are never bound closer than just above the least."""
        most, floor = self.video_max_pixels, int(self.video_min_pixels * 1.05)
        if self.frame_tokens is None:
            return most
        pixels = self.frame_tokens * self.factor**2
        if self.video_total:
            return frames * max(min(pixels, most // frames), floor)
        return max(min(most, int(pixels * 0.9) * self.temporal // frames), floor)

    def frame_count(self, seconds: float, fps: float | None = None, available: int | None = None) -> int:
        """Frames sampled from a clip of `seconds` that has `available` frames: fps·seconds, within the bounds."""
        positive_s(seconds, "video_s")
        if fps is not None:
            positive_s(fps, "fps")
        most = self.max_frames if available is None else min(self.max_frames, available)
        group = self.temporal if self.whole_groups else 1
        frames = min(max(seconds * (fps or self.fps), self.min_frames), most)
        return max(group, math.floor(frames / group) * group)

    def image(self, width: int, height: int) -> int:
        wide, high = self.resized(width, height)
        return (wide // self.factor) * (high // self.factor)

    def video(self, seconds: float, fps: float | None, width: int, height: int) -> int:
        return self.video_frames(self.frame_count(seconds, fps), width, height)

    def video_frames(self, frames: int, width: int, height: int) -> int:
        """Tokens of a video of which `frames` frames were taken."""
        wide, high = self.resized(width, height, frames)
        return -(-frames // self.temporal) * (wide // self.factor) * (high // self.factor)

    def sizes(self, kind: str) -> Iterator[MediaSize]:
        if kind == "video":
            width, height = self.frame_px
            first = -(-self.min_frames // self.temporal) * self.temporal
            for frames in range(first, self.max_frames + 1, self.temporal):
                tokens = self.video_frames(frames, width, height)
                yield MediaSize("video", tokens, width, height, frames, self.fps, frames / self.fps)
        elif kind == "image":
            yield from self._images()
        else:
            raise self.not_taken(kind)

    def _images(self) -> Iterator[MediaSize]:
        """Grids of whole squares within the pixel bounds, no side over twice the other."""
        factor = self.factor
        for rows in range(1, math.isqrt(2 * self.max_pixels) // factor + 1):
            for columns in range(-(-rows // 2), 2 * rows + 1):
                if self.min_pixels <= rows * columns * factor**2 <= self.max_pixels:
                    yield MediaSize("image", rows * columns, columns * factor, rows * factor)


QWEN3_VL = PixelGridRule(
    patch=16,
    min_pixels=65_536,
    max_pixels=16_777_216,
    video_min_pixels=4096,
    video_max_pixels=25_165_824,
    video_total=True,
    whole_groups=False,
    centred=True,
    video_centred=True,
)
"""With the bounds of its checkpoints; those of its classes are others."""

"""How a model family turns the size of a media item into a number of LM tokens.

Pure arithmetic, exact against the families' own processors: no pixels, no torch. A rule answers
for the modalities its family takes and refuses the others. The layout methods (`tiles`, `resized`,
`frame_count`) are what the preprocessing in `has.models.pixels` follows, so counts and embeddings
cannot part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from has.errors import InputError


@dataclass(frozen=True, slots=True)
class MediaSize:
    """Size of a media item: pixels (of a frame, for a video), frames at `fps`, seconds; and its LM tokens."""

    kind: str
    tokens: int
    width: int = 0
    height: int = 0
    frames: int = 0
    fps: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenRule:
    """Base: refuses every modality. Sizes are pixels (width, height) and seconds."""

    def image(self, width: int, height: int) -> int:
        raise _not_taken(self, "image")

    def video(self, seconds: float, fps: float | None, width: int, height: int) -> int:
        raise _not_taken(self, "video")

    def audio(self, seconds: float) -> int:
        raise _not_taken(self, "audio")

    def nearest(self, kind: str, tokens: int) -> MediaSize:
        """The size of an item of `kind` whose token count is nearest to `tokens` (the smaller one on a tie)."""
        raise _not_taken(self, kind)

    @property
    def video_frame_px(self) -> tuple[int, int]:
        """The frame size assumed where none is known."""
        return (1280, 720)

    @property
    def video_fps(self) -> float:
        """Frames sampled per second where nothing else is asked."""
        return 2.0


def _not_taken(rule: TokenRule, kind: str) -> InputError:
    names = [
        name
        for name in ("image", "video", "audio")
        if getattr(type(rule), name) is not getattr(TokenRule, name)
    ]
    return InputError(f"this model takes no {kind}", field="modality", value=kind, allowed=", ".join(names))


@dataclass(frozen=True, slots=True)
class TileRule(TokenRule):
    """InternVL: an image becomes columns x rows square tiles, each of `tile_tokens`, and a thumbnail if more than one.

    The grid is the one with at most `max_tiles` tiles whose aspect ratio is nearest to the
    image's; among equally near ones, tried by rising tile count, a later grid wins only if the
    image has more than half its area (`dynamic_preprocess` of InternVL; the processor of
    transformers bounds the count from below as well). A video is one tile a frame.
    """

    tile: int = 448
    tile_tokens: int = 256
    min_tiles: int = 1
    max_tiles: int = 12
    thumbnail: bool = True

    def tiles(self, width: int, height: int) -> tuple[int, int]:
        """Columns and rows of tiles."""
        _positive(width, height)
        grids = sorted(
            {
                (columns, rows)
                for columns in range(1, self.max_tiles + 1)
                for rows in range(1, self.max_tiles + 1)
                if self.min_tiles <= columns * rows <= self.max_tiles
            },
            key=lambda grid: (grid[0] * grid[1], grid),
        )
        aspect = width / height
        best, best_gap = (1, 1), math.inf
        for columns, rows in grids:
            gap = abs(aspect - columns / rows)
            if gap < best_gap:
                best, best_gap = (columns, rows), gap
            elif gap == best_gap and width * height > 0.5 * self.tile**2 * columns * rows:
                best = (columns, rows)
        return best

    def image(self, width: int, height: int) -> int:
        columns, rows = self.tiles(width, height)
        count = columns * rows
        return self.tile_tokens * (count + (self.thumbnail and count > 1))

    def nearest(self, kind: str, tokens: int) -> MediaSize:
        if kind != "image":
            raise _not_taken(self, kind)
        sizes = [
            MediaSize("image", self.image(width, height), width, height)
            for columns in range(1, self.max_tiles + 1)
            for rows in range(1, self.max_tiles // columns + 1)
            for width, height in [(columns * self.tile, rows * self.tile)]
        ]
        return min(sizes, key=lambda size: (abs(size.tokens - tokens), size.tokens, size.width * size.height))


@dataclass(frozen=True, slots=True)
class PixelGridRule(TokenRule):
    """Qwen2-VL, 2.5-VL, 3-VL: sides rounded to multiples of patch·merge, area kept within min and max pixels.

    One token per patch·merge square of an image, and per square and `temporal` frames of a video.
    `video_total` counts the pixel bounds of a video over all its frames (Qwen3-VL), otherwise
    they hold per frame. `total_pixels` is what all frames of one video may have together
    (Qwen2.5-VL's reference preprocessing), None for no such bound.
    """

    patch: int = 14
    merge: int = 2
    temporal: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    video_min_pixels: int = 128 * 28 * 28
    video_max_pixels: int = 768 * 28 * 28
    video_total: bool = False
    min_frames: int = 4
    max_frames: int = 768
    frame_px: tuple[int, int] = (1280, 720)
    fps: float = 2.0

    @property
    def factor(self) -> int:
        return self.patch * self.merge

    @property
    def video_frame_px(self) -> tuple[int, int]:
        return self.frame_px

    @property
    def video_fps(self) -> float:
        return self.fps

    def resized(self, width: int, height: int, frames: int | None = None) -> tuple[int, int]:
        """Width and height after resizing; `frames` for a video, None for an image."""
        _positive(width, height)
        if max(width, height) / min(width, height) > 200:
            raise InputError(
                "the longer side is more than 200 times the shorter",
                field="image_px",
                value=[width, height],
            )
        factor = self.factor
        least, most = self.min_pixels, self.max_pixels
        if frames is not None:
            least, most = self.video_min_pixels, self.video_max_pixels
        depth = area = 1
        if frames is not None and self.video_total:
            depth = frames
            area = _round_even(frames / self.temporal) * self.temporal
        height_bar = (
            max(factor, _round_even(height / factor) * factor)
            if self.video_total
            else (_round_even(height / factor) * factor)
        )
        width_bar = (
            max(factor, _round_even(width / factor) * factor)
            if self.video_total
            else (_round_even(width / factor) * factor)
        )
        if area * height_bar * width_bar > most:
            scale = math.sqrt(depth * height * width / most)
            height_bar = max(factor, math.floor(height / scale / factor) * factor)
            width_bar = max(factor, math.floor(width / scale / factor) * factor)
        elif area * height_bar * width_bar < least:
            scale = math.sqrt(least / (depth * height * width))
            height_bar = math.ceil(height * scale / factor) * factor
            width_bar = math.ceil(width * scale / factor) * factor
        return width_bar, height_bar

    def frame_count(self, seconds: float, fps: float | None, available: int | None = None) -> int:
        """Frames sampled from a clip: fps·seconds within the bounds, whole groups of `temporal`."""
        wanted = seconds * (fps or self.fps)
        most = self.max_frames if available is None else min(self.max_frames, available)
        frames = min(max(wanted, self.min_frames), most)
        return max(self.temporal, math.floor(frames / self.temporal) * self.temporal)

    def image(self, width: int, height: int) -> int:
        wide, high = self.resized(width, height)
        return (wide // self.factor) * (high // self.factor)

    def video(self, seconds: float, fps: float | None, width: int, height: int) -> int:
        return self.video_frames(self.frame_count(seconds, fps), width, height)

    def video_frames(self, frames: int, width: int, height: int) -> int:
        """Tokens of `frames` sampled frames; the last one is repeated to fill a group."""
        wide, high = self.resized(width, height, frames)
        return -(-frames // self.temporal) * (wide // self.factor) * (high // self.factor)

    def nearest(self, kind: str, tokens: int) -> MediaSize:
        if kind == "video":
            wide, high = self.resized(*self.frame_px, self.min_frames)
            each = (wide // self.factor) * (high // self.factor)
            steps = range(-(-self.min_frames // self.temporal), self.max_frames // self.temporal + 1)
            step = min(steps, key=lambda step: (abs(step * each - tokens), step))
            frames = step * self.temporal
            return MediaSize(
                "video",
                self.video_frames(frames, wide, high),
                wide,
                high,
                frames,
                self.fps,
                frames / self.fps,
            )
        if kind != "image":
            raise _not_taken(self, kind)
        return next(
            MediaSize("image", columns * rows, columns * self.factor, rows * self.factor)
            for columns, rows in self._grids_near(tokens)
            if self.resized(columns * self.factor, rows * self.factor)
            == (columns * self.factor, rows * self.factor)
        )

    def _grids_near(self, tokens: int) -> Iterator[tuple[int, int]]:
        """Grids of squares by distance of their count from `tokens`, no side over four times the other."""
        least = math.ceil(self.min_pixels / self.factor**2)
        most = self.max_pixels // self.factor**2
        for count in sorted(range(least, most + 1), key=lambda count: (abs(count - tokens), count)):
            for rows in range(math.isqrt(count), 0, -1):
                if count % rows == 0 and count // rows <= 4 * rows:
                    yield count // rows, rows


@dataclass(frozen=True, slots=True)
class ChunkRule(TokenRule):
    """Voxtral: audio is padded to whole chunks, each of which has `chunk_tokens`."""

    chunk_s: float = 30.0
    chunk_tokens: int = 375

    def chunks(self, seconds: float) -> int:
        if not seconds > 0:
            raise InputError("must be positive", field="audio_s", value=seconds)
        # half a sample of slack: a clip cut to exactly one chunk must not become two
        return max(1, math.ceil(seconds / self.chunk_s - 1e-6))

    def audio(self, seconds: float) -> int:
        return self.chunks(seconds) * self.chunk_tokens

    def nearest(self, kind: str, tokens: int) -> MediaSize:
        if kind != "audio":
            raise _not_taken(self, kind)
        below = max(1, tokens // self.chunk_tokens)
        chunks = min(below, below + 1, key=lambda count: abs(count * self.chunk_tokens - tokens))
        return MediaSize("audio", chunks * self.chunk_tokens, seconds=chunks * self.chunk_s)


def _positive(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise InputError("both sides must be positive", field="image_px", value=[width, height])


def _round_even(value: float) -> int:
    """Python's round: halves to even, as the processors do."""
    return round(value)

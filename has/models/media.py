"""A media item on its way to the encoder: from bytes or arrays to a `MediaInput`.

Limits are checked on headers, before pixels or samples are decoded: a small file that claims a
huge picture is refused in a moment. Every fault of the data is an InputError.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from has.errors import InputError
from has.models import audio, pixels
from has.models.audio_rules import ChunkRule, Qwen2AudioRule, StackRule, mel_frames
from has.models.image_rules import AnyresRule, PixelGridRule, TileRule
from has.models.names import is_bundled
from has.models.tokens import token_rule

if TYPE_CHECKING:
    from PIL.Image import Image

MEL_BINS, LARGE_MEL_BINS = 80, 128
"""Mel bins of the bundled audio model, and of encoders shaped like Whisper large-v3."""


class Grid(NamedTuple):
    """Where a media item's embeddings stand in space and time; only M-RoPE models look at it.

    t, h, w count patches before merging; `step_s` is the time between two temporal patches.
    (For LLaVA-NeXT t counts tiles, and h, w are the picture's own pixels, by which it unpads.)
    """

    kind: str
    t: int = 1
    h: int = 1
    w: int = 1
    step_s: float = 1.0


@dataclass(frozen=True, slots=True)
class MediaInput:
    """One media item, decoded and resized. `tokens` LM embeddings will come out of its encoding.

    `arrays` holds what the family's encoder takes: `pixels` [tiles, 3, side, side] or
    [patches, patch width], or `mel` [chunks, bins, frames]; float32, C-contiguous.
    """

    kind: str
    arrays: dict[str, npt.NDArray[np.float32]]
    tokens: int
    grid: Grid

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """What one media item may be: bytes as sent, pixels of an image or frame, seconds; a clip's frames
    and its pixels over all of them, which is what decoding costs."""

    max_bytes: int = 64 * 2**20
    max_pixels: int = 50_000_000
    max_seconds: float = 1800.0
    decoded_frames: int = 50_000
    max_clip_pixels: int = 20_000_000_000

    def check_bytes(self, kind: str, size: int) -> None:
        self._check(kind, size, self.max_bytes, "bytes")

    def check_pixels(self, kind: str, width: int, height: int) -> None:
        self._check(kind, width * height, self.max_pixels, "pixels")

    def check_seconds(self, kind: str, seconds: float) -> None:
        self._check(kind, seconds, self.max_seconds, "seconds")

    def check_clip(self, frames: int, width: int, height: int) -> None:
        self._check("video", frames, self.decoded_frames, "frames")
        self._check("video", frames * width * height, self.max_clip_pixels, "pixels in all")

    @staticmethod
    def _check(kind: str, size: float, most: float, unit: str) -> None:
        if size > most:
            raise InputError(
                f"the {kind} is too large",
                field=kind,
                value=f"{size:g} {unit}",
                allowed=f"up to {most:g} {unit}",
            )


LIMITS = MediaLimits()

Raw = bytes | npt.NDArray[Any] | Sequence[bytes] | Sequence[npt.NDArray[Any]]
"""Encoded bytes; a uint8 image [h, w, 3]; a video's frames, encoded or [n, h, w, 3]; or 16 kHz mono samples."""


def decode_media(
    kind: str, data: Raw, model: str, limits: MediaLimits = LIMITS, *, fps: float | None = None
) -> MediaInput:
    """Decode, resize and normalise one item for `model`.

    `kind` is image, video or audio. A video is a file (frames are sampled from it at the model's
    rate) or a sequence of frames, which are all used and taken to be `fps` a second.

    Raises InputError: not decodable, over a limit, too many tokens, or a kind the model does not take.
    """
    rule = token_rule(model)
    if kind == "image" and isinstance(rule, TileRule):
        cut = pixels.tiles(load_image(data, limits), rule)
        return MediaInput(kind, {"pixels": cut}, len(cut) * rule.tile_tokens, Grid(kind, len(cut)))
    if kind == "image" and isinstance(rule, AnyresRule):
        image = load_image(data, limits)
        cut = pixels.anyres(image, rule)
        tokens = rule.image(*image.size)
        return MediaInput(kind, {"pixels": cut}, tokens, Grid(kind, len(cut), image.height, image.width))
    if kind in ("image", "video") and isinstance(rule, PixelGridRule):
        if kind == "image":
            frames, rate = [load_image(data, limits)], rule.fps
        else:
            frames, rate = _frames(data, rule, limits, fps)
        flat, grid = pixels.patches(frames, rule, video=kind == "video")
        tokens = grid[0] * grid[1] * grid[2] // rule.merge**2
        return MediaInput(kind, {"pixels": flat}, tokens, Grid(kind, *grid, step_s=rule.temporal / rate))
    if kind == "audio" and isinstance(rule, Qwen2AudioRule):
        samples = _samples(data, limits)
        seconds = len(samples) / audio.SAMPLE_RATE
        tokens, heard = rule.audio(seconds), mel_frames(seconds)
        whole = np.pad(samples, (0, round(rule.max_s * audio.SAMPLE_RATE) - len(samples)))
        return MediaInput(
            kind, {"mel": audio.log_mel(whole, LARGE_MEL_BINS)[None]}, tokens, Grid(kind, heard)
        )
    if kind == "audio" and isinstance(rule, StackRule):
        return _stacked(_samples(data, limits), rule)
    if kind == "audio" and isinstance(rule, ChunkRule):
        samples = _samples(data, limits)
        chunks = rule.chunks(len(samples) / audio.SAMPLE_RATE)
        whole = np.pad(samples, (0, round(chunks * rule.chunk_s * audio.SAMPLE_RATE) - len(samples)))
        bins = MEL_BINS if is_bundled(model) else LARGE_MEL_BINS
        mel = audio.log_mel(whole, bins).reshape(bins, chunks, -1).transpose(1, 0, 2)
        return MediaInput(
            kind, {"mel": np.ascontiguousarray(mel)}, chunks * rule.chunk_tokens, Grid(kind, chunks)
        )
    return _refuse(kind, model)


def _stacked(samples: npt.NDArray[np.float32], rule: StackRule) -> MediaInput:
    """Chunks of up to 30 s, none padded to it: all are as long as the first; `grid.t` counts the frames of sound."""
    whole = round(rule.chunk_s * audio.SAMPLE_RATE)
    samples = np.pad(samples, (0, -len(samples) % audio.HOP))
    pieces = [samples[start : start + whole] for start in range(0, len(samples), whole)]
    mels = [audio.log_mel(piece, LARGE_MEL_BINS) for piece in pieces]
    frames, longest = sum(mel.shape[-1] for mel in mels), mels[0].shape[-1]
    mel = np.stack([np.pad(mel, ((0, 0), (0, longest - mel.shape[-1]))) for mel in mels])
    return MediaInput("audio", {"mel": mel}, rule.frames(frames), Grid("audio", frames))


def _refuse(kind: str, model: str) -> MediaInput:
    token_rule(model).nearest(kind, 1)  # says what the model does take
    raise InputError(f"{model} has no preprocessing for {kind}", field="modality", value=kind)


def load_image(data: Any, limits: MediaLimits = LIMITS) -> Image:
    """An upright RGB picture from jpeg, png, webp, gif or bmp bytes, or a uint8 array [h, w, 3].

    Transparency is laid on white.
    """
    from PIL import Image as pillow
    from PIL import ImageOps

    if isinstance(data, np.ndarray):
        if data.ndim != 3 or data.shape[2] != 3 or data.dtype != np.uint8 or not data.size:
            raise InputError("an image array must be uint8 of shape [height, width, 3]", field="image")
        return pillow.fromarray(data)
    limits.check_bytes("image", len(data))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # our own limit follows
            image: Image = pillow.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP", "GIF", "BMP"))
        limits.check_pixels("image", *image.size)
        image.load()
        image = ImageOps.exif_transpose(image)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = pillow.alpha_composite(pillow.new("RGBA", image.size, "white"), image)
        return image.convert("RGB")
    except InputError:
        raise
    except pillow.DecompressionBombError:
        raise InputError(
            "the image is too large", field="image", allowed=f"up to {limits.max_pixels:g} pixels"
        ) from None
    except Exception as error:  # Pillow's plugins raise whatever a broken file makes them stumble over
        raise InputError(
            "the image cannot be decoded", field="image", allowed="jpeg, png, webp, gif, bmp"
        ) from error


def _frames(
    data: Raw, rule: PixelGridRule, limits: MediaLimits, fps: float | None
) -> tuple[list[Image], float]:
    if isinstance(data, bytes | bytearray | memoryview):
        from has.models.video import load_frames

        limits.check_bytes("video", len(data))
        return load_frames(
            bytes(data), limits, lambda seconds, available: rule.frame_count(seconds, fps, available)
        )
    if not len(data):
        raise InputError("the video has no frame", field="video")
    if len(data) > rule.max_frames:
        raise InputError(
            "the video has too many frames",
            field="video",
            value=f"{len(data)} frames",
            allowed=f"up to {rule.max_frames} frames",
        )
    limits.check_bytes("video", sum(len(f) if isinstance(f, bytes) else f.nbytes for f in data))
    frames = [load_image(frame, limits) for frame in data]
    if len({frame.size for frame in frames}) > 1:
        frames = [frame.resize(frames[0].size) for frame in frames]
    return frames, fps or rule.fps


def _samples(data: Any, limits: MediaLimits) -> npt.NDArray[np.float32]:
    if isinstance(data, np.ndarray):
        if data.ndim != 1 or not data.size or data.dtype.kind != "f":
            raise InputError("audio samples must be a float array [n] at 16 kHz", field="audio")
        limits.check_seconds("audio", len(data) / audio.SAMPLE_RATE)
        return data.astype(np.float32, copy=False)
    limits.check_bytes("audio", len(data))
    return audio.load_audio(bytes(data), limits.max_seconds)

"""Media for trials: random, different for every request, of a wanted number of tokens."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
import numpy.typing as npt

from has.models.audio import SAMPLE_RATE
from has.models.tokens import token_rule

DEFAULT_TOKENS = {"image": 64, "video": 64, "audio": 50}


def synthetic_media(
    kind: str, model: str, index: int, seed: int = 0, tokens: int | None = None
) -> npt.NDArray[Any]:
    """Item `index` of a stream of random media: what `decode_media` takes for `kind`.

    An image [h, w, 3] or a video [frames, h, w, 3], uint8, or samples [n], float32; sized so that
    `model` gets the count nearest to `tokens`. The same arguments give the same item.
    """
    size = token_rule(model).nearest(kind, DEFAULT_TOKENS[kind] if tokens is None else tokens)
    rng = np.random.Generator(np.random.PCG64([seed, index]))
    if kind == "audio":
        time = np.arange(round(size.seconds * SAMPLE_RATE), dtype=np.float32) / SAMPLE_RATE
        tones = rng.uniform(80.0, 4000.0, 6).astype(np.float32)
        sound = np.sin(2 * np.pi * tones[:, None] * time + rng.uniform(0, 6, (6, 1)).astype(np.float32))
        return np.asarray(0.1 * sound.sum(axis=0), np.float32)
    depth = size.frames if kind == "video" else 1
    coarse = rng.integers(0, 256, (depth, -(-size.height // 16), -(-size.width // 16), 3), dtype=np.uint8)
    blocks = coarse.repeat(16, axis=1).repeat(16, axis=2)[:, : size.height, : size.width]
    return np.ascontiguousarray(blocks if kind == "video" else blocks[0])


def media_bytes(kind: str, item: npt.NDArray[Any]) -> bytes | list[bytes]:
    """A synthetic item as a client would send it: PNG, a list of PNG frames, or a 16-bit WAV file."""
    if kind == "audio":
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(SAMPLE_RATE)
            file.writeframes((np.clip(item, -1, 1) * 32767).astype("<i2").tobytes())
        return buffer.getvalue()
    if kind == "video":
        return [_png(frame) for frame in item]
    return _png(item)


def _png(pixels: npt.NDArray[Any]) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()

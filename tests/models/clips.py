"""Small clips and sounds, encoded on the spot."""

from __future__ import annotations

import io
from functools import cache

import av
import numpy as np
import soundfile

RATE = 22_050


def tone(seconds: float = 3.0, rate: int = RATE) -> np.ndarray:
    at = np.arange(round(seconds * rate)) / rate
    return (0.3 * np.sin(2 * np.pi * 440 * at) + 0.1 * np.sin(2 * np.pi * 1500 * at)).astype(np.float32)


@cache
def clip(container: str, frames: int = 30, fps: int = 10) -> bytes:
    """Grey frames of 64 x 48, frame i of brightness 8·i."""
    codec = {"mp4": "mpeg4", "matroska": "mpeg4", "avi": "mpeg4", "webm": "libvpx"}[container]
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as out:
        stream = out.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for index in range(frames):
            grey = np.full((48, 64, 3), min(255, 8 * index), np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(grey, "rgb24")))
        out.mux(stream.encode())
    return buffer.getvalue()


@cache
def sound(kind: str, seconds: float = 3.0) -> bytes:
    """A two-tone sound as WAV, FLAC, OGG, MP3 (libsndfile) or m4a (FFmpeg's AAC)."""
    buffer = io.BytesIO()
    samples = tone(seconds)
    if kind != "m4a":
        soundfile.write(buffer, samples, RATE, format=kind)
        return buffer.getvalue()
    with av.open(buffer, "w", format="mp4") as out:
        stream = out.add_stream("aac", rate=RATE)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        frame.rate = RATE
        out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return buffer.getvalue()


@cache
def stream_of(frames: int) -> bytes:
    """A clip as it comes from a camera: nothing in it says how long it is. Frames of 64 x 48."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska", options={"live": "1"}) as out:
        stream = out.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(frames):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), "rgb24")))
        out.mux(stream.encode())
    return buffer.getvalue()

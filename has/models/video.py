"""Video containers through PyAV: sampled frames, and the sound track. No torch.

A file's container is told from its first bytes and only that demuxer is opened: FFmpeg also knows
playlists and lists of files, which could make it read other files or addresses.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from has.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

    from has.models.media import MediaLimits


def container_of(data: bytes) -> str | None:
    """FFmpeg's name of the demuxer for `data`, or None if it is none of those accepted."""
    head = data[:16]
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free"):
        return "mov"
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return "matroska"
    if head.startswith(b"RIFF"):
        return {b"AVI ": "avi", b"WAVE": "wav"}.get(head[8:12])
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if head.startswith(b"OggS"):
        return "ogg"
    if head.startswith(b"FLV"):
        return "flv"
    if head.startswith(b"\x00\x00\x01\xba"):
        return "mpeg"
    if head[:1] == b"\x47" and data[188:189] == b"\x47":
        return "mpegts"
    if head.startswith(b"ID3") or (head[:1] == b"\xff" and head[1:2] > b"\xdf"):
        return "mp3"
    return None


@contextmanager
def _opened(data: bytes, field: str) -> Iterator[Any]:
    import av

    demuxer = container_of(data)
    if demuxer is None:
        raise InputError(
            f"not a {field} file that can be read",
            field=field,
            allowed="mp4, mov, webm, mkv, avi, gif, ogg, ts",
        )
    try:
        with av.open(io.BytesIO(data), format=demuxer, metadata_errors="ignore") as container:
            yield container
    except (av.error.FFmpegError, EOFError, MemoryError, IndexError) as error:
        raise InputError(f"the {field} cannot be decoded: {error}", field=field) from error


def load_frames(
    data: bytes, limits: MediaLimits, count_for: Callable[[float, int], int]
) -> tuple[list[Image], float]:
    """Frames spread evenly over the clip, and how many of them fall on a second.

    `count_for(seconds, frames)` says how many to take of a clip. Size, length and frame count are
    checked against the header first, and again while decoding.
    """
    with _opened(data, "video") as container:
        if not container.streams.video:
            raise InputError("the file has no video track", field="video")
        stream = container.streams.video[0]
        stream.thread_count = 1
        width, height = stream.codec_context.width, stream.codec_context.height
        limits.check_pixels("video", width, height)
        rate = float(stream.average_rate or stream.guessed_rate or 25)
        seconds = _seconds(container, stream)
        limits.check_seconds("video", seconds)
        total = stream.frames or round(seconds * rate)
        if total < 1:
            for total, frame in enumerate(container.decode(stream), start=1):
                limits.check_clip(total, frame.width, frame.height)
            container.seek(0)
        limits.check_clip(total, width, height)
        wanted = max(1, min(count_for(total / rate, total), total))
        indices = {int(index * total / wanted) for index in range(wanted)}
        frames: list[Image] = []
        for number, frame in enumerate(container.decode(stream)):
            limits.check_clip(number + 1, frame.width, frame.height)
            if number in indices:
                limits.check_pixels("video", frame.width, frame.height)
                frames.append(frame.to_image())
                if len(frames) == wanted:
                    break
    if not frames:
        raise InputError("the video has no frame", field="video")
    return frames, len(frames) * rate / total


def load_sound(data: bytes, max_s: float) -> tuple[npt.NDArray[np.float32], int]:
    """Samples [n, 1] of the first sound track and their rate; decoding stops just after `max_s`."""
    import av

    with _opened(data, "audio") as container:
        if not container.streams.audio:
            raise InputError("the file has no audio track", field="audio")
        stream = container.streams.audio[0]
        stream.thread_count = 1
        rate = int(stream.codec_context.sample_rate or 0)
        resampler = av.AudioResampler(format="flt", layout="mono", rate=rate or None)
        pieces: list[npt.NDArray[np.float32]] = []
        length = 0
        for frame in container.decode(stream):
            for piece in resampler.resample(frame):
                pieces.append(piece.to_ndarray().reshape(-1, 1).astype(np.float32))
                length += len(pieces[-1])
            if length > max_s * max(rate, 1):
                break
    samples = np.concatenate(pieces) if pieces else np.zeros((0, 1), np.float32)
    return samples, rate


def _seconds(container: Any, stream: Any) -> float:
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return float(container.duration or 0) / 1e6

"""Bounds on what one request may bring, and the checks that need no decoding.

Pixels, seconds and frames are read from headers here, before the request is admitted; the decoder
checks them again against what a file really holds (`has.models.media`).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from has.errors import InputError
from has.gateway.errors import BadRequest, TooLarge
from has.gateway.job import MediaBytes
from has.models.media import MediaLimits

MIB = 2**20
QUICK_IMAGES = 2
QUICK_BYTES = MIB
"""Headers of so many images of that size are read in some tenth of a millisecond."""


@dataclass(frozen=True, slots=True)
class Limits:
    """
    body_bytes        of the HTTP body, media included (base64 adds a third)
    bodies_bytes      of all bodies held at once; more are refused (429)
    silence_s         between two pieces of a body
    media_items       in one request
    messages          in one request
    remote_s          time in all to fetch one remote medium
    redirects         followed for one remote medium
    media             pixels, seconds, frames and bytes of one medium
    expansion         decoded bytes over encoded bytes of an image; only above `expansion_floor`
                      decoded bytes, as small plain pictures honestly compress a thousandfold
    """

    body_bytes: int = 64 * MIB
    bodies_bytes: int = 1024 * MIB
    silence_s: float = 30.0
    media_items: int = 64
    messages: int = 1024
    remote_s: float = 10.0
    redirects: int = 3
    media: MediaLimits = field(default_factory=MediaLimits)
    expansion: float = 250.0
    expansion_floor: int = 24 * MIB

    def are_quick(self, media: Sequence[MediaBytes]) -> bool:
        """Whether checking all of them takes less than handing them to a thread would."""
        return len(media) <= QUICK_IMAGES and all(
            medium.kind == "image" and len(medium.data) <= QUICK_BYTES for medium in media
        )

    def check_all(self, media: Iterable[MediaBytes]) -> list[MediaBytes]:
        """`check` each in turn."""
        return [self.check(medium) for medium in media]

    def check(self, medium: MediaBytes) -> MediaBytes:
        """`medium`, with the size of an image. Raises TooLarge if it passes a bound, BadRequest if it is plainly not what it is said to be."""
        size = None
        try:
            if isinstance(medium.data, tuple):
                self.media.check_bytes("video", sum(map(len, medium.data)))
                for frame in medium.data:
                    self.media.check_clip(len(medium.data), *self._image(frame))
            else:
                self.media.check_bytes(medium.kind, len(medium.data))
                if medium.kind == "image":
                    size = self._image(medium.data)
                elif medium.kind == "audio":
                    self._audio(medium.data)
        except BadRequest as error:
            error.param, error.field = medium.param, medium.param or ""
            raise
        except InputError as error:
            raise TooLarge(f"{error.message}: {error.value}, {error.allowed}", medium.param) from error
        return medium if size is None else replace(medium, size=size)

    def _image(self, data: bytes) -> tuple[int, int]:
        """Width and height, by the header."""
        from PIL import Image

        try:
            # Only headers are read here; Pillow's own bomb check would fire on sizes that we allow.
            with Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP", "GIF", "BMP")) as image:
                width, height = image.size
        except Image.DecompressionBombError as error:
            raise TooLarge(f"the image is too large: up to {self.media.max_pixels} pixels") from error
        except Exception as error:  # Pillow's plugins raise whatever a broken file makes them stumble over
            raise BadRequest("not an image that can be read; allowed: jpeg, png, webp, gif, bmp") from error
        self.media.check_pixels("image", width, height)
        decoded = width * height * 3
        if decoded > self.expansion_floor and decoded > self.expansion * len(data):
            raise TooLarge(
                f"the image expands {decoded / len(data):.0f}-fold to {decoded / MIB:.0f} MiB; allowed: {self.expansion:.0f}-fold"
            )
        return width, height

    def _audio(self, data: bytes) -> None:
        import soundfile

        try:
            info = soundfile.info(io.BytesIO(data))
        except soundfile.LibsndfileError:
            return  # another container, which the decoder knows or refuses
        if info.samplerate > 0:
            self.media.check_seconds("audio", info.frames / info.samplerate)

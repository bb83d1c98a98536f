"""How a model family turns the size of a media item into a number of LM tokens: what rules have in common.

Pure arithmetic, exact against the families' own processors: no pixels, no torch. A rule answers
for the modalities its family takes and refuses the others. The layout methods (`tiles`, `resized`,
`frame_count`, `chunks`) are what preprocessing follows, so counts and embeddings cannot part.
"""

from __future__ import annotations

from collections.abc import Iterable
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
        """LM tokens of an image."""
        raise self.not_taken("image")

    def video(self, seconds: float, fps: float | None, width: int, height: int) -> int:
        """LM tokens of a clip sampled at `fps` (None: the family's own rate)."""
        raise self.not_taken("video")

    def audio(self, seconds: float) -> int:
        """LM tokens of a sound."""
        raise self.not_taken("audio")

    def sizes(self, kind: str) -> Iterable[MediaSize]:
        """Sizes worth choosing from when media of a wanted token count are made; may be long."""
        raise self.not_taken(kind)

    def nearest(self, kind: str, tokens: int) -> MediaSize:
        """The size of an item of `kind` whose token count is nearest to `tokens` (the smaller count on a tie)."""
        return min(
            self.sizes(kind),
            key=lambda size: (
                abs(size.tokens - tokens),
                size.tokens,
                max(size.width, size.height),
                size.seconds,
            ),
        )

    @property
    def video_frame_px(self) -> tuple[int, int]:
        """The frame size assumed where none is known."""
        return (1280, 720)

    def takes(self, kind: str) -> bool:
        """Whether the family takes this modality at all."""
        return getattr(type(self), kind) is not getattr(TokenRule, kind)

    def not_taken(self, kind: str) -> InputError:
        takes = [name for name in ("image", "video", "audio") if self.takes(name)]
        return InputError(
            f"this model takes no {kind}", field="modality", value=kind, allowed=", ".join(takes)
        )


def positive_px(width: int, height: int) -> None:
    """Raise InputError unless both sides are positive."""
    if width < 1 or height < 1:
        raise InputError("both sides must be positive", field="image_px", value=[width, height])


def positive_s(seconds: float, field: str) -> None:
    """Raise InputError unless `seconds` is positive and finite."""
    if not 0 < seconds < float("inf"):
        raise InputError("must be positive", field=field, value=seconds)

"""Media tokens of a model: which rule is whose, and the sizes the bundled models can produce."""

from __future__ import annotations

from typing import Final

from has.errors import InputError
from has.models.rules import ChunkRule, PixelGridRule, TileRule, TokenRule

BUNDLED_RULES: Final[dict[str, TokenRule]] = {
    "tiny-image": TileRule(tile=224, tile_tokens=64, max_tiles=12, thumbnail=False),
    "tiny-video": PixelGridRule(
        max_pixels=448 * 448,
        video_min_pixels=56 * 56,
        video_max_pixels=112 * 112,
        min_frames=2,
        max_frames=96,
        frame_px=(112, 112),
    ),
    "tiny-audio": ChunkRule(chunk_s=4.0, chunk_tokens=50),
}


def token_rule(model: str) -> TokenRule:
    """The rule of `model`. Raises InputError where none is known."""
    rule = BUNDLED_RULES.get(model)
    if rule is None:
        raise InputError(
            "no token rule is known for this model",
            field="model",
            value=model,
            allowed=", ".join(BUNDLED_RULES),
            mend="give media_tokens instead of a media size",
        )
    return rule


def media_tokens(
    model: str,
    *,
    image_px: tuple[int, int] | None = None,
    video_s: float | None = None,
    fps: float | None = None,
    audio_s: float | None = None,
) -> int:
    """LM tokens of one media item of `model`, exact.

    `image_px` (width, height) alone is an image; with `video_s` it is the size of a frame.
    `fps` is how many frames a second are sampled, by default the model's own.

    Raises InputError for an unknown model, a modality it does not take, or no size at all.
    """
    rule = token_rule(model)
    if video_s is not None:
        return rule.video(video_s, fps, *(image_px or rule.video_frame_px))
    if audio_s is not None:
        return rule.audio(audio_s)
    if image_px is not None:
        return rule.image(*image_px)
    raise InputError("one of image_px, video_s, audio_s is needed", field="media")


def nearest_media_tokens(model: str, kind: str, tokens: int) -> int:
    """The count nearest to `tokens` that one item of `kind` can really have (the smaller one on a tie).

    Trials on the bundled models round their requests with it, so that what is simulated is what runs.
    """
    return token_rule(model).nearest(kind, tokens).tokens

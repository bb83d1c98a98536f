"""Media tokens of a model: which rule is whose, and what the bundled models can produce."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from has.errors import InputError
from has.models.audio_rules import ChunkRule, Qwen2AudioRule, StackRule
from has.models.folders import find_folder
from has.models.image_rules import QWEN3_VL, AnyresRule, FixedRule, PixelGridRule, RowBreakRule, TileRule
from has.models.names import BUNDLED
from has.models.processor_config import rule_of_folder
from has.models.rules import TokenRule

TINY_IMAGE: Final = TileRule(tile=224, tile_tokens=64, thumbnail=False)
TINY_VIDEO: Final = PixelGridRule(
    max_pixels=448 * 448,
    video_min_pixels=56 * 56,
    video_max_pixels=112 * 112,
    min_frames=2,
    max_frames=96,
    frame_px=(112, 112),
)
TINY_AUDIO: Final = ChunkRule(chunk_s=4.0, chunk_tokens=50)

_RULES: Final[tuple[tuple[str, TokenRule], ...]] = (
    ("tiny-image$", TINY_IMAGE),
    ("tiny-video$", TINY_VIDEO),
    ("tiny-audio$", TINY_AUDIO),
    ("ultravox", StackRule()),
    ("voxtral", ChunkRule()),
    ("qwen2-audio", Qwen2AudioRule()),
    ("llava-(v1-6|next)", AnyresRule()),
    ("internvl(2|3)", TileRule(frames=8)),
    # Pixel bounds as the instruct models' preprocessor_config.json has them, which their processors take for a
    # clip's frames too; the classes' own defaults are lower (max 1,003,520 for an image).
    (
        "qwen2(-5)?-vl",
        PixelGridRule(max_pixels=12_845_056, video_min_pixels=56 * 56, video_max_pixels=12_845_056),
    ),
    ("qwen3-vl", QWEN3_VL),
    ("pixtral", RowBreakRule()),
    ("gemma-?3", FixedRule()),
)
"""First match wins, at the start of the plain name (see `plain_name`)."""


def plain_name(model: str) -> str:
    """A Hugging Face id, folder or shipped name, reduced: last part, lower case, dots and underscores as dashes."""
    return re.sub(r"[._]", "-", model.rstrip("/").rsplit("/", 1)[-1].lower())


def token_rule(model: str) -> TokenRule:
    """The rule of `model`: by its files where they are here, else by the family that its name says.

    Raises InputError where none is known.
    """
    if model in BUNDLED:
        return _by_name(model)
    found = _by_files(model) if "/" in model else None
    return found or _by_name(model)


@cache
def _by_files(model: str) -> TokenRule | None:
    folder = find_folder(model)
    return None if folder is None else rule_of_folder(folder)


def _by_name(model: str) -> TokenRule:
    name = plain_name(model)
    for pattern, rule in _RULES:
        if re.match(pattern, name):
            return rule
    raise InputError(
        "no token rule is known for this model",
        field="model",
        value=model,
        allowed="the bundled models; LLaVA-1.6, Qwen2/2.5/3-VL, InternVL2.5/3, Pixtral, Gemma 3, Ultravox, Voxtral, Qwen2-Audio",
        mend="give media_tokens instead of a media size",
    )


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

"""One adapter per model family."""

from __future__ import annotations

from typing import Any

from has.errors import MissingError
from has.models.families.base import Family
from has.models.families.internvl import InternVL
from has.models.families.llava_next import LlavaNext
from has.models.families.qwen2_5_vl import Qwen2_5VL
from has.models.families.qwen2_audio import Qwen2Audio
from has.models.families.qwen3_vl import Qwen3VL, Qwen3VLMoe
from has.models.families.ultravox import Ultravox
from has.models.families.voxtral import Voxtral

FAMILIES: tuple[type[Family], ...] = (
    InternVL,
    LlavaNext,
    Qwen2_5VL,
    Qwen2Audio,
    Qwen3VL,
    Qwen3VLMoe,
    Ultravox,
    Voxtral,
)


__all__ = [
    "FAMILIES",
    "Family",
    "InternVL",
    "LlavaNext",
    "Qwen2Audio",
    "Qwen2_5VL",
    "Qwen3VL",
    "Qwen3VLMoe",
    "Ultravox",
    "Voxtral",
    "family_of",
]


def family_of(model: Any) -> Family:
    """The adapter for a transformers model. Raises MissingError where none is written."""
    for family in FAMILIES:
        if type(model).__name__ == family.architecture:
            return family(model)
    raise MissingError(
        f"no adapter for {type(model).__name__}",
        mend="use one of " + ", ".join(family.architecture for family in FAMILIES),
    )

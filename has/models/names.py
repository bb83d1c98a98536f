"""The bundled tiny models: their names, what they take, and the special ids of their vocabulary."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

BUNDLED: Final[dict[str, str]] = {"tiny-image": "image", "tiny-video": "video", "tiny-audio": "audio"}
"""Bundled model -> the modality it is meant for. tiny-video also takes still images, as Qwen2.5-VL does."""

VOCAB_SIZE: Final = 2048
MAX_POSITIONS: Final = 8192


class Special(IntEnum):
    """Ids below the 256 byte ids. The bundled models never stop at EOS: their weights are random."""

    PAD = 0
    BOS = 1
    EOS = 2
    SYSTEM = 3
    USER = 4
    ASSISTANT = 5
    TOOL = 6
    END = 7
    MEDIA_START = 8
    MEDIA_END = 9
    IMAGE = 10
    VIDEO = 11
    AUDIO = 12


FIRST_BYTE_ID: Final = 16
"""Ids 13..15 are reserved; FIRST_BYTE_ID + b is the byte b; what follows are the syllables."""

PLACEHOLDER: Final[dict[str, int]] = {
    "image": Special.IMAGE,
    "video": Special.VIDEO,
    "audio": Special.AUDIO,
}
"""Modality -> the id that stands once for every embedding of a media item in a prompt."""

BENCH: Final = "has.models.bench:open_bench"
"""How a worker process is told to make a bench of a bundled model: by name, so that who tells it needs no torch."""


def is_bundled(model: str) -> bool:
    return model in BUNDLED

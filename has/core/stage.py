"""The stages a request passes, and what may run beside one on the same GPU."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """Stages as profiles name them."""

    PREPROCESS = "preprocess"
    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"
    EMBEDDING_TRANSFER = "embedding_transfer"
    KV_TRANSFER = "kv_transfer"


class Beside(StrEnum):
    """What shared the GPU while a point was measured."""

    NONE = "none"
    PREFILL = "prefill"
    ENCODE = "encode"


MODALITIES = ("text", "image", "video", "audio")
"""Order is the code: `Requests.modality` holds indices into this tuple."""

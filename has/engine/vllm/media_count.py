"""How many LM tokens a medium will be, before any engine has seen it."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from has.errors import InputError
from has.gateway.job import MediaBytes
from has.models.image_rules import PixelGridRule
from has.models.rules import TokenRule
from has.models.tokens import token_rule

QWEN_GRIDS = ("qwen2_vl", "qwen2_5_vl")


def rule_of(model: str) -> TokenRule | None:
    """The token rule of a model id or folder; a folder's own preprocessor settings go before its name's. None: unknown."""
    folder = Path(model)
    config = _json(folder / "config.json")
    if config.get("model_type") in QWEN_GRIDS:
        settings = _json(folder / "preprocessor_config.json")
        size = settings.get("size") or {}
        return PixelGridRule(
            patch=settings.get("patch_size", 14),
            min_pixels=settings.get("min_pixels") or size.get("shortest_edge", 56 * 56),
            max_pixels=settings.get("max_pixels") or size.get("longest_edge", 12_845_056),
        )
    with suppress(InputError):
        return token_rule(model)
    return None


def tokens_of(medium: MediaBytes, rule: TokenRule | None) -> int | None:
    """LM tokens of an image, from its header; None where that cannot be told."""
    if rule is None or medium.kind != "image" or isinstance(medium.data, tuple):
        return None
    from PIL import Image

    try:
        if medium.size is not None:
            return rule.image(*medium.size)
        with Image.open(io.BytesIO(medium.data)) as image:
            return rule.image(*image.size)
    except (OSError, InputError, Image.DecompressionBombError):
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}

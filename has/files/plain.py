"""Nouns as the plain mappings that files hold: only what was said, numbers in their shortest form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def short(value: Any) -> Any:
    """Plain data: whole floats as integers (2000, not 2000.0), numpy scalars and arrays as Python's own."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, Mapping):
        return {short(key): short(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [short(item) for item in value]
    return value


def prune(value: Any) -> Any:
    """Without keys that hold None, here and inside, and without mappings that only held such keys."""
    if isinstance(value, Mapping):
        kept = {key: (prune(item), item) for key, item in value.items() if item is not None}
        return {key: item for key, (item, whole) in kept.items() if item != {} or not whole}
    if isinstance(value, list | tuple):
        return [prune(item) for item in value]
    return value

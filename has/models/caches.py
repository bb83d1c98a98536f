"""Caches in the shape transformers' attention layers expect: `update` stores new keys and values, returns all.

Neither is asked for mask sizes: masks are made here and handed in whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache


class PoolCache(DynamicCache):
    """What one decode step shows the language model: the first `rows` rows, or chosen ones.

    Writes each sequence's new key and value at that sequence's own position, and hands attention
    a view of the pool (no copy) where the rows are the first ones, else a gathered copy.
    """

    def __init__(self, kv: Tensor, rows: Tensor, at: Tensor, width: int, *, prefix: bool) -> None:
        super().__init__()
        self._kv, self._rows, self._at, self._width, self._prefix = kv, rows, at, width, prefix

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys, values = self._kv[layer_idx]
        keys[self._rows, :, self._at] = key_states[:, :, 0]
        values[self._rows, :, self._at] = value_states[:, :, 0]
        if self._prefix:
            count = len(self._rows)
            return keys[:count, :, : self._width], values[:count, :, : self._width]
        return keys[self._rows, :, : self._width], values[self._rows, :, : self._width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._width - 1


class ChunkCache(DynamicCache):
    """Each row's earlier KV with room for its chunk right behind it."""

    def __init__(self, past: Sequence[Tensor | None], spans: Sequence[int], shape: tuple[int, ...]) -> None:
        super().__init__()
        layers, two, heads, head_dim = shape
        self._starts = [0 if kv is None else kv.shape[3] for kv in past]
        self._spans = spans
        whole = max(start + span for start, span in zip(self._starts, spans, strict=True))
        like = next(kv for kv in past if kv is not None)
        self.kv = like.new_zeros(layers, two, len(past), heads, whole, head_dim)
        for row, kv in enumerate(past):
            if kv is not None:
                self.kv[:, :, row, :, : kv.shape[3]] = kv

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys, values = self.kv[layer_idx]
        for row, (start, span) in enumerate(zip(self._starts, self._spans, strict=True)):
            keys[row, :, start : start + span] = key_states[row, :, :span]
            values[row, :, start : start + span] = value_states[row, :, :span]
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def chunk_mask(starts: Sequence[int], spans: Sequence[int], device: torch.device) -> Tensor:
    """[rows, 1, query, key]: query q of a row sees the keys up to its own, start + q."""
    whole = max(start + span for start, span in zip(starts, spans, strict=True))
    own = torch.tensor(starts, device=device)[:, None] + torch.arange(max(spans), device=device)
    return (torch.arange(whole, device=device) <= own[:, :, None])[:, None]

"""Decode slots: a pool of KV caches in which many sequences of different lengths decode together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from has.models.caches import PoolCache

if TYPE_CHECKING:
    from has.models.stage_model import StageModel


class DecodeSlots:
    """`n_slots` sequences of up to `max_tokens` tokens each (prompt, media and output).

    A slot is the caller's name for a sequence; the row that holds it is ours: rows in use are
    always 0..n-1 (freeing one moves the last into its place), so that a step over all sequences
    reads the pool in place.
    """

    def __init__(self, model: StageModel, n_slots: int, max_tokens: int) -> None:
        if n_slots < 1 or not 1 <= max_tokens <= model.max_positions:
            raise ValueError(f"n_slots >= 1 and 1 <= max_tokens <= {model.max_positions} are needed")
        self.n_slots, self.max_tokens = n_slots, max_tokens
        self._model = model
        layers, two, heads, head_dim = model.kv_shape
        self._kv = _zeros((layers, two, n_slots, heads, max_tokens, head_dim), model.dtype, model.device)
        self._row: dict[int, int] = {}
        self._slot: list[int] = []
        self._length: list[int] = []
        self._position: list[int] = []

    @property
    def active(self) -> list[int]:
        """Slots in use, in no promised order."""
        return list(self._slot)

    def length(self, slot: int) -> int:
        """Tokens whose KV `slot` holds."""
        return self._length[self._row[slot]]

    def load(self, slot: int, kv: Tensor, next_position: int) -> None:
        """Put a prefilled sequence into a free slot. `kv` is [layers, 2, kv_heads, T, head_dim], copied.

        Raises ValueError if the slot is taken or unknown, or T leaves no room for a token.
        """
        length = kv.shape[3]
        if slot in self._row or not 0 <= slot < self.n_slots:
            raise ValueError(f"slot {slot} is taken or not one of 0..{self.n_slots - 1}")
        if length >= self.max_tokens:
            raise ValueError(f"{length} tokens leave no room in a slot of {self.max_tokens}")
        row = len(self._slot)
        self._kv[:, :, row, :, :length] = kv
        self._row[slot] = row
        self._slot.append(slot)
        self._length.append(length)
        self._position.append(int(next_position))

    def free(self, slot: int) -> None:
        """Give a slot back; the others keep their contents."""
        row = self._row.pop(slot)
        last = len(self._slot) - 1
        if row != last:
            length = self._length[last]
            self._kv[:, :, row, :, :length] = self._kv[:, :, last, :, :length]
            self._row[self._slot[last]] = row
            self._slot[row], self._length[row], self._position[row] = (
                self._slot[last],
                self._length[last],
                self._position[last],
            )
        del self._slot[last], self._length[last], self._position[last]

    def kv(self, slot: int) -> Tensor:
        """A contiguous copy of a slot's KV, as `load` takes it."""
        row = self._row[slot]
        return self._kv[:, :, row, :, : self._length[row]].contiguous()

    def next_position(self, slot: int) -> int:
        return self._position[self._row[slot]]

    @torch.inference_mode()
    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """One decode step: feed `tokens[i]` to `slots[i]`, get logits [n, vocab] in the same order.

        Each slot grows by one token. Raises ValueError if a slot is full or stands twice.
        """
        if len(set(slots)) != len(slots) or len(slots) != len(tokens):
            raise ValueError("a step takes one token for each of some different slots")
        if not slots:
            return torch.empty(0, self._model.vocab_size, device=self._model.device)
        order = sorted(range(len(slots)), key=lambda index: self._row[slots[index]])
        rows = [self._row[slots[index]] for index in order]
        lengths = [self._length[row] for row in rows]
        if max(lengths) >= self.max_tokens:
            raise ValueError(f"a slot is full at {self.max_tokens} tokens")
        device = self._model.device
        at = torch.tensor(lengths, device=device)
        width = max(lengths) + 1
        cache = PoolCache(
            self._kv,
            torch.tensor(rows, device=device),
            at,
            width,
            prefix=rows == list(range(len(rows))),
        )
        mask = None
        if min(lengths) + 1 < width:
            mask = (torch.arange(width, device=device) <= at[:, None])[:, None, None, :]
        hidden = self._model.forward_tokens(
            torch.tensor([tokens[index] for index in order], device=device)[:, None],
            torch.tensor([self._position[row] for row in rows], device=device)[:, None],
            cache,
            mask,
        )
        for row in rows:
            self._length[row] += 1
            self._position[row] += 1
        logits = self._model.head(hidden[:, -1])
        if order == list(range(len(order))):
            return logits
        back = torch.empty(len(order), dtype=torch.long, device=device)
        back[torch.tensor(order, device=device)] = torch.arange(len(order), device=device)
        return logits[back]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros whose pages a CPU commits only when they are written (NumPy's calloc; torch would touch all).

    Zeros, not empty: attention multiplies masked values by 0, and 0 times a stray NaN is NaN.
    """
    if device.type == "cpu" and dtype == torch.float32:
        return torch.from_numpy(np.zeros(shape, np.float32))
    return torch.zeros(shape, dtype=dtype, device=device)

"""Works to measure: callables that run one stage of a model on made-up input of a given size."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from has.models.media import MediaInput, decode_media
from has.models.names import BUNDLED, PLACEHOLDER, Special
from has.models.stage_model import PromptInput, StageModel, load_stage_model
from has.models.synthetic import media_bytes, synthetic_media
from has.models.tokens import token_rule

Moves = tuple[Callable[[int], object], Callable[[int], object]]


def media_kind(model: str) -> str:
    """What a bench of `model` encodes: what a bundled one is meant for, sound where a model takes it, else images."""
    return BUNDLED.get(model) or ("audio" if token_rule(model).takes("audio") else "image")


def unit_tokens(model: str) -> int:
    """Media tokens of the smallest thing that `model` encodes: a tile, a pair of frames, a chunk of sound."""
    return token_rule(model).nearest(media_kind(model), 1).tokens


def made_up_media(model: str, tokens: int) -> MediaInput:
    """One media item of about `tokens` tokens, decoded."""
    kind = media_kind(model)
    return decode_media(kind, synthetic_media(kind, model, 0, tokens=tokens), model)


class StageBench:
    """Makes works of a model. `facts` is what a profile says about it."""

    def __init__(self, model: StageModel) -> None:
        self._model = model
        self.kind = media_kind(model.name)
        self.facts: dict[str, Any] = {
            "media_unit": unit_tokens(model.name),
            "weights_bytes": dict(model.weights_bytes),
            "kv_bytes_per_token": model.kv_bytes_per_token,
            "kv_heads": model.kv_shape[2],
            "embedding_bytes_per_token": model.width * model.dtype.itemsize,
            "dtype": str(model.dtype).removeprefix("torch."),
        }

    def prepare(self, stage: str, batch: int, tokens: int) -> Callable[[], object]:
        """A callable that runs `stage` once on `batch` requests of `tokens` tokens each.

        preprocess: from bytes as a client sends them (batch 1); encode: media tokens, to the nearest
        that an item can have; prefill: media and text; decode: one step at that context. Input is made
        here, not when it is called.
        """
        name = self._model.name
        if stage == "preprocess":
            kind = media_kind(name)
            sent = media_bytes(kind, synthetic_media(kind, name, 0, tokens=tokens))
            return lambda: decode_media(kind, sent, name)
        if stage == "encode":
            media = [made_up_media(name, tokens)] * batch
            return lambda: self._model.encode(media)
        if stage == "prefill":
            return self._prefill(batch, tokens)
        return self._decode(batch, tokens)

    def moves(self, shared: mmap.mmap) -> Moves | None:
        """How bytes go between `shared` and the model's GPU; None where the model is in the host's memory."""
        device = self._model.device
        return None if device.type == "cpu" else moves_between(shared, device)

    def _prefill(self, batch: int, tokens: int) -> Callable[[], object]:
        """One item of media where it fits, so that placing embeddings is part of the figure."""
        media = made_up_media(self._model.name, 1)
        count = media.tokens if tokens >= media.tokens + 2 else 0
        embeddings = [torch.zeros(count, self._model.width, device=self._model.device)] if count else []
        known = self._model.family.placeholders
        place = PLACEHOLDER[media.kind] if PLACEHOLDER[media.kind] in known else min(known)
        ids = [int(place)] * count + [int(Special.USER)] * (max(tokens, 1) - count)
        prompt = PromptInput(ids, embeddings, [media.grid] if count else [])
        return lambda: self._model.prefill([prompt] * batch)

    def _decode(self, batch: int, tokens: int) -> Callable[[], object]:
        """Steps that start over at `tokens` of context each time."""
        layers, two, heads, size = self._model.kv_shape
        kv = torch.zeros(
            layers, two, heads, max(tokens, 1), size, dtype=self._model.dtype, device=self._model.device
        )
        slots = self._model.slots(batch, max(tokens, 1) + STEPS_BEFORE_RELOAD)

        def step() -> object:
            if slots.active and slots.length(0) >= slots.max_tokens:
                for slot in range(batch):
                    slots.free(slot)
            if not slots.active:
                for slot in range(batch):
                    slots.load(slot, kv, max(tokens, 1))
            return slots.step(range(batch), [int(Special.USER)] * batch)

        step()
        return step


STEPS_BEFORE_RELOAD = 32


def moves_between(shared: mmap.mmap, device: torch.device) -> Moves:
    """Callables that put so many bytes of the memory of `device` into `shared`, and that take as many from it, each to its end."""
    host = torch.from_numpy(
        np.frombuffer(shared, np.uint8)
    )  # unlike torch.frombuffer it keeps `shared` mapped
    own = torch.zeros(len(host), dtype=torch.uint8, device=device)
    return lambda count: host[:count].copy_(own[:count]), lambda count: own[:count].copy_(host[:count])


def open_bench(model: str) -> StageBench:
    """The bench of the bundled model `model` (raises InputError for another)."""
    return StageBench(load_stage_model(model))


def open_dummy_bench(model: str, device: str, dtype: torch.dtype | None = None) -> StageBench:
    """The bench of a model whose shapes are known, with dummy weights on `device`."""
    return StageBench(load_stage_model(model, device, dtype, weights="dummy"))

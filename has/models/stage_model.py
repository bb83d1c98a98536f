"""A multimodal model as three calls: encode, prefill, decode. Token for token what `generate()` gives.

    embeddings = model.encode([media])                                  # list of [n, width]
    first = model.prefill([PromptInput(ids, embeddings, [media.grid])])[0]
    slots = model.slots(n_slots=8, max_tokens=1024)
    slots.load(0, first.kv, first.next_position)
    logits = slots.step([0], [int(first.logits.argmax())])              # [1, vocab], and again

Nothing in a stage needs what only another stage has: prefill never sees pixels, decode never sees
embeddings; what moves between them is one contiguous tensor each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import DynamicCache

from has.errors import InputError
from has.models.caches import ChunkCache, chunk_mask
from has.models.families import Family, family_of
from has.models.media import Grid, MediaInput
from has.models.names import BUNDLED, MAX_POSITIONS
from has.models.slots import DecodeSlots

if TYPE_CHECKING:
    from has.models.checkpoint import Weights


@dataclass(frozen=True, slots=True)
class PromptInput:
    """A prompt: ids with a placeholder id for every media embedding, the embeddings and their grids.

    `embeddings[i]` is [n_i, width], `grids[i]` its Grid (as in MediaInput), in order of appearance.
    """

    ids: Sequence[int]
    embeddings: Sequence[Tensor] = ()
    grids: Sequence[Grid] = ()


@dataclass(frozen=True, slots=True)
class ChunkInput:
    """Tokens [start, stop) of a prompt; `kv` holds the `start` tokens before (None where start = 0)."""

    prompt: PromptInput
    start: int
    stop: int
    kv: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Prefilled:
    """After prefill: logits [vocab] of the last token, KV [layers, 2, kv_heads, T, head_dim] contiguous,
    and the rotary position of the next token (M-RoPE: its offset is already in it)."""

    logits: Tensor
    kv: Tensor
    next_position: int


@dataclass
class StageModel:
    """One model on one device. Not for two threads in the same stage at once; encode and prefill may overlap.

    Attributes: `kv_shape` = (layers, 2, kv_heads, head_dim); `weights_bytes` {encoder, lm};
    `kv_bytes_per_token`; `width` of an embedding as it travels; `eos` None where generation never ends by itself.
    """

    name: str
    family: Family
    max_positions: int
    eos: int | None = None
    width: int = field(init=False)
    vocab_size: int = field(init=False)

    def __post_init__(self) -> None:
        text = self.family.text_config
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        parameters = self.family.model.parameters
        self.device: torch.device = next(parameters()).device
        self.dtype: torch.dtype = self.family.embed.weight.dtype
        self.width = self.family.embedding_width
        self.vocab_size = text.vocab_size
        self.kv_shape = (text.num_hidden_layers, 2, text.num_key_value_heads, head_dim)
        layers, two, heads, size = self.kv_shape
        self.kv_bytes_per_token = layers * two * heads * size * self.dtype.itemsize
        encoder = {id(p) for module in self.family.encoder_modules() for p in module.parameters()}
        self.weights_bytes = {"encoder": 0, "lm": 0}
        for parameter in parameters():
            part = "encoder" if id(parameter) in encoder else "lm"
            self.weights_bytes[part] += parameter.numel() * parameter.element_size()

    @torch.inference_mode()
    def encode(self, media: Sequence[MediaInput]) -> list[Tensor]:
        """Embeddings [tokens, width] of each item, all items in one forward pass per modality."""
        embeddings: list[Tensor | None] = [None] * len(media)
        for kind in dict.fromkeys(item.kind for item in media):
            places = [place for place, item in enumerate(media) if item.kind == kind]
            encoded = self.family.encode(kind, [media[place] for place in places])
            for place, embedding in zip(places, encoded, strict=True):
                embeddings[place] = embedding
        return [embedding for embedding in embeddings if embedding is not None]

    def prefill(self, prompts: Sequence[PromptInput]) -> list[Prefilled]:
        """Whole prompts in one forward pass; each result is what the prompt alone would give."""
        return self.prefill_chunk([ChunkInput(prompt, 0, len(prompt.ids)) for prompt in prompts])

    @torch.inference_mode()
    def prefill_chunk(self, chunks: Sequence[ChunkInput]) -> list[Prefilled]:
        """Go on with prompts, each from its own earlier KV, in one forward pass.

        A result's `kv` covers [0, stop), its logits are those of token stop - 1; `next_position`
        is that of the token after the whole prompt. Raises InputError for a prompt that does not fit its embeddings
        or the model's positions, ValueError for a chunk outside its prompt.
        """
        if not chunks:
            return []
        spans = [chunk.stop - chunk.start for chunk in chunks]
        for chunk in chunks:
            self._check(chunk)
        longest = max(spans)
        positions = torch.zeros(3, len(chunks), longest, dtype=torch.long, device=self.device)
        inputs = torch.zeros(len(chunks), longest, self.width, dtype=self.dtype, device=self.device)
        following = []
        for row, (chunk, span) in enumerate(zip(chunks, spans, strict=True)):
            place, after = self.family.positions(chunk.prompt.ids, chunk.prompt.grids)
            positions[:, row, :span] = place[:, chunk.start : chunk.stop]
            following.append(after)
            inputs[row, :span] = self._embed(chunk.prompt)[chunk.start : chunk.stop]
        if all(chunk.start == 0 for chunk in chunks):
            cache, mask = DynamicCache(), None
        else:
            cache = ChunkCache([chunk.kv for chunk in chunks], spans, self.kv_shape)
            mask = chunk_mask([chunk.start for chunk in chunks], spans, self.device)
        hidden = self.family.language_model(
            **self.family.inputs(inputs),
            attention_mask=mask,
            position_ids=positions if self.family.mrope else positions[0],
            cache=cache,
            use_cache=True,
        ).last_hidden_state
        last = torch.tensor([span - 1 for span in spans], device=self.device)
        logits = self.head(hidden[torch.arange(len(chunks), device=self.device), last])
        return [
            Prefilled(logits[row], _kv_of(cache, row, chunk.stop), following[row])
            for row, chunk in enumerate(chunks)
        ]

    def slots(self, n_slots: int, max_tokens: int) -> DecodeSlots:
        """A fresh pool for `n_slots` sequences of up to `max_tokens` tokens."""
        return DecodeSlots(self, n_slots, max_tokens)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits, float32."""
        logits: Tensor = self.family.head(hidden)
        return logits.float()

    def forward_tokens(self, ids: Tensor, positions: Tensor, cache: Any, mask: Tensor | None) -> Tensor:
        """Hidden states [n, 1, width] of one new token each; `positions` [n, 1]."""
        hidden: Tensor = self.family.language_model(
            inputs_embeds=self.family.embed(ids),
            attention_mask=mask,
            position_ids=positions.expand(3, -1, -1) if self.family.mrope else positions,
            cache=cache,
            use_cache=True,
        ).last_hidden_state
        return hidden

    def _check(self, chunk: ChunkInput) -> None:
        prompt = chunk.prompt
        if not 0 <= chunk.start < chunk.stop <= len(prompt.ids):
            raise ValueError(f"chunk [{chunk.start}, {chunk.stop}) of a prompt of {len(prompt.ids)} tokens")
        held = 0 if chunk.kv is None else chunk.kv.shape[3]
        if held != chunk.start:
            raise ValueError(f"a chunk from {chunk.start} on needs the KV of as many tokens, not {held}")
        if len(prompt.ids) > self.max_positions:
            raise InputError(
                "the prompt is longer than the model's context",
                field="prompt",
                value=len(prompt.ids),
                allowed=f"up to {self.max_positions} tokens",
            )
        slots = sum(token in self.family.placeholders for token in prompt.ids)
        given = sum(len(embedding) for embedding in prompt.embeddings)
        if slots != given:
            raise InputError(
                f"the prompt has {slots} media placeholders but {given} media embeddings",
                field="prompt",
            )

    def _embed(self, prompt: PromptInput) -> Tensor:
        ids = torch.tensor(list(prompt.ids), device=self.device)
        text: Tensor = self.family.embed(ids)
        embedded = torch.nn.functional.pad(text, (0, self.width - text.shape[-1]))
        if prompt.embeddings:
            media = torch.isin(ids, torch.tensor(sorted(self.family.placeholders), device=self.device))
            embedded[media] = torch.cat([e.to(self.device, self.dtype) for e in prompt.embeddings])
        return embedded


def _kv_of(cache: Any, row: int, length: int) -> Tensor:
    if isinstance(cache, ChunkCache):
        return cache.kv[:, :, row, :, :length].contiguous()
    return torch.stack(
        [torch.stack([layer.keys[row, :, :length], layer.values[row, :, :length]]) for layer in cache.layers]
    )


def load_stage_model(
    name: str,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    seed: int = 0,
    *,
    weights: Weights = "real",
) -> StageModel:
    """The model `name` on `device`.

    A bundled name (weights drawn from `seed`, float32 unless `dtype` says otherwise), a folder
    with a checkpoint, or a hub id whose files are in the local cache. `weights="dummy"` needs
    only the config: right shapes, random values; and of a model whose shapes ship as facts, by
    its name there or its hub id, not even that. Nothing is downloaded.

    Raises InputError for a name that is none of these or a broken checkpoint, MissingError for
    weights or a family that are not here.
    """
    if name in BUNDLED:
        from has.models import bundled

        model = bundled.build(name, seed).to(device=device, dtype=dtype or torch.float32)
        return StageModel(name, family_of(model), max_positions=MAX_POSITIONS)
    from has.models import checkpoint
    from has.models.folders import find_folder

    known = _facts(name) if weights == "dummy" and find_folder(name) is None else None
    if known is not None:
        family = family_of(checkpoint.dummy_of_facts(known, device, dtype, seed))
        return StageModel(name, family, _positions(family.text_config), family.eos)
    if "/" not in name and not Path(name).exists():
        raise InputError(
            "no such model", field="model", value=name, allowed=", ".join(BUNDLED) + ", a folder, a hub id"
        )
    folder = checkpoint.checkpoint_folder(name)
    family = family_of(checkpoint.load_checkpoint(folder, device, dtype, weights, seed))
    return StageModel(name, family, _positions(family.text_config), family.eos)


def _facts(name: str) -> dict[str, Any] | None:
    from has.files import facts

    try:
        return facts.model(name)
    except InputError:
        return None


def _positions(text: Any) -> int:
    """Tokens of the longest prompt: no more than the window where layers look no further (some of Gemma 3, all of Mistral),
    as masks made here know no windows."""
    most: int = text.max_position_embeddings
    window = getattr(text, "sliding_window", None)
    if window and "sliding_attention" in (getattr(text, "layer_types", None) or ["sliding_attention"]):
        return min(most, int(window))
    return most

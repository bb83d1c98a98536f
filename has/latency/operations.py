"""The operations a stage of a model consists of, from the shapes in the model facts.

T = b·n is the tokens of a batch, h the hidden width, d the head width, H and K query and key/value
heads, I the width of the MLP, V the vocabulary, TP the GPUs of one worker (Megatron's split: columns of
the first matrix, rows of the second, an all-reduce after each pair). One layer of a language model:

    normalise            2·T·h elements in, 2·T·h out          (with the residual; twice)
    q, k, v              T × h × (H + 2K)·d/TP
    attention            4·T·n·H·d/TP · ½ flops, causal
    output               T × H·d/TP × h
    gate and up, down    T × h × 2I/TP and T × I/TP × h
    activate             2·T·I/TP in, T·I/TP out
    all-reduce           T·h elements, twice, for TP > 1

and once the logits of the last position, b × h × V/TP. In decode n is 1 and attention reads the KV of
the whole context. Mixture-of-experts layers run each token through its k experts and stream the experts
that any token of the batch chose: E·(1 - (1 - k/E)^T) of E, were they chosen evenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from has.errors import InputError

WIDTH = {"bfloat16": 2, "fp8": 1}
"""Bytes of a weight. Activations and KV are bfloat16 with both."""
ACTIVATION = 2


@dataclass(frozen=True, slots=True)
class Gemm:
    """m × k times k × n, `count` times. `streamed` are its weight elements, where not n·k."""

    name: str
    m: int
    n: int
    k: int
    count: int = 1
    dtype: str = "bfloat16"
    streamed: float | None = None

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def bytes(self) -> float:
        weights = self.n * self.k if self.streamed is None else self.streamed
        return ACTIVATION * self.m * (self.n + self.k) + WIDTH[self.dtype] * weights


AttentionKind = Literal["context", "encoder", "decode"]


@dataclass(frozen=True, slots=True)
class Attention:
    """`sequences` of `length` tokens, each attending to its own: causal (context), to all (encoder), or with
    one query each (decode)."""

    name: str
    kind: AttentionKind
    sequences: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int
    count: int = 1

    @property
    def queries(self) -> int:
        return 1 if self.kind == "decode" else self.length

    @property
    def flops(self) -> float:
        pairs = self.queries * self.length * (0.5 if self.kind == "context" else 1.0)
        return 4.0 * self.sequences * self.heads * self.head_dim * pairs

    @property
    def bytes(self) -> float:
        elements = self.queries * self.heads + self.length * self.kv_heads
        return 2.0 * ACTIVATION * self.sequences * self.head_dim * elements


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Normalisation, residual, activation, look-up: reads and writes `bytes`, computes next to nothing."""

    name: str
    bytes: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Sum of `bytes` over `gpus`, the result on each of them."""

    name: str
    bytes: float
    gpus: int
    count: int = 1


Operation = Gemm | Attention | Elementwise | AllReduce


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """Shapes of one GPU's part of the language model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tp: int
    dtype: str
    experts: int = 0
    experts_per_token: int = 0

    @classmethod
    def from_facts(cls, facts: dict[str, Any], tp: int = 1, dtype: str = "bfloat16") -> LanguageModel:
        """Raises InputError where `tp` does not divide the heads, or `dtype` is unknown."""
        lm, moe = facts["lm"], facts["lm"].get("moe") or {}
        if dtype not in WIDTH:
            raise InputError(
                "no such dtype", where="argument", field="dtype", value=dtype, allowed=", ".join(WIDTH)
            )
        if lm["q_heads"] % tp or (lm["kv_heads"] % tp and tp % lm["kv_heads"]):
            fit = [n for n in (1, 2, 4, 8) if lm["q_heads"] % n == 0]
            raise InputError(
                f"{facts['name']} has {lm['q_heads']} heads, which {tp} GPUs cannot share",
                where="argument",
                field="tensor_parallel",
                value=tp,
                allowed=", ".join(map(str, fit)),
            )
        return cls(
            layers=lm["layers"],
            hidden=lm["hidden"],
            heads=lm["q_heads"] // tp,
            kv_heads=max(1, lm["kv_heads"] // tp),
            head_dim=lm["head_dim"],
            intermediate=(moe.get("expert_intermediate") or lm["intermediate"]) // tp,
            vocab=lm["vocab"] // tp,
            tp=tp,
            dtype=dtype,
            experts=moe.get("experts", 0),
            experts_per_token=moe.get("experts_per_token", 0),
        )

    def prefill(self, batch: int, tokens: int) -> list[Operation]:
        """`batch` prompts of `tokens` (media included) each, up to the first token."""
        attention = Attention(
            "attention", "context", batch, tokens, self.heads, self.kv_heads, self.head_dim, self.layers
        )
        return [*self._layers(batch * tokens, attention), *self._ends(batch * tokens, batch)]

    def decode(self, batch: int, context: int) -> list[Operation]:
        """One step of `batch` sequences with `context` tokens of KV each."""
        attention = Attention(
            "attention", "decode", batch, context, self.heads, self.kv_heads, self.head_dim, self.layers
        )
        return [*self._layers(batch, attention), *self._ends(batch, batch)]

    def _layers(self, rows: int, attention: Attention) -> Iterator[Operation]:
        h, d, layers = self.hidden, self.head_dim, self.layers
        yield Elementwise("normalise", 4.0 * ACTIVATION * rows * h, 2 * layers)
        yield Gemm("q, k, v", rows, (self.heads + 2 * self.kv_heads) * d, h, layers, self.dtype)
        yield attention
        yield Gemm("attention output", rows, h, self.heads * d, layers, self.dtype)
        yield from self._experts(rows) if self.experts else self._mlp(rows)
        if self.tp > 1:
            yield AllReduce("all-reduce", float(ACTIVATION * rows * h), self.tp, 2 * layers)

    def _mlp(self, rows: int) -> Iterator[Operation]:
        h, wide, layers = self.hidden, self.intermediate, self.layers
        yield Gemm("gate and up", rows, 2 * wide, h, layers, self.dtype)
        yield Elementwise("activate", 3.0 * ACTIVATION * rows * wide, layers)
        yield Gemm("down", rows, h, wide, layers, self.dtype)

    def _experts(self, rows: int) -> Iterator[Operation]:
        h, wide, layers = self.hidden, self.intermediate, self.layers
        chosen = self.experts * (1 - (1 - self.experts_per_token / self.experts) ** rows)
        through = rows * self.experts_per_token
        yield Gemm("gate and up", through, 2 * wide, h, layers, self.dtype, chosen * 2 * wide * h)
        yield Elementwise("activate", 3.0 * ACTIVATION * through * wide, layers)
        yield Gemm("down", through, h, wide, layers, self.dtype, chosen * wide * h)

    def _ends(self, rows: int, last: int) -> Iterator[Operation]:
        yield Elementwise("embed", 2.0 * ACTIVATION * rows * self.hidden)
        yield Gemm("logits", last, self.vocab, self.hidden)


@dataclass(frozen=True, slots=True)
class Tower:
    """An encoder: how media tokens become sequences of patches or frames, and the shapes it runs them through.

    Every token stands for `per_token` patches. A sequence is a tile, chunk or item; where `whole`, one holds
    `length` positions however little media it carries (a fixed tile, a padded chunk), else up to `length`.
    `window`: positions that attend to each other in all but `full_layers` layers; 0 is no windows.
    """

    layers: int
    hidden: int
    heads: int
    intermediate: int
    gated: bool
    per_token: float
    length: int
    whole: bool
    window: int = 0
    full_layers: int = 0
    mel: int = 0
    projector: tuple[tuple[int, int], ...] = ()
    projectors: int = 1
    patch_pixels: int = 0
    rotary: bool = False

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Tower:
        """Raises InputError for an encoder of an unknown kind."""
        e = facts["encoder"]
        per_token, length, whole, patch_pixels = _layout(facts)
        return cls(
            layers=int(str(e.get("layers_used", e["layers"])).split()[0]),
            hidden=e["hidden"],
            heads=e["heads"],
            intermediate=e["intermediate"],
            gated=bool(e.get("gated_mlp")),
            per_token=per_token,
            length=length,
            whole=whole,
            window=(e["window"] // e["patch"]) ** 2 if e.get("window") else 0,
            full_layers=len(e.get("full_attention_blocks", ())),
            mel=e.get("mel", 0),
            projector=_projector(facts["projector"]["dims"]),
            projectors=1 + e.get("deepstack_layers", 0),
            patch_pixels=patch_pixels,
            rotary="spatial_merge" in e or facts["name"].startswith("pixtral"),
        )

    def sequences(self, tokens: int) -> tuple[int, int]:
        """(how many, how long) for one request with `tokens` media tokens."""
        positions = max(1, math.ceil(tokens * self.per_token))
        many = math.ceil(positions / self.length - 1e-9)
        return many, self.length if self.whole else math.ceil(positions / many)

    def positions(self, batch: int, tokens: int) -> int:
        many, length = self.sequences(tokens)
        return batch * many * length

    def encode(self, batch: int, tokens: int, length: int | None = None) -> list[Operation]:
        """`batch` requests with `tokens` media tokens each; `length` overrides that of a sequence."""
        many, long = self.sequences(tokens)
        if length is not None:
            many, long = max(1, round(tokens * self.per_token / length)), length
        return [*self._blocks(batch * many, long), *self._project(batch * tokens)]

    def _blocks(self, sequences: int, length: int) -> Iterator[Operation]:
        rows, h, layers = sequences * length, self.hidden, self.layers
        if self.mel:  # two convolutions over time, the second of stride 2, as matrix products
            yield Gemm("mel convolution", 2 * rows, h, 3 * self.mel)
            yield Gemm("mel convolution", rows, h, 3 * h)
        else:
            yield Gemm("patches", rows, h, self.patch_pixels)
        yield Elementwise("normalise", 4.0 * ACTIVATION * rows * h, 2 * layers)
        yield Gemm("q, k, v", rows, 3 * h, h, layers)
        if self.rotary:  # not fused in towers: q, k, v with full-width sines and cosines, read and written
            yield Elementwise("rotate", 12.0 * ACTIVATION * rows * h, layers)
        yield from self._attention(sequences, length)
        yield Gemm("attention output", rows, h, h, layers)
        widths = 2 if self.gated else 1
        yield Gemm("MLP in", rows, widths * self.intermediate, h, layers)
        yield Elementwise("activate", (widths + 1.0) * ACTIVATION * rows * self.intermediate, layers)
        yield Gemm("MLP out", rows, h, self.intermediate, layers)

    def _attention(self, sequences: int, length: int) -> Iterator[Operation]:
        full = self.full_layers if self.window else self.layers
        d = self.hidden // self.heads
        yield Attention("encoder attention", "encoder", sequences, length, self.heads, self.heads, d, full)
        if self.window:
            windows, within = sequences * math.ceil(length / self.window), min(length, self.window)
            rest = self.layers - full
            yield Attention("window attention", "encoder", windows, within, self.heads, self.heads, d, rest)

    def _project(self, rows: int) -> Iterator[Operation]:
        for k, n in self.projector:
            yield Gemm("projector", rows, n, k, self.projectors)


def _projector(dims: list[int | str]) -> tuple[tuple[int, int], ...]:
    """(in, out) of each matrix: `[a, b, c]` is two; `"swiglu->n"` only narrows what comes before it."""
    pairs, width = [], int(dims[0])
    for dim in dims[1:]:
        if isinstance(dim, str):
            width = int(dim.rpartition(">")[2])
        else:
            pairs.append((width, dim))
            width = dim
    return tuple(pairs)


LARGEST_IMAGE = 1280
"""Tokens of the largest single image assumed where a family takes any size: 1280 × 720 is 1,196 on a
28-pixel grid. More tokens are more images, or frames of a video, which attend to themselves alone."""


def _layout(facts: dict[str, Any]) -> tuple[float, int, bool, int]:
    """Patches (frames) per media token, the length of a sequence, whether it is always that long, and the
    elements of one patch."""
    e, name = facts["encoder"], facts["name"]
    patch = 3 * e.get("patch", 0) ** 2
    if "spatial_merge" in e:  # Qwen: any size, merged 2 × 2
        merged = e["spatial_merge"] ** 2
        return float(merged), merged * LARGEST_IMAGE, False, patch * e.get("temporal_patch", 1)
    if name.startswith("llava"):
        # 5 tiles make 2,928 tokens (the square image's newlines included); a tile has a class token
        return 5 * 577 / 2928, 577, True, patch
    if name.startswith("internvl"):
        return 1025 / 256, 1025, True, patch
    if name.startswith("ultravox"):  # 8 frames are stacked; what is shorter than 30 s is not padded
        return 8.0, 1500, False, 0
    if name.startswith("voxtral"):
        return 4.0, 1500, True, 0
    if name.startswith("qwen2-audio"):
        return 2.0, 1500, True, 0
    if name.startswith("pixtral"):
        return 1.0, 4096, False, patch
    if name.startswith("gemma-3"):
        return 16.0, 4096, True, patch
    raise InputError(
        f"no layout is known for the encoder of {name}", field="model", value=name, mend="measure a profile"
    )

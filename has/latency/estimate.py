"""An estimated profile: every stage of a model on a GPU that is not here.

Each row is labelled by the profile's `source`: `roofline` (shapes and data sheet) or `silicon` (kernel times that
were measured, with the roofline where no table has the kernel). Encode runs on one GPU, prefill and decode on TP.

| stage | what is computed |
|---|---|
| encode, prefill, decode | sum of the stage's operations on all SMs, spread over SM shares by `sm_shares` |
| embedding and KV transfer | start + bytes / (0.7 · link): NVLink where the GPU has it, else PCIe; TP ranks send their parts (or copies) at once |
| preprocess | assumed, one CPU core: 5 ms + 30 ms a megapixel (JPEG, resize, normalise); 2 ms + 3 ms a second of sound |
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from has.core.profile import Profile, ProfileMetadata, ProfilePoint, WeightsBytes
from has.core.stage import Beside, Stage
from has.core.words import percent
from has.errors import InputError
from has.files import facts
from has.latency.memory import kv_parts
from has.latency.operations import LanguageModel, Tower
from has.latency.roofline import Cost, Gpu, Kernels, Roofline, calibration, total
from has.latency.sm_shares import PARAMETERS, Load

Source = Literal["roofline", "silicon"]

KV_ROOM = 32_768
"""Where no TP is asked for: the smallest that leaves a worker room for the KV of this many tokens."""
MEMORY_SHARE = 0.9
LINK_SHARE = 0.7
EMBEDDING_START_S, KV_START_S = 1e-4, 2e-4
PREPROCESS_IMAGE_S, PREPROCESS_PIXEL_S = 5e-3, 30e-9
PREPROCESS_AUDIO_S, PREPROCESS_SECOND_S = 2e-3, 3e-3
FRAMES_PER_S = 50
"""Of Whisper's encoder."""

ERROR = {"own": 0.25, "other": 0.35, "silicon": 0.25}
"""Stated error of the latencies. Kernels are nearer (docs/measurements.md has by how much), but what an engine adds
between them is not in them, and the curves over SM shares are of other GPUs. `other`: no kernel of the GPU's own chip
was measured."""


@dataclass(frozen=True, slots=True)
class Axes:
    """Values to estimate at: SM shares (percent), batches (requests) and tokens per request, ascending."""

    sm: tuple[float, ...]
    batch: tuple[int, ...]
    sequences: tuple[int, ...]
    media: tuple[int, ...]
    prompt: tuple[int, ...]
    context: tuple[int, ...]


SHARES = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0)
IMAGE = Axes(
    SHARES,
    (1, 2, 4, 8),
    (1, 8, 32, 64, 128, 256),
    (64, 256, 576, 1280, 2560, 5120, 16384),
    (64, 256, 1024, 2048, 4096, 8192, 16384),
    (256, 2048, 8192, 32768),
)
AUDIO = Axes(
    SHARES,
    (1, 2, 4, 8),
    (1, 8, 32, 64, 128, 256),
    (7, 25, 50, 100, 200, 400),
    (32, 64, 128, 256, 512, 1024, 2048, 4096),
    (64, 512, 2048, 8192),
)
COMPANION_PROMPT = {"image": 1024, "audio": 128}
"""Tokens of the prefill that encode is estimated beside; prefill is beside an encode batch of four middling requests."""


class Estimator:
    """Loads of one model's stages on one GPU. Raises InputError where TP or dtype cannot be."""

    def __init__(self, model: dict[str, Any], kernels: Kernels, tp: int, dtype: str = "bfloat16") -> None:
        kernels.gpu.offers(dtype)
        self.model, self.kernels, self.gpu, self.tp = model, kernels, kernels.gpu, tp
        self.lm = LanguageModel.from_facts(model, tp, dtype)
        self.tower = Tower.from_facts(model)
        self.audio = self.tower.mel > 0

    def encode(self, batch: int, tokens: int) -> Load:
        cost = total(self.kernels, self.tower.encode(batch, tokens))
        return Load(cost, self.tower.positions(batch, tokens), self.tower.hidden)

    def prefill(self, batch: int, tokens: int) -> Load:
        return Load(total(self.kernels, self.lm.prefill(batch, tokens)), batch * tokens, self.lm.hidden)

    def decode(self, batch: int, context: int) -> Load:
        return Load(total(self.kernels, self.lm.decode(batch, context)), batch, self.lm.hidden)

    def preprocess_s(self, tokens: int) -> float:
        positions = tokens * self.tower.per_token
        if self.audio:
            return PREPROCESS_AUDIO_S + PREPROCESS_SECOND_S * positions / FRAMES_PER_S
        pixels = positions * float(self.model["encoder"]["patch"]) ** 2
        return PREPROCESS_IMAGE_S + PREPROCESS_PIXEL_S * pixels

    def embedding_transfer_s(self, tokens: int) -> float:
        # Qwen3-VL sends what its deep-stack mergers made of a token along with it
        sent = self.model["computed"]["embedding_bytes_per_mm_token_bf16"] * self.tower.projectors * tokens
        return EMBEDDING_START_S + float(sent) / (LINK_SHARE * self.gpu.link)

    def kv_transfer_s(self, tokens: int) -> float:
        parts = kv_parts(self.tp, self.model["lm"]["kv_heads"])
        sent = self.model["computed"]["kv_bytes_per_token_bf16"] * tokens / parts
        return KV_START_S + float(sent) / (LINK_SHARE * self.gpu.link)

    def rows(self, axes: Axes) -> Iterator[ProfilePoint]:
        """The rows of a profile: full grids, and encode and prefill beside each other where that makes a difference."""
        encode_batch, middle = axes.batch[len(axes.batch) // 2], axes.media[len(axes.media) // 2]
        encoding = self.encode(encode_batch, middle)
        prefilling = self.prefill(1, COMPANION_PROMPT["audio" if self.audio else "image"])
        for tokens in axes.media:
            yield _row(Stage.PREPROCESS, 1, tokens, self.preprocess_s(tokens))
        for tokens in sorted({axes.media[0], axes.media[-1]}):
            yield _row(Stage.EMBEDDING_TRANSFER, 1, tokens, self.embedding_transfer_s(tokens))
        for tokens in sorted({axes.prompt[0], axes.prompt[-1]}):
            yield _row(Stage.KV_TRANSFER, 1, tokens, self.kv_transfer_s(tokens))
        encode = {
            (batch, tokens): self.encode(batch, tokens)
            for batch, tokens in itertools.product(axes.batch, axes.media)
        }
        prefill = {
            (batch, tokens): self.prefill(batch, tokens)
            for batch, tokens in itertools.product(axes.batch, axes.prompt)
        }
        decode = {
            (batch, tokens): self.decode(batch, tokens)
            for batch, tokens in itertools.product(axes.sequences, axes.context)
        }
        for stage, loads in ((Stage.ENCODE, encode), (Stage.PREFILL, prefill), (Stage.DECODE, decode)):
            for (batch, tokens), load in loads.items():
                for share in axes.sm:
                    yield _row(stage, batch, tokens, load.seconds(self.gpu, share), share)
        yield from self._beside(Stage.ENCODE, encode, Beside.PREFILL, prefilling, axes.sm)
        yield from self._beside(Stage.PREFILL, prefill, Beside.ENCODE, encoding, axes.sm)

    def _beside(
        self,
        stage: Stage,
        loads: dict[tuple[int, int], Load],
        beside: Beside,
        other: Load,
        shares: Sequence[float],
    ) -> list[ProfilePoint]:
        """Rows beside `other` on the rest of the SMs, at 100 % without a partition; none where neither
        makes a difference anywhere, as those alone then hold."""
        rows, differ = [], False
        for (batch, tokens), load in loads.items():
            for share in shares:
                seconds = load.seconds_beside(self.gpu, share, other)
                differ |= seconds > 1.001 * load.seconds(self.gpu, share)
                rows.append(_row(stage, batch, tokens, seconds, share, beside))
        return rows if differ else []


def _row(
    stage: Stage,
    batch: int,
    tokens: int,
    seconds: float,
    share: float = 100.0,
    beside: Beside = Beside.NONE,
) -> ProfilePoint:
    return ProfilePoint(
        stage=stage,
        sm_percent=share,
        beside=beside,
        batch=batch,
        tokens=tokens,
        latency_s=float(f"{seconds:.4g}"),
    )


def estimate_profile(
    model: str,
    gpu: str,
    *,
    source: Source = "roofline",
    tp: int | None = None,
    dtype: str = "bfloat16",
    sm: Sequence[float] | None = None,
    batch: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
) -> Profile:
    """The estimated profile of a model of the facts on a GPU of the facts, each by name, part of one or HF id.

    tp: GPUs of one prefill or decode worker, by default the fewest that leave room for KV_ROOM tokens.
    sm, batch, tokens: values in place of the usual ones, `tokens` for every stage.
    Raises InputError (unknown names, what cannot be) and, for silicon, MissingError without the extra.
    """
    shapes, card = facts.find_model(model), Gpu.from_facts(gpu)
    card.offers(dtype)
    weights = weights_bytes(shapes, dtype)
    tp = tp or fewest_gpus(shapes, card, dtype)
    kernels = _kernels(source, card)
    estimator = Estimator(shapes, kernels, tp, dtype)
    axes = _axes(AUDIO if estimator.audio else IMAGE, sm, batch, tokens)
    rows = tuple(estimator.rows(axes))
    metadata = ProfileMetadata(
        version=1,
        device=card.name,
        model=shapes["name"],
        source=source,
        sm_count=card.sms,
        memory_bytes=card.memory_bytes,
        dtype=dtype,
        tensor_parallel=tp,
        partition_mechanism="none: SM shares follow from a formula",
        weights_bytes=weights,
        kv_bytes_per_token=shapes["computed"]["kv_bytes_per_token_bf16"],
        kv_heads=shapes["lm"]["kv_heads"],
        notes=_notes(estimator, source),
        **_provenance(kernels, source),
    )
    return Profile(metadata=metadata, rows=rows)


def weights_bytes(model: dict[str, Any], dtype: str = "bfloat16") -> WeightsBytes:
    """Encoder (with its projector) in bfloat16; of the language model all but embeddings and logits in `dtype`."""
    computed, lm = model["computed"], model["lm"]
    held: int = computed["lm_bytes_bf16"]
    if dtype == "fp8":
        kept = lm["vocab"] * lm["hidden"] * (1 if lm["tied_embeddings"] else 2)
        held -= computed["lm_params"] - kept
    return WeightsBytes(encoder=computed["encoder_plus_projector_bytes_bf16"], lm=held)


def fewest_gpus(model: dict[str, Any], gpu: Gpu, dtype: str = "bfloat16") -> int:
    """The smallest TP of 1, 2, 4, 8 that leaves room for the KV of KV_ROOM tokens; InputError if none does."""
    lm, kv = model["lm"], KV_ROOM * model["computed"]["kv_bytes_per_token_bf16"]
    for tp in (1, 2, 4, 8):
        held = weights_bytes(model, dtype).lm / tp + kv / kv_parts(tp, lm["kv_heads"])
        if lm["q_heads"] % tp == 0 and held <= MEMORY_SHARE * gpu.memory_bytes:
            return tp
    raise InputError(
        f"{model['name']} does not fit eight GPUs with {gpu.memory_bytes / 1e9:g} GB each",
        where="argument",
        field="model",
        value=model["name"],
        mend="a larger GPU, or --dtype fp8",
    )


def _kernels(source: Source, gpu: Gpu) -> Kernels:
    if source == "roofline":
        return Roofline(gpu)
    from has.latency.silicon import Silicon

    return Silicon(gpu)


def _axes(
    usual: Axes, sm: Sequence[float] | None, batch: Sequence[int] | None, tokens: Sequence[int] | None
) -> Axes:
    counts = tuple(sorted(set(tokens or ())))
    batches = tuple(sorted(set(batch or ())))
    return Axes(
        tuple(sorted({float(share) for share in sm})) if sm else usual.sm,
        batches or usual.batch,
        batches or usual.sequences,
        counts or usual.media,
        counts or usual.prompt,
        counts or usual.context,
    )


def _provenance(kernels: Kernels, source: Source) -> dict[str, Any]:
    """Stated error and further metadata: what the figures rest on."""
    content = calibration()
    roofline = kernels if isinstance(kernels, Roofline) else kernels.roofline  # type: ignore[attr-defined]  # Silicon has one
    name = kernels.gpu.name
    measured = name in content["gpus"] or content["same_chip"].get(name) in content["gpus"]
    kind = "silicon" if source == "silicon" else "own" if measured else "other"
    held: dict[str, Any] = {
        "error": ERROR[kind],
        "efficiency": {
            "fitted_on": roofline.fitted_on,
            "source": content["sources"]["kernels"],
            "factors": {
                kind: [factors.compute, factors.stream, factors.fill, factors.start_s]
                for kind, factors in roofline.efficiency.items()
                if not kind.startswith("all_reduce") or kind.endswith(kernels.gpu.link_kind)
            },
        },
        "sm_share": PARAMETERS,
    }
    if source == "silicon":
        held["silicon"] = {
            "library": kernels.library,  # type: ignore[attr-defined]  # a Silicon, by its source
            "roofline_for": sorted(kernels.missing | {"elementwise"}),  # type: ignore[attr-defined]  # as above
        }
    return held


def _notes(estimator: Estimator, source: Source) -> list[str]:
    gpu, tower = estimator.gpu, estimator.tower
    notes = [
        f"ESTIMATE ({source}): nothing was measured with this model on this GPU",
        f"encode on 1 GPU; prefill and decode on {estimator.tp} of them (tensor parallel)",
        "kernel times without what an engine adds between kernels",
        "SM shares by a formula with parameters of other GPUs: see sm_share, with their uncertainty",
        f"transfers: {percent(LINK_SHARE, 0)} of {gpu.link / 1e9:g} GB/s ({gpu.link_kind}), assumed",
        "preprocess: one CPU core, 2 ms + 3 ms a second of sound, assumed"
        if estimator.audio
        else "preprocess: one CPU core, 5 ms + 30 ms a megapixel, assumed within a factor of 2",
    ]
    if not tower.whole and not estimator.audio:
        notes.append("media attend within images or frames of up to 1,280 tokens")
    if estimator.lm.experts:
        notes.append("experts: chosen evenly, at the efficiency of dense products; no such kernel was fitted")
    return notes


__all__ = ["Axes", "Cost", "Estimator", "Source", "estimate_profile", "fewest_gpus", "weights_bytes"]

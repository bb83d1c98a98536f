"""Does a deployment fit its GPUs, and how many KV tokens does a worker hold.

| symbol | meaning | from |
|---|---|---|
| M | memory of one GPU, bytes | profile, `memory_bytes` |
| u | share of it a worker may use | deployment, `gpu_memory_utilization` |
| W_E, W_L | weights of the encoder and of the language model, bytes | profile, `weights_bytes` |
| k | KV bytes of one token | profile, `kv_bytes_per_token` |
| H | KV heads | profile, `kv_heads` |
| TP | GPUs of one worker | deployment, `tensor_parallel` |

A worker's KV room is floor((u·M·TP - W_L)/(k·max(1, TP/H))) tokens: GPUs beyond the heads hold copies of
them, as engines do it. A monolithic worker also holds W_E. The share 1 - u is what activations, graphs
and the allocator's waste live in, as in vLLM. Where pools have different GPUs, M, W, k and H are those of the pool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from has.core.deployment import POOLS, Deployment
from has.core.profile import ProfileMetadata, WeightsBytes

KV_POOLS = ("decode", "prefill_decode", "all")
"""Pools whose workers keep KV caches until a request ends."""

TOLERANCE = 0.05
"""An engine's memory differs from the formula by some percent: within this share over the limit, a
candidate is kept by pruning and left to a trial to settle."""


def kv_parts(tp: int, kv_heads: int | None) -> int:
    """Into how many parts `tp` GPUs split a token's KV: each holds one, and those beyond the heads a copy of one."""
    return tp if kv_heads is None else min(tp, kv_heads)


def kv_capacity(deployment: Deployment, metadata: ProfileMetadata, pool: str) -> int | None:
    """KV tokens of one worker of `pool` (decode, prefill_decode, all), at least 0; None is unlimited.

    `kv_tokens` of the deployment goes before the formula; without `memory_bytes` or
    `kv_bytes_per_token` in the profile there is no limit.
    """
    if deployment.kv_tokens is not None:
        return deployment.kv_tokens
    if metadata.memory_bytes is None or metadata.kv_bytes_per_token is None:
        return None
    weights = metadata.weights_bytes or WeightsBytes()
    held = weights.lm + (weights.encoder if pool == "all" else 0)
    tp = deployment.tp(pool)
    room = _usable(deployment, metadata.memory_bytes) * tp - held
    return max(0, math.floor(room / tp * kv_parts(tp, metadata.kv_heads) / metadata.kv_bytes_per_token))


def _usable(deployment: Deployment, memory_bytes: int) -> Fraction:
    """Bytes of one GPU that a worker may use; exact, so that a limit met to the byte is met."""
    return Fraction(Decimal(repr(float(deployment.gpu_memory_utilization)))) * memory_bytes


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """What one GPU of a pool must hold and may hold, in bytes. `why` lists what it holds, in words."""

    pool: str
    need_bytes: int
    have_bytes: int
    why: str

    @property
    def fits(self) -> bool:
        return self.need_bytes <= self.have_bytes

    @property
    def over(self) -> float:
        """need/have - 1: 0.2 is a fifth too much, negative is room left."""
        return self.need_bytes / self.have_bytes - 1 if self.have_bytes else math.inf


@dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """`lines`, one a pool; empty where the check is off. `notes` say what was not checked, and why."""

    lines: tuple[MemoryLine, ...]
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return all(line.fits for line in self.lines)

    @property
    def hopeless(self) -> MemoryLine | None:
        """The worst line more than TOLERANCE over its limit, if any: what pruning may cut for."""
        worst = max(self.lines, key=lambda line: line.over, default=None)
        return worst if worst is not None and worst.over > TOLERANCE else None

    @property
    def reason(self) -> str:
        """The worst line that does not fit, in words; empty where all fit."""
        worst = max(self.lines, key=lambda line: line.over, default=None)
        if worst is None or worst.fits:
            return ""
        return (
            f"a GPU of pool {worst.pool} must hold {gigabytes(worst.need_bytes)} ({worst.why}),"
            f" but has {gigabytes(worst.have_bytes)} to use"
        )


def memory_verdict(
    deployment: Deployment,
    metadata: ProfileMetadata | Mapping[str, ProfileMetadata],
    *,
    request_tokens: int = 1,
) -> MemoryVerdict:
    """Per GPU of each pool: weights, and KV for at least one request of `request_tokens` tokens
    (prompt + media + output; the largest that must be served) where a pool keeps KV.

    `metadata` of the profile, or by pool where pools have different GPUs.
    """
    notes: dict[str, None] = {}
    lines = []
    for pool in POOLS[deployment.topology]:
        known = metadata if isinstance(metadata, ProfileMetadata) else metadata[pool]
        notes |= dict.fromkeys(_unchecked(known))
        if known.memory_bytes is None or not deployment.alloc[pool]:
            continue
        have = math.floor(_usable(deployment, known.memory_bytes))
        held = _held(deployment, known, pool, request_tokens)
        why = " + ".join(f"{what} {gigabytes(n)}" for what, n in held.items())
        lines.append(MemoryLine(pool, sum(held.values()), have, why))
    return MemoryVerdict(tuple(lines), tuple(notes))


def _unchecked(metadata: ProfileMetadata) -> list[str]:
    if metadata.memory_bytes is None:
        return ["memory is not checked: the profile has no memory_bytes"]
    notes = []
    if metadata.weights_bytes is None:
        notes.append("weights are not checked: the profile has no weights_bytes")
    if metadata.kv_bytes_per_token is None:
        notes.append("KV is not limited: the profile has no kv_bytes_per_token")
    return notes


def memory_lines(
    deployment: Deployment,
    metadata: ProfileMetadata | Mapping[str, ProfileMetadata],
    *,
    request_tokens: int = 1,
) -> list[MemoryLine]:
    """The lines of `memory_verdict`."""
    return list(memory_verdict(deployment, metadata, request_tokens=request_tokens).lines)


def _held(
    deployment: Deployment, metadata: ProfileMetadata, pool: str, request_tokens: int
) -> dict[str, int]:
    """What one GPU of `pool` holds → bytes."""
    weights = metadata.weights_bytes or WeightsBytes()
    tp = deployment.tp(pool)
    held: dict[str, int] = {}
    if pool in ("encode", "all"):
        held["encoder"] = math.ceil(weights.encoder / tp)
    if pool != "encode":
        held["language model" + _over(tp)] = math.ceil(weights.lm / tp)
    elif deployment.topology == "disaggregated" and deployment.offload_fraction < 1:
        span = deployment.local_prefill_span
        held["language model for local prefill" + _over(span)] = math.ceil(weights.lm / span)
    if pool in KV_POOLS and metadata.kv_bytes_per_token is not None:
        parts = kv_parts(tp, metadata.kv_heads)
        held[f"KV of {request_tokens} tokens" + _over(parts)] = math.ceil(
            metadata.kv_bytes_per_token * request_tokens / parts
        )
    return held


def _over(gpus: int) -> str:
    return f" over {gpus} GPUs" if gpus > 1 else ""


def gigabytes(n: float) -> str:
    """Bytes in words, in decimal units as GPU facts and model sizes give them: `68.8 GB`."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(n) >= factor:
            return f"{n / factor:.1f} {unit}"
    return f"{n:.0f} B"

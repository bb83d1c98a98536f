"""How many requests a second each stage of a candidate can carry, from the profile alone.

    symbol   meaning                                                                     unit
    φ        share of requests with media
    m, t, L  mean media tokens of a media request; mean prompt + media tokens; output    tokens
    T(b, ..) latency of a batch of b                                                     s
    C_pre    S / T_pre(1, m) / φ,  S preprocessing servers                               req/s
    C_E(B)   n_E · b / T_enc(b, m) / φ, b <= B the best batch that TTFT allows           req/s
    μ_P      best prefill throughput of one worker within its token budget               req/s
    C_P      (n_P/TP_P) · μ_P
    v(B)     speed of a local prefill while B requests are encoded, relative to alone
    K        (n_E/TP_L) · μ_P on the encode GPUs: local prefill of encode GPUs that encode nothing
    TP_L     encode GPUs that one local prefill spans: TP_P, unless the deployment says otherwise
    C_L(r)   K · [(1 - ρ) + ρ·v],  ρ = r/C_E the encoders' utilisation at r requests/s
    b*       largest decode batch that meets the TPOT bound and fits the KV memory
    C_D      (n_D/TP_D) · b* / ((L - 1) · T_dec(b*))

n counts GPUs, so a pool of n has n/TP workers. Where pools have different GPUs, each T is that of
the pool where the work runs.

A candidate's R is the largest r that no stage refuses. Local prefill must carry (1 - s)·r at the
utilisation that r itself causes, which solves to r = K / ((1 - s) + K·(1 - v)/C_E); with s free it
is r = (C_P + K) / (1 + K·(1 - v)/C_E).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from has.core.deployment import Deployment
from has.core.requests import Floats, Requests
from has.core.slo import Slo
from has.core.stage import Beside, Stage
from has.latency.lookup import REACH, Grid, LatencyModel
from has.search.space import Candidate

UNBOUNDED = math.inf


@dataclass(frozen=True, slots=True)
class Demand:
    """What an average request asks of the stages."""

    media_share: float
    media_tokens: float
    total_tokens: float
    output_tokens: float

    @classmethod
    def of(cls, requests: Requests) -> Demand:
        media = requests.is_media
        return cls(
            media_share=requests.media_share,
            media_tokens=float(requests.media_tokens[media].mean()) if media.any() else 0.0,
            total_tokens=float(requests.total_tokens.mean()),
            output_tokens=float(requests.output_tokens.mean()),
        )


@dataclass(frozen=True, slots=True)
class Capacities:
    """Requests a second of each stage, in all requests; `limit` is the least, `binding` its name."""

    stages: Mapping[str, float]

    @property
    def binding(self) -> str:
        return min(self.stages, key=lambda stage: self.stages[stage])

    @property
    def limit(self) -> float:
        return min(self.stages.values())

    def utilisations(self, rate: float) -> dict[str, float]:
        """Share of each stage's capacity that `rate` requests a second use."""
        return {name: rate / c if c > 0 else UNBOUNDED for name, c in self.stages.items()}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may take at once, as the deployments of this search set it."""

    max_num_seqs: int = 256
    prefill_tokens: int = 8192
    max_prefill_requests: int | None = None
    preprocess_workers: int | None = None
    local_prefill: int | None = None
    """Encode GPUs that one local prefill spans; None: as many as a remote one."""

    @classmethod
    def of(cls, deployment: Deployment) -> Limits:
        """Those that the deployment itself sets."""
        return cls(
            max_num_seqs=deployment.max_num_seqs,
            prefill_tokens=deployment.prefill_token_budget,
            max_prefill_requests=deployment.max_prefill_requests,
            preprocess_workers=deployment.preprocess_workers,
            local_prefill=deployment.local_prefill_span,
        )


def loosest(requests: Requests, slo: Slo) -> Slo:
    """The bounds of whichever request has most time: nobody is bound by more than that."""
    return _extreme(requests, slo, np.max)


def strictest(requests: Requests, slo: Slo) -> Slo:
    """The bounds of whichever request has least time: what holds under them holds for all."""
    return _extreme(requests, slo, np.min)


def _extreme(requests: Requests, slo: Slo, pick: Callable[[Floats], Any]) -> Slo:
    if len(requests) == 0 or np.isnan(requests.ttft_slo_s).all():
        return slo
    ttft_s, tpot_s = requests.bounds_s(slo)
    return slo.model_copy(update={"ttft_ms": float(pick(ttft_s)) * 1e3, "tpot_ms": float(pick(tpot_s)) * 1e3})


class CapacityModel:
    """Stage capacities of candidates under one profile, one demand and one SLO.

    `kv_tokens(pool candidate)` says how many KV tokens one decode worker holds (None: unlimited).
    `slack` multiplies latencies where it is judged which batch still meets the SLO: 1 + e is
    pessimistic, 1 - e optimistic about what, near the bound, can be any.
    `queued` counts what waiting behind the batch before adds at high utilisation, the attainment
    quantile of a uniform residual, to what TTFT must hold: for a reference that can be reached.
    `encode_shares` float[B+1] is encode's SM share by batch size, None for streams. `optimism` above
    0 makes what encoding leaves to local prefill an upper bound: the encoders are taken to be that
    share faster, and their batches to be of one request (they only fill up when encode is pressed).
    """

    def __init__(
        self,
        latency: LatencyModel,
        demand: Demand,
        slo: Slo,
        limits: Limits,
        encode_shares: np.ndarray | None,
        *,
        slack: float = 1.0,
        optimism: float = 0.0,
        queued: bool = False,
    ) -> None:
        self.latency = latency
        self.demand = demand
        self.slo = slo
        self.limits = limits
        self._shares = encode_shares
        self._slack = slack
        self._optimism = optimism
        self._residual = slo.attainment if queued else 0.0
        self._known_encode = lru_cache(maxsize=None)(self._encode_per_worker)
        self.prefill_per_worker = lru_cache(maxsize=None)(self._prefill_per_worker)
        self.local_speed = lru_cache(maxsize=None)(self._local_speed)
        self.decode_batch = lru_cache(maxsize=None)(self._decode_batch)
        self.decode_per_worker = lru_cache(maxsize=None)(self._decode_per_worker)

    def of(self, candidate: Candidate, kv_tokens: int | None = None) -> Capacities:
        """Capacities at this candidate's own B and s."""
        stages: dict[str, float] = {}
        if self.demand.media_share > 0:
            stages["preprocess"] = self.preprocess(candidate)
        match candidate.topology:
            case "disaggregated":
                stages |= self._disaggregated(candidate, kv_tokens)
            case "e_pd":
                stages["encode"] = candidate.pool("encode") * self.encode_per_worker(candidate.encode_batch)
                workers = candidate.pool("prefill_decode") // candidate.pool_tp("prefill_decode")
                stages["prefill_decode"] = workers * self._iterating_worker(kv_tokens, "prefill_decode")
            case "monolithic":
                workers = candidate.gpus[0] // candidate.tp[0]
                stages["all"] = workers * self._iterating_worker(kv_tokens, "all")
        return Capacities(stages)

    def best_over_offload(self, candidate: Candidate, kv_tokens: int | None = None) -> float:
        """R at this candidate's allocation and B, were s free (the prefill pools then share the work)."""
        if candidate.topology != "disaggregated":
            return self.of(candidate, kv_tokens).limit
        encode = self._encode(candidate)
        both = self.remote_prefill(candidate) + self.idle_local_prefill(candidate)
        lost = self._local_loss(candidate)
        prefill = both / (1 + lost)
        rest = self.of(candidate, kv_tokens).stages
        return min(encode, prefill, rest["decode"], rest.get("preprocess", UNBOUNDED))

    def preprocess(self, candidate: Candidate) -> float:
        seconds = self._preprocess_s
        servers = self.limits.preprocess_workers or candidate.total
        return _rate(servers, seconds * self.demand.media_share)

    @cached_property
    def _preprocess_s(self) -> float:
        return self.latency.grid(Stage.PREPROCESS).seconds(100.0, 1.0, self.demand.media_tokens)

    def remote_prefill(self, candidate: Candidate) -> float:
        """C_P."""
        return candidate.pool("prefill") // candidate.pool_tp("prefill") * self.prefill_per_worker("prefill")

    def idle_local_prefill(self, candidate: Candidate) -> float:
        """K."""
        span = self.limits.local_prefill or candidate.pool_tp("prefill")
        return candidate.pool("encode") // span * self.prefill_per_worker("encode")

    def local_prefill(self, candidate: Candidate, rate: float) -> float:
        """C_L at `rate` requests a second."""
        encode = self._encode(candidate)
        busy = min(1.0, rate * (1 - self._optimism) / encode) if encode > 0 else 1.0
        return self.idle_local_prefill(candidate) * (
            1 - busy * (1 - self.local_speed(candidate.encode_batch))
        )

    def _disaggregated(self, candidate: Candidate, kv_tokens: int | None) -> dict[str, float]:
        local = 1 - candidate.share
        stages = {"encode": self._encode(candidate)}
        if local > 0:
            stages["prefill_local"] = _divide(
                self.idle_local_prefill(candidate), local + self._local_loss(candidate)
            )
        if candidate.offload > 0:
            stages["prefill_remote"] = self.remote_prefill(candidate) / candidate.share
        workers = candidate.pool("decode") // candidate.pool_tp("decode")
        stages["decode"] = workers * self.decode_per_worker(kv_tokens)
        return stages

    def _local_loss(self, candidate: Candidate) -> float:
        """K·(1 - v)/C_E: what encoding takes from local prefill, per request."""
        lost = self.idle_local_prefill(candidate) * (1 - self.local_speed(candidate.encode_batch))
        encode = self._encode(candidate)
        return 0.0 if encode == UNBOUNDED else _divide(lost * (1 - self._optimism), encode)

    def _encode(self, candidate: Candidate) -> float:
        return candidate.pool("encode") * self.encode_per_worker(candidate.encode_batch)

    def encode_per_worker(self, bound: int, pool: str = "encode") -> float:
        """C_E of one worker: the best full batch that leaves TTFT a chance, at most `bound` requests."""
        return self._known_encode(bound, pool)

    def _encode_per_worker(self, bound: int, pool: str) -> float:
        if self.demand.media_share == 0:
            return UNBOUNDED
        sizes = [b for b in range(1, bound + 1) if self._fits_ttft(b, pool)] or [1]
        return max(self.encode_throughput(b, pool) for b in sizes)

    def _fits_ttft(self, batch: int, pool: str) -> bool:
        demand, grid = self.demand, self._grid(Stage.ENCODE, pool)
        encode = grid.seconds(100.0, _reachable(grid, batch), demand.media_tokens)
        ways = ("prefill", "encode") if pool == "encode" else (pool,)
        prefill = min(self._grid(Stage.PREFILL, way).seconds(100.0, 1.0, demand.total_tokens) for way in ways)
        return (self._preprocess_s + (1 + self._residual) * encode + prefill) * self._slack <= self.slo.ttft_s

    def encode_throughput(self, batch: int, pool: str = "encode") -> float:
        """Requests a second (in all, text included) of one encoder that launches full batches, whatever the SLO."""
        if self.demand.media_share == 0:
            return UNBOUNDED
        grid = self._grid(Stage.ENCODE, pool)
        size = _reachable(grid, batch)
        seconds = grid.seconds(100.0, size, self.demand.media_tokens)
        return _rate(size, seconds * self.demand.media_share)

    def _local_speed(self, bound: int) -> float:
        """v(B)."""
        bound = 1 if self._optimism > 0 else bound
        alone = self._grid(Stage.PREFILL, "encode").seconds(100.0, 1.0, self.demand.total_tokens)
        share = (
            100.0 if self._shares is None else 100.0 - float(self._shares[min(bound, len(self._shares) - 1)])
        )
        if share <= 0:
            return 0.0
        beside = self.latency.on("encode").grid(Stage.PREFILL, Beside.ENCODE)
        shared = beside.seconds(share, 1.0, self.demand.total_tokens)
        return min(1.0, alone / shared) if shared > 0 else 1.0

    def _prefill_per_worker(self, pool: str) -> float:
        """μ_P on the GPUs of `pool`."""
        grid, tokens = self._grid(Stage.PREFILL, pool), self.demand.total_tokens
        most = max(1, int(self.limits.prefill_tokens // max(tokens, 1.0)))
        most = min(most, self.limits.max_prefill_requests or most)
        return max(_rate(n, grid.seconds(100.0, n, tokens)) for n in _sizes(_reachable(grid, most)))

    def _decode_batch(self, kv_tokens: int | None, pool: str = "decode") -> int:
        """b*; 0 if not even one sequence meets the TPOT bound."""
        grid = self._grid(Stage.DECODE, pool)
        context = self.demand.total_tokens + self.demand.output_tokens / 2
        most = min(self.limits.max_num_seqs, _reachable(grid, self.limits.max_num_seqs))
        if kv_tokens is not None:
            most = min(most, int(kv_tokens // (self.demand.total_tokens + self.demand.output_tokens)))
        bound = self.slo.tpot_s / self._slack
        fitting = [b for b in range(1, most + 1) if grid.seconds(100.0, b, context) <= bound]
        return max(fitting, default=0)

    def _decode_per_worker(self, kv_tokens: int | None) -> float:
        """C_D of one worker; unbounded where nothing is decoded after the first token."""
        steps = self.demand.output_tokens - 1
        if steps <= 0:
            return UNBOUNDED
        batch = self.decode_batch(kv_tokens)
        return _rate(batch, steps * self._step_s(max(batch, 1), "decode"))

    def _step_s(self, batch: float, pool: str) -> float:
        context = self.demand.total_tokens + self.demand.output_tokens / 2
        return self._grid(Stage.DECODE, pool).seconds(100.0, batch, context)

    def _iterating_worker(self, kv_tokens: int | None, pool: str) -> float:
        """One PD or monolithic worker: a request costs its prefill, its share of decode steps, its encode."""
        prefill = _divide(1.0, self.prefill_per_worker(pool))
        batch = self.decode_batch(kv_tokens, pool)
        if batch == 0 and self.demand.output_tokens > 1:
            return 0.0
        decode = max(0.0, self.demand.output_tokens - 1) * self._step_s(max(batch, 1), pool) / max(batch, 1)
        encode = _divide(1.0, self.encode_per_worker(1, pool)) if pool == "all" else 0.0
        return _rate(1.0, prefill + decode + encode)

    def _grid(self, stage: Stage, pool: str) -> Grid:
        return self.latency.on(pool).grid(stage)


def _reachable(grid: Grid, batch: int) -> int:
    """`batch`, or the largest that the profile answers for."""
    return batch if len(grid.batch) == 1 else min(batch, int(REACH * grid.batch[-1]))


def _sizes(most: int) -> list[int]:
    """1, 2, 4, … and `most`."""
    return sorted({min(2**k, most) for k in range(most.bit_length() + 1)})


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else (UNBOUNDED if count > 0 else 0.0)


def _divide(a: float, b: float) -> float:
    return a / b if b > 0 else UNBOUNDED if a > 0 else 0.0

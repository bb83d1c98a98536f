"""What is asked, made ready: demand, rates, and how a candidate becomes a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from has.core.deployment import Deployment, SmRow
from has.core.profile import Profile, ProfileMetadata
from has.core.requests import Floats, Requests
from has.core.slo import Slo
from has.core.stage import Stage
from has.core.workload import Workload
from has.errors import InputError
from has.latency.lookup import REACH, LatencyModel
from has.latency.memory import kv_capacity
from has.policy.partition import SmPartitioner
from has.search.capacity import CapacityModel, Demand, Limits, loosest, strictest
from has.search.objective import Objective
from has.search.pools import POOL_NAMES, hardware, latency_of
from has.search.space import Candidate
from has.search.traffic import lasting, most_like
from has.search.worst import WorstCapacity, with_slo
from has.sim.draw import draw_requests

WARM_UP = 0.1
"""Share of the arrival span that figures of a search leave out."""
PREFILL_POOL = {"disaggregated": "prefill", "e_pd": "prefill_decode", "monolithic": "all"}
"""Where a request is prefilled that is not prefilled on the encode GPUs."""
LASTS = 1000
"""Requests from which on a list is judged by; of a trace that counts beside another workload it is then all."""
KEPT = 2000
"""Deployments that are kept once made; a search that looks at more candidates makes them again."""
WAITING_SHARE = 0.5
"""Share of what TTFT leaves after the services that a batch may spend waiting: all of it ruins attainment."""


@dataclass
class Problem:
    """One search: inputs, and what is derived from them once.

    requests   drawn at `base_rate`; `at_rate` gives the same requests at another rate
    pool_profiles  of pools whose GPUs are not those of `profile`
    further    workloads that count beside the first: the worst of all decides
    settings   fields of `Deployment` that hold for every candidate (model, dtype, limits, …)
    """

    gpus: int
    profile: Profile
    workload: Workload
    objective: Objective
    requests: Requests
    base_rate: float
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    batches: tuple[int, ...] = (1,)
    pool_profiles: Mapping[str, Profile] = field(default_factory=dict)
    further: tuple[Workload, ...] = ()

    def __post_init__(self) -> None:
        self._beside: dict[tuple[int, int], tuple[Requests, ...]] = {}
        self._traces: dict[str, Requests] = {}
        self._deployments: dict[Candidate, Deployment] = {}
        self._waits: dict[tuple[Any, ...], float] = {}
        self._kv: dict[tuple[Any, ...], int | None] = {}

    @property
    def slo(self) -> Slo:
        return self.objective.slo

    @cached_property
    def latency(self) -> LatencyModel:
        return latency_of(self.profile, self.pool_profiles)

    @property
    def metadata(self) -> ProfileMetadata | dict[str, ProfileMetadata]:
        """Of the profile; by pool where pools have different GPUs."""
        if not self.latency.pools:
            return self.profile.metadata
        return {pool: self.latency.on(pool).metadata for pool in POOL_NAMES}

    @cached_property
    def demand(self) -> Demand:
        return Demand.of(self.requests)

    @property
    def error(self) -> float:
        """e: how wrong the profiles' latencies may be, at the most."""
        return max(p.metadata.stated_error for p in (self.profile, *self.pool_profiles.values()))

    def beside(self, requests: Requests, seed: int | None = None) -> tuple[Requests, ...]:
        """As many requests of each further workload, at the base rate; `seed` of another than this search's."""
        if not self.further:
            return ()
        key = (len(requests), self.seed if seed is None else seed)
        if key not in self._beside:
            drawn = tuple(self._draw(w, *key) for w in self.further)
            self._beside.setdefault(key, drawn)  # one list for all, where two threads draw it at once
        return self._beside[key]

    def _draw(self, workload: Workload, count: int, seed: int) -> Requests:
        model = self.settings["model"]
        if workload.arrivals.process == "trace":
            if workload.name not in self._traces:
                self._traces[workload.name] = draw_requests(workload, model=model)
            trace = self._traces[workload.name]
            drawn = lasting(trace) if count >= LASTS else most_like(trace, count)[0]
            # The whole trace's rate, as for the first workload: the stretches are busier in the mean, and stay so.
            drawn = stretched(drawn, rate_in_force(workload, trace) / self.base_rate)
        else:
            drawn = draw_requests(workload, rate=self.base_rate, requests=count, seed=seed, model=model)
        return with_slo(drawn, workload.slo)

    @property
    def _judged(self) -> list[tuple[Requests, Slo]]:
        """The requests of each workload, with the SLO that holds for it."""
        bounds = [self.slo, *(workload.slo or self.slo for workload in self.further)]
        return list(zip((self.requests, *self.beside(self.requests)), bounds, strict=True))

    @cached_property
    def output_tokens(self) -> float:
        """Mean output tokens of a request; of several workloads the least, whose tokens are the dearest."""
        return min(float(requests.output_tokens.mean()) for requests, _ in self._judged)

    def of_workload(self, name: str | None, requests: Requests) -> Requests:
        """`requests`, or as many of the further workload whose run spoke for all."""
        names = [workload.name for workload in self.further]
        return self.beside(requests)[names.index(name)] if name in names else requests

    @cached_property
    def sm_rows(self) -> tuple[SmRow, ...] | Literal["streams"] | None:
        """The table of the largest B; x* never falls with b, so a smaller B's table is its beginning."""
        given = self.settings.get("sm_table")
        if given is not None:
            return SmPartitioner(given).sm_table
        if not self.latency.covers(Stage.ENCODE):
            return "streams"  # nothing is encoded, so there is nothing to part the SMs for
        budget = self.settings.get("encode_slowdown_budget", 0.2)
        encoding = self.pool_profiles.get("encode", self.profile)
        return SmPartitioner.from_profile(encoding, budget, max(self.batches)).sm_table

    @cached_property
    def encode_shares(self) -> Floats | None:
        """Encode's SM share by batch size, float[B+1]; None for streams."""
        return None if self.sm_rows is None else shares_of(SmPartitioner(self.sm_rows), max(self.batches))

    def deployment(self, candidate: Candidate) -> Deployment:
        """The candidate with everything a runtime needs: SM table, waiting budget, SLO."""
        found = self._deployments.get(candidate)
        if found is None:
            while len(self._deployments) >= KEPT:  # the oldest goes: memory is the same for any number
                del self._deployments[next(iter(self._deployments))]
            fields = {"version": 1, "slo": self.slo, **self.settings, **candidate.fields()}
            fields.pop("sm_table", None)
            if (gpus := hardware(self.latency, candidate.topology)) is not None:
                fields["hardware"] = gpus
            if self.profile.metadata.dtype == "fp8":  # an engine quantizes only if it is told to
                fields.setdefault("dtype", "fp8")
            if candidate.topology == "disaggregated":
                fields["sm_table"] = self._sm_table(candidate.encode_batch)
            if candidate.topology != "monolithic" and fields.get("max_wait_ms") is None:
                fields["max_wait_ms"] = self.max_wait_ms(candidate)
            found = self._deployments[candidate] = Deployment(**fields)
        return found

    def _sm_table(self, bound: int) -> tuple[SmRow, ...] | str | None:
        if self.sm_rows is None or isinstance(self.sm_rows, str):
            return self.sm_rows
        return tuple(row for row in self.sm_rows if row.batch <= bound) or self.sm_rows[:1]

    def max_wait_ms(self, candidate: Candidate) -> float:
        """Half of what its TTFT bound leaves a media request after all predicted services, at the tenth that has
        least, of whichever workload leaves less."""
        disaggregated = candidate.topology == "disaggregated"
        local = disaggregated and candidate.share < 1
        remote = not disaggregated or candidate.share > 0
        key = (candidate.encode_batch, local, remote, candidate.topology)
        if key not in self._waits:
            left = []
            for requests, slo in self._judged:
                services = self.services(
                    candidate.encode_batch,
                    local=local,
                    remote=remote,
                    pool=PREFILL_POOL[candidate.topology],
                    requests=requests,
                )[requests.is_media]
                spare = requests.bounds_s(slo)[0][requests.is_media] - services
                left.append(float(np.quantile(spare, 0.1)) if len(spare) else slo.ttft_s)
            self._waits[key] = round(max(0.0, WAITING_SHARE * min(left)) * 1e3, 3)
        return self._waits[key]

    def services(
        self,
        encode_batch: int,
        *,
        local: bool,
        remote: bool,
        worst: bool = True,
        pool: str = "prefill",
        requests: Requests | None = None,
    ) -> Floats:
        """Preprocess + encode + transfer + prefill of each request without any queue, float[N] in seconds.

        Encode is that of a batch of `encode_batch` like requests; of the two ways to prefill (locally,
        and on the GPUs of `pool`), the slower one (`worst`) or the faster one of those in use.
        """
        listed = self.requests if requests is None else requests
        media = listed.media_tokens.astype(np.float64)
        total = listed.total_tokens.astype(np.float64)
        encoding = "all" if pool == "all" else "encode"
        share = 100.0
        if local and self.encode_shares is not None:
            share = float(self.encode_shares[min(encode_batch, len(self.encode_shares) - 1)])
        encode = self._seconds(Stage.PREPROCESS, 1, media)
        if self.latency.on(encoding).covers(Stage.ENCODE):
            encode = encode + self._seconds(Stage.ENCODE, max(encode_batch, 1), media, share, encoding)
        encode = np.where(listed.is_media, encode, 0.0)
        ways = []
        if local:
            ways.append(self._seconds(Stage.PREFILL, 1, total, on="encode"))
        if remote or not local:
            prefill = self._seconds(Stage.PREFILL, 1, total, on=pool)
            if remote and pool != "all":
                prefill = prefill + np.where(
                    media > 0, self._seconds(Stage.EMBEDDING_TRANSFER, 1, media), 0.0
                )
            ways.append(prefill)
        prefill_s: Floats = np.max(ways, axis=0) if worst else np.min(ways, axis=0)
        return encode + prefill_s

    def _seconds(
        self, stage: Stage, batch: int, tokens: Floats, share: float = 100.0, on: str | None = None
    ) -> Floats:
        grid = (self.latency if on is None else self.latency.on(on)).grid(stage)
        sizes, inverse = np.unique(tokens, return_inverse=True)
        return np.array([grid.seconds(share, batch, size) for size in sizes])[inverse]

    def kv_tokens(self, candidate: Candidate) -> int | None:
        """KV tokens of one decoding worker of this candidate; None where nothing bounds them."""
        pool = {"disaggregated": "decode", "e_pd": "prefill_decode", "monolithic": "all"}[candidate.topology]
        key = (candidate.topology, candidate.pool_tp(pool))
        if key not in self._kv:
            metadata = self.latency.on(pool).metadata
            self._kv[key] = kv_capacity(self.deployment(candidate), metadata, pool)
        return self._kv[key]

    def capacity_model(
        self,
        *,
        slack: float = 1.0,
        optimism: float = 0.0,
        queued: bool = False,
        latency: LatencyModel | None = None,
        of: Deployment | None = None,
    ) -> CapacityModel:
        """Bounds under the profile's latencies, or others; of several workloads, what holds for the worst.

        `queued`: for what is promised, so that the strictest of the requests' own bounds counts, else the loosest.
        `of`: by this deployment's own limits and SM table, in place of this search's.
        """
        some = {
            k: self.settings[k]
            for k in ("max_num_seqs", "max_prefill_requests", "preprocess_workers")
            if k in self.settings
        }
        limits = Limits(prefill_tokens=self.settings.get("max_num_batched_tokens") or 8192, **some)
        shares = self.encode_shares
        if of is not None:
            limits = Limits.of(of)
            shares = (
                shares if of.sm_table is None else shares_of(SmPartitioner(of.sm_table), of.encode_batch or 1)
            )
        bounds = strictest if queued else loosest
        models = [
            CapacityModel(
                self.latency if latency is None else latency,
                Demand.of(requests),
                bounds(requests, slo),
                limits,
                shares,
                slack=slack,
                optimism=optimism,
                queued=queued,
            )
            for requests, slo in self._judged
        ]
        return models[0] if len(models) == 1 else WorstCapacity(models)

    def at_rate(self, rate: float, requests: Requests | None = None) -> Requests:
        """The same requests, their arrivals stretched so that they come at `rate`."""
        return stretched(self.requests if requests is None else requests, self.base_rate / rate)

    def beyond_reach(self, encode_batch: int) -> bool:
        """Whether the profile cannot answer for encode batches of that size."""
        if not self.latency.covers(Stage.ENCODE):
            return False
        axis = self.latency.grid(Stage.ENCODE).batch
        return len(axis) > 1 and encode_batch > REACH * axis[-1]


def shares_of(table: SmPartitioner, most: int) -> Floats | None:
    """Encode's SM share while 0 … `most` requests are encoded, float[most+1] in percent; None for streams."""
    return None if table.streams else np.array([table.encode_share(b) for b in range(most + 1)])


def stretched(requests: Requests, factor: float) -> Requests:
    """All arrival times multiplied by `factor`."""
    if factor == 1.0:
        return requests
    moved = requests[:]
    first = requests.arrival_ns[0] if len(requests) else 0
    times = first + np.rint((requests.arrival_ns - first) * factor).astype(np.int64)
    object.__setattr__(moved, "arrival_ns", times)  # a fresh copy that nobody else has seen yet
    return moved


def warmup_s(requests: Requests) -> float:
    """What figures of a search cut off: the first tenth of the arrival span."""
    return WARM_UP * requests.span_s


def rate_in_force(workload: Workload, requests: Requests) -> float:
    """The workload's rate, or a trace's mean. InputError where there is neither."""
    rate = workload.arrivals.rate or requests.mean_rate
    if rate is None:
        raise InputError(
            "no rate is in force",
            where="workload",
            field="arrivals.rate",
            mend="give --rate, or a rate in the workload",
        )
    return rate

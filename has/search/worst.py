"""Several workloads at once: what counts is the worst of them.

Each workload has its own requests, drawn at the same base rate, and its own SLO. A deployment is run
on all of them, and the run with the lowest attainment speaks for it. So a largest rate is one at which
every workload meets its SLO, and a goodput is the one that the hardest of them leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from has.core.requests import Requests
from has.core.slo import Slo
from has.search.capacity import Capacities, CapacityModel
from has.search.objective import Point
from has.search.space import Candidate


def worst(points: Sequence[Point]) -> Point:
    """The run that speaks for all."""
    return min(points, key=lambda p: (p.attainment, p.goodput_rps))


def with_slo(requests: Requests, slo: Slo | None) -> Requests:
    """The same requests, each with this SLO unless it has one of its own."""
    if slo is None:
        return requests
    held = requests[:]
    for name, bound in (("ttft_slo_s", slo.ttft_s), ("tpot_slo_s", slo.tpot_s)):
        own = getattr(requests, name)
        object.__setattr__(held, name, np.where(np.isnan(own), bound, own))  # a copy nobody else has seen
    return held


class WorstCapacity(CapacityModel):
    """Of each stage the least that it carries under any of several demands.

    A rate that every workload can be served at is one that each stage carries under each demand, so
    the least of the stages' leasts bounds it.
    """

    def __init__(self, models: Sequence[CapacityModel]) -> None:
        self.models = models
        self.limits = models[0].limits
        self.latency, self.demand, self.slo = models[0].latency, models[0].demand, models[0].slo
        self.decode_batch = lru_cache(maxsize=None)(self._decode_batch)
        self.decode_per_worker = lru_cache(maxsize=None)(self._decode_per_worker)

    def of(self, candidate: Candidate, kv_tokens: int | None = None) -> Capacities:
        found = [dict(model.of(candidate, kv_tokens).stages) for model in self.models]
        names = dict.fromkeys(name for stages in found for name in stages)
        return Capacities({name: min(s[name] for s in found if name in s) for name in names})

    def best_over_offload(self, candidate: Candidate, kv_tokens: int | None = None) -> float:
        return min(model.best_over_offload(candidate, kv_tokens) for model in self.models)

    def remote_prefill(self, candidate: Candidate) -> float:
        return min(model.remote_prefill(candidate) for model in self.models)

    def idle_local_prefill(self, candidate: Candidate) -> float:
        return min(model.idle_local_prefill(candidate) for model in self.models)

    def local_prefill(self, candidate: Candidate, rate: float) -> float:
        return min(model.local_prefill(candidate, rate) for model in self.models)

    def encode_per_worker(self, bound: int, pool: str = "encode") -> float:
        return min(model.encode_per_worker(bound, pool) for model in self.models)

    def encode_throughput(self, batch: int, pool: str = "encode") -> float:
        return min(model.encode_throughput(batch, pool) for model in self.models)

    def _decode_batch(self, kv_tokens: int | None, pool: str = "decode") -> int:
        return min(model.decode_batch(kv_tokens, pool) for model in self.models)

    def _decode_per_worker(self, kv_tokens: int | None) -> float:
        return min(model.decode_per_worker(kv_tokens) for model in self.models)

"""Candidates scored by the simulator, under the profile's latencies or any others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from has.core.deployment import POOLS, Deployment
from has.core.figures import figures
from has.core.records import Records
from has.core.requests import Floats, Ints, Requests
from has.core.stage import Beside, Stage
from has.errors import InputError
from has.latency.lookup import Grid, LatencyModel
from has.latency.memory import kv_capacity
from has.search.factors import FACTORS, Curve
from has.search.objective import ABOVE, GRID, REFINED, Point, Score, nearby_rate
from has.search.problem import WARM_UP, Problem, warmup_s
from has.search.space import Candidate, candidate_of
from has.search.worst import worst
from has.sim.simulator import Bounds, Prepared, Simulator

ROUGH = {"grid": 0.08, "refined": 0.02}
"""Steps of the rate scan where candidates are only compared."""


GENEROUS = 0.85
"""Latencies are taken this much smaller where a bound to scan rates down from asks which batch meets the SLO."""


LISTS_KEPT = 6
"""Lists of requests that stay prepared, the latest: long ones are drawn anew for every rate that is held to them."""


class Predictor:
    """One set of latencies. Counts its simulations in `simulations`.

    A candidate for which the latencies extrapolate to nonsense scores nothing; the first such fault
    is kept in `fault`.
    """

    def __init__(self, problem: Problem, latency: LatencyModel | None = None) -> None:
        self.problem = problem
        self.latency = problem.latency if latency is None else latency
        self.simulations = 0
        self.fault: InputError | None = None
        self._simulator = Simulator(self.latency)
        self._prepared: dict[int, tuple[Requests, Prepared, Bounds]] = {}
        self._limits: dict[str, float] = {}
        self.capacity = problem.capacity_model(latency=self.latency, slack=GENEROUS)

    def twin(self) -> Self:
        """Another of the same latencies, for another thread."""
        return type(self)(self.problem, self.latency)

    def absorb(self, twin: Predictor) -> None:
        """Count what `twin` has done as done here."""
        self.simulations += twin.simulations
        self.fault = self.fault or twin.fault

    def limit(self, candidate: Candidate) -> float:
        """R of the candidate; where the profile bounds nothing, ten times the rate in force."""
        return self._or_much(self.capacity.of(candidate, self.problem.kv_tokens(candidate)).limit)

    def limit_of(self, deployment: Deployment) -> float:
        """The same for any deployment, by its own limits, memory share and SM table."""
        key = deployment.digest()
        if key not in self._limits:
            capacity = self.problem.capacity_model(latency=self.latency, slack=GENEROUS, of=deployment)
            pool = POOLS[deployment.topology][-1]
            kv_tokens = kv_capacity(deployment, self.latency.on(pool).metadata, pool)
            self._limits[key] = self._or_much(capacity.of(candidate_of(deployment), kv_tokens).limit)
        return self._limits[key]

    def _or_much(self, limit: float) -> float:
        return limit if math.isfinite(limit) else 10 * self.problem.base_rate

    def warnings(self, requests: Requests) -> list[str]:
        """Look-ups beyond the profile that these requests alone need. InputError where it does not reach."""
        return self._simulator.check_sizes(requests)

    def records(self, deployment: Deployment, rate: float, requests: Requests) -> Records:
        """One simulation of `requests` (drawn at the problem's base rate) at `rate`."""
        self.simulations += 1
        prepared, _ = self._prepare(requests)
        mean = requests.mean_rate
        if mean is not None and rate != self.problem.base_rate:
            prepared = prepared.at_rate(mean * rate / self.problem.base_rate)
        return self._simulator.run(deployment, prepared, rate=rate)

    def point(self, deployment: Deployment, rate: float, requests: Requests) -> Point:
        """The same, as the few numbers that a score needs; of several workloads, the worst one's."""
        listed = (requests, *self.problem.beside(requests))
        try:
            return worst([self._point(deployment, rate, each) for each in listed])
        except InputError as error:
            self.fault = self.fault or error
            return Point(rate, 0.0, 0.0, math.inf)

    def _point(self, deployment: Deployment, rate: float, requests: Requests) -> Point:
        """As `core.figures` defines these few, without the rest."""
        self.simulations += 1
        prepared, bounds = self._prepare(requests)
        tally = self._simulator.tally(
            deployment,
            prepared,
            bounds,
            rate=rate,
            stretch=self._stretch(requests, rate),
            warmup_share=WARM_UP,
        )
        if len(tally.ttft_ns) == 0:
            return Point(rate, 0.0, 0.0, math.inf)
        return Point(
            rate=rate,
            attainment=tally.met / tally.kept,
            goodput_rps=tally.met / (tally.duration_ns / 1e9) if tally.duration_ns > 0 else 0.0,
            ttft_p99_ms=_quantile(tally.ttft_ns, 0.99) / 1e6,
        )

    def _stretch(self, requests: Requests, rate: float) -> float:
        """What arrival times are multiplied by, so that the stream they come from has `rate`."""
        mean = requests.mean_rate
        if mean is None or rate == self.problem.base_rate:
            return 1.0
        return mean / (mean * rate / self.problem.base_rate)

    def figures(self, deployment: Deployment, rate: float, requests: Requests) -> dict[str, Any]:
        """The same, as all figures. InputError where the latencies extrapolate to nonsense."""
        records = self.records(deployment, rate, requests)
        return figures(records, self.problem.slo, warmup_s(records.requests))

    def _prepare(self, requests: Requests) -> tuple[Prepared, Bounds]:
        found = self._prepared.get(id(requests))
        if found is None:
            while len(self._prepared) >= LISTS_KEPT:
                del self._prepared[next(iter(self._prepared))]
            # The list is kept beside, so that its id is not given to another one.
            found = self._prepared[id(requests)] = (
                requests,
                self._simulator.prepare(requests, self.problem.seed),
                Bounds.of(requests, self.problem.slo),
            )
        return found[1:]

    def score(self, candidate: Candidate, requests: Requests, **scan: Any) -> Score:
        """The candidate's score on this list of requests; `scan` as `score_deployment` takes it."""
        return self.score_deployment(
            self.problem.deployment(candidate), requests, self.limit(candidate), **scan
        )

    def score_deployment(
        self,
        deployment: Deployment,
        requests: Requests,
        limit: float,
        *,
        grid: float = GRID,
        refined: float = REFINED,
        lower: float = 0.0,
        upper: float | None = None,
    ) -> Score:
        """Likewise for a deployment that can carry `limit` at most; `upper` may be known to be lower."""
        if limit <= 0:
            nothing = Point(self.problem.base_rate, 0.0, 0.0, math.inf)
            return Score(0.0, nothing, feasible=False)
        return self.problem.objective.score(
            lambda rate: self.point(deployment, rate, requests),
            limit if upper is None else min(limit, upper),
            grid=grid,
            refined=refined,
            lower=lower,
        )

    def value(self, candidate: Candidate, requests: Requests, guess: float | None) -> float:
        """The score's value alone; a maximum rate is looked for near `guess`, if there is one."""
        if self.problem.objective.name != "max-rate" or not guess:
            return self.score(candidate, requests, **ROUGH).value
        deployment = self.problem.deployment(candidate)
        return nearby_rate(
            lambda rate: self.point(deployment, rate, requests),
            guess,
            self.problem.slo.attainment,
            most=ABOVE * self.limit(candidate),
        )


def _quantile(values: Ints, share: float) -> float:
    """By linear interpolation; two order statistics are all that it takes."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    ordered = np.partition(values, (low, high))
    return float(ordered[low] + (place - low) * (ordered[high] - ordered[low]))


def scaled(
    latency: LatencyModel, log_factors: Floats, curves: Mapping[str, Curve] = MappingProxyType({})
) -> LatencyModel:
    """Stage latencies multiplied by exp(`log_factors`), in the order of `FACTORS`, and along the batch by
    exp of the stage's curve.

    `beside` multiplies what was measured beside another stage; where nothing was, a factor above 1
    is taken to slow encode and local prefill while both run.
    """
    factors: Mapping[str, float] = dict(zip(FACTORS, np.exp(log_factors).tolist(), strict=True))
    grids: dict[tuple[Stage, Beside], Grid] = {}
    for stage in Stage:
        if not latency.covers(stage):
            continue
        own = factors.get(str(stage), 1.0)
        grids[stage, Beside.NONE] = _times(latency.grid(stage), own, curves.get(str(stage)))
    for stage, beside in ((Stage.ENCODE, Beside.PREFILL), (Stage.PREFILL, Beside.ENCODE)):
        extra = factors["beside"]
        if latency.covers(stage, beside) or (latency.covers(stage) and extra > 1.0):
            own = factors[str(stage)] * extra
            grids[stage, beside] = _times(latency.grid(stage, beside), own, curves.get(str(stage)))
    pools = {pool: scaled(model, log_factors, curves) for pool, model in latency.pools.items()}
    return LatencyModel(grids, latency.metadata, latency.where, pools)


def _times(grid: Grid, factor: float, curve: Curve | None) -> Grid:
    if factor == 1.0 and curve is None:
        return grid
    values = grid.values * factor
    if curve is not None:
        bent = values * np.exp(curve(grid.batch))[:, None]
        # A batch takes no less time than a smaller one, where it did not before: a last segment that
        # falls would go below nothing where the look-up goes on along it.
        rises = np.diff(values, axis=1, prepend=0.0).min(axis=1, keepdims=True) >= 0
        values = np.where(rises, np.maximum.accumulate(bent, axis=1), bent)
    return Grid(grid.sm, grid.batch, grid.tokens, values)


def physics_features(problem: Problem, candidates: Sequence[Candidate]) -> dict[Candidate, Floats]:
    """Standardised log capacities of encode, both prefills and decode, log B, s, and the topology."""
    model = problem.capacity_model()
    rows = []
    for c in candidates:
        stages = model.of(c, problem.kv_tokens(c)).stages
        fallback = stages.get("prefill_decode", stages.get("all", 1.0))
        raw = [
            stages.get("encode", fallback),
            model.idle_local_prefill(c) if c.topology == "disaggregated" else fallback,
            model.remote_prefill(c) if c.topology == "disaggregated" else fallback,
            stages.get("decode", fallback),
        ]
        logs = [math.log(min(max(r, 1e-3), 1e9)) for r in raw]
        rows.append([*logs, math.log(max(c.encode_batch, 1)), c.share])
    table = np.array(rows)
    sd = table.std(axis=0)
    table = (table - table.mean(axis=0)) / np.where(sd > 1e-9, sd, 1.0)
    # Two units apart: what is learned about one topology says little of another.
    kinds = np.array([[2.0 * (c.topology == t) for t in ("e_pd", "monolithic")] for c in candidates])
    return dict(zip(candidates, np.hstack([table, kinds]), strict=True))

"""A deployment and a list of requests -> records: what is done once, and what is done per candidate.

Simulator(profile)         once per profile: grids, their slices at each share (kept)
.prepare(requests, seed)   once per list and seed: sizes, per-request delays, dispatch draws
.run(deployment, prepared) per candidate: rules and an empty world, then the kernel
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.records import COLUMNS, Records, StageLoad
from has.core.requests import Requests
from has.core.slo import Slo
from has.core.stage import Stage
from has.errors import InputError
from has.latency.lookup import LatencyModel
from has.policy.partition import SmPartitioner
from has.sim import memory as at
from has.sim.draw import LAST_ARRIVAL_S, at_rate, generators
from has.sim.pipeline import run as run_kernel
from has.sim.planner import Planner
from has.sim.tables import delays_of
from has.sim.tally import count
from has.sim.world import Layout, Workers, World

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_STAGES = (Stage.ENCODE, Stage.PREFILL, Stage.DECODE)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A list of requests as the kernel reads it: `rows` int64[N, REQUEST], nothing happened yet."""

    requests: Requests
    rows: Ints
    words: Ints
    media_share: float

    def at_rate(self, rate: float) -> Prepared:
        """The same requests, their arrivals stretched about the first so that the mean rate is `rate`."""
        requests = at_rate(self.requests, rate)
        rows = self.rows.copy()
        rows[:, at.ARRIVAL] = requests.arrival_ns
        return replace(self, requests=requests, rows=rows)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What each request must keep: int64[N] ns of TTFT, and of first to last token."""

    ttft_ns: Ints
    pace_ns: Ints

    @classmethod
    def of(cls, requests: Requests, slo: Slo) -> Bounds:
        """As `core.figures.met` reads them: a request's own bounds go before `slo`, one token needs only TTFT."""
        ttft_s, tpot_s = requests.bounds_s(slo)
        gaps = requests.output_tokens - 1
        pace = np.where(gaps == 0, float(at.FOREVER), np.rint(tpot_s * 1e9 * gaps))
        return cls(_whole_ns(np.rint(ttft_s * 1e9)), _whole_ns(pace))


@dataclass(frozen=True, slots=True)
class Tally:
    """What a search asks of a run: requests counted, how many met their bounds, from the end of the
    warm-up to the last completion, and int64[completed] TTFTs."""

    kept: int
    met: int
    duration_ns: int
    ttft_ns: Ints


@dataclass(frozen=True, slots=True)
class Reach:
    """How far out the look-ups of a run went: largest batch and mean tokens, by stage."""

    batch: dict[Stage, int]
    tokens: dict[Stage, int]


class Simulator:
    """Runs deployments against one profile, or against one per pool.

    Pools of different GPUs: hand in `LatencyModel.of_pools({"encode": a, "prefill": b, "decode": c})`,
    with `prefill_decode` and `all` for the other topologies. Local prefill then runs at a's prefill
    latencies, the remote pool at b's, KV memory is of the decoding pool's metadata, preprocess and
    the embeddings' transfer are a's, the KV transfer is c's.

    `run` raises InputError where the profile extrapolates to a negative latency; whether a run went
    beyond the profile is for `check` to say, since a candidate that queues without bound does so
    harmlessly in a search.
    """

    def __init__(self, profile: Profile | LatencyModel) -> None:
        self.latency = profile if isinstance(profile, LatencyModel) else LatencyModel.from_profile(profile)
        self.reach: Reach | None = None
        self._planner = Planner(self.latency)
        self._arena = np.empty(0, np.int64)

    def prepare(self, requests: Requests, seed: int = 0) -> Prepared:
        """`seed`: of dispatch (the third generator spawned from it)."""
        if len(requests) == 0:
            raise InputError("there is no request to simulate", where="argument", field="requests")
        if requests.arrival_ns[-1] > LAST_ARRIVAL_S * 1e9 or requests.arrival_ns[0] < 0:
            raise InputError(
                "a request arrives beyond the simulator's clock",
                where="argument",
                field="requests",
                value=requests.arrival_ns[-1] / 1e9,
                allowed=f"arrivals from 0 to {LAST_ARRIVAL_S:g} s",
                mend="count the times from the first request",
            )
        rows = np.full((len(requests), at.REQUEST), at.NEVER, np.int64)
        media = requests.is_media
        rows[:, at.STATUS] = 0
        rows[:, at.ARRIVAL] = requests.arrival_ns
        rows[:, at.IS_MEDIA] = media
        rows[:, at.MEDIA_TOKENS] = requests.media_tokens
        rows[:, at.TOTAL] = requests.total_tokens
        rows[:, at.OUTPUT] = requests.output_tokens
        # Of media alone: a profile need not make sense at the 0 tokens of a text, nor at a KV that never moves.
        rows[:, [at.PREPROCESS_NS, at.EMBEDDING_NS, at.KV_NS]] = 0
        rows[media, at.PREPROCESS_NS] = self._delays(Stage.PREPROCESS, requests.media_tokens[media])
        rows[media, at.EMBEDDING_NS] = self._delays(Stage.EMBEDDING_TRANSFER, requests.media_tokens[media])
        moves = requests.output_tokens > 1
        rows[moves, at.KV_NS] = self._delays(Stage.KV_TRANSFER, requests.total_tokens[moves])
        dispatch = generators(seed)[2]
        # Two draws a request at most (e_pd), and a rejection is a matter of one in 10^8.
        words = dispatch.integers(2**32, size=2 * len(requests) + 64)
        return Prepared(requests, rows, words, requests.media_share)

    def run(
        self,
        deployment: Deployment,
        prepared: Prepared,
        *,
        rate: float | None = None,
        media_share: float | None = None,
        online: bool = False,
    ) -> Records:
        """What happens to each request. `rate` in force sets the gap rule: the deployment's if None.

        `media_share` of the stream (default: of the list). `online` is how the rate is estimated
        where the deployment does not say.
        """
        rate = deployment.rate if rate is None else rate
        share = prepared.requests.media_share if media_share is None else media_share
        layout = self._planner.layout(deployment, len(prepared.rows), len(prepared.words), online)
        world = self._run(layout, prepared, rate, share, None)
        return _records(prepared.requests, world, layout.workers)

    def tally(
        self,
        deployment: Deployment,
        prepared: Prepared,
        bounds: Bounds,
        *,
        rate: float,
        stretch: float = 1.0,
        warmup_share: float = 0.0,
    ) -> Tally:
        """Like `run`, but only what a search asks: how many meet their bounds, and the TTFTs.

        Arrivals are stretched by `stretch` about the first; requests of the first `warmup_share` of
        their span are left out. An order of magnitude less work beside the kernel than records are.
        """
        requests = prepared.requests
        layout = self._planner.layout(deployment, len(prepared.rows), len(prepared.words), False)
        arrival = requests.arrival_ns
        if stretch != 1.0:
            arrival = arrival[0] + np.rint((arrival - arrival[0]) * stretch).astype(np.int64)
        world = self._run(layout, prepared, rate, prepared.media_share, arrival)
        self._arena = world.block
        span_s = float(arrival[-1] - arrival[0]) / 1e9
        begin = int(arrival[0]) + round(warmup_share * span_s * 1e9)
        ttft = np.empty(len(arrival), np.int64)
        counts = np.zeros(4, np.int64)
        count(world.m, bounds.ttft_ns, bounds.pace_ns, begin, ttft, counts)
        kept, met, done, last = counts.tolist()
        return Tally(kept=kept, met=met, duration_ns=last - begin, ttft_ns=ttft[:done])

    def _run(
        self, layout: Layout, prepared: Prepared, rate: float | None, share: float, arrival: Ints | None
    ) -> World:
        """Run to the end; where `arrival` says when requests come, in memory that the next run takes again."""
        encoders = layout.workers.encode
        media_rate = rate * share / encoders if rate and share > 0 and encoders else None
        room, block = 4, None
        if arrival is not None:
            block, self._arena = (
                self._arena,
                np.empty(0, np.int64),
            )  # whoever comes meanwhile takes new memory
        while True:
            world = layout.fresh(prepared.rows, prepared.words, media_rate, room, block)
            if arrival is not None:
                world.requests[:, at.ARRIVAL] = arrival
            run_kernel(world.m, world.f)
            if not world.m[at.OVERFLOW]:
                break
            room *= 4
        self._note_reach(world)
        return world

    def check(self, requests: Requests) -> list[str]:
        """Warnings of look-ups beyond the profile, in the last run and for the sizes of its requests.

        InputError beyond the profile's reach.
        """
        warnings = self.check_sizes(requests)
        if self.reach is not None:
            for stage, batch in self.reach.batch.items():
                if batch:
                    for model in self.latency.doing(stage):
                        warnings += model.check_range(stage, batch, self.reach.tokens[stage])
        return list(dict.fromkeys(warnings))

    def check_sizes(self, requests: Requests) -> list[str]:
        """The same for what is known before a run: each request alone."""
        warnings = []
        media = requests.media_tokens[requests.is_media]
        total = requests.total_tokens
        sizes: list[tuple[Stage, Ints]] = [
            (Stage.PREPROCESS, media),
            (Stage.ENCODE, media),
            (Stage.EMBEDDING_TRANSFER, media),
            (Stage.PREFILL, total),
            (Stage.KV_TRANSFER, total),
            (Stage.DECODE, total + requests.output_tokens),
        ]
        for stage, tokens in sizes:
            for model in self.latency.doing(stage):
                if len(tokens) and model.covers(stage):
                    warnings += model.check_range(stage, 1, int(tokens.max()))
        return warnings

    def sm_table(self, deployment: Deployment) -> SmPartitioner:
        """The deployment's table, or the one the profile gives."""
        return self._planner.sm_table(deployment)

    def _delays(self, stage: Stage, sizes: Ints) -> Ints:
        if not self.latency.covers(stage):
            return np.zeros(len(sizes), np.int64)
        result = delays_of(self.latency.grid(stage), sizes)
        if len(result) and result.min() < 0:
            raise _negative(stage)
        return result

    def _note_reach(self, world: World) -> None:
        reach = world.m[at.REACH : at.REACH + 6].reshape(3, 2)
        self.reach = Reach(
            {stage: int(reach[i, 0]) for i, stage in enumerate(_STAGES)},
            {stage: int(reach[i, 1]) for i, stage in enumerate(_STAGES)},
        )
        if world.m[at.NEGATIVE]:
            raise _negative(_STAGES[world.m[at.NEGATIVE] - 1])


def _whole_ns(values: Floats) -> Ints:
    return np.minimum(values, float(at.FOREVER)).astype(np.int64)


def _negative(stage: Stage) -> InputError:
    return InputError(
        f"the profile extrapolates to a negative latency of {stage}",
        where="profile",
        field="rows",
        mend="profile points nearer to the sizes of this workload, or check rows whose latency falls",
    )


def _records(requests: Requests, world: World, workers: Workers) -> Records:
    m, rows = world.m, world.requests
    topology = m[at.TOPOLOGY]
    if topology == at.E_PD:
        rows[:, at.ROUTE] = at.NEVER
    stages = {"preprocess": StageLoad(workers.servers)}
    if m[at.HAS_PREPROCESS]:
        who = np.flatnonzero(rows[:, at.PREPROCESSED] != at.NEVER)
        end = rows[who, at.PREPROCESSED]
        start = end - rows[who, at.PREPROCESS_NS]
        stages["preprocess"] = _load(workers.servers, start, end, np.ones(len(who), np.int64))
    encode, decode = world.log(at.LOG_ENCODE), world.log(at.LOG_DECODE)
    prefill = world.log(at.LOG_PREFILL)
    stages["encode"] = _load(workers.encode or workers.steppers, *encode.T[:3])
    if topology != at.MONOLITHIC:
        stages["encode"].full = encode[:, at.LOG_MARK] == 1
    if topology == at.DISAGGREGATED:
        local = workers.groups if m[at.SHARE_NUMERATOR] < m[at.SHARE_DENOMINATOR] else 0
        stages["prefill_local"] = _load(local, *world.log(at.LOG_LOCAL).T[:3])
        stages["prefill_remote"] = _load(workers.pool, *prefill.T[:3])
    else:
        stages["prefill"] = _load(workers.steppers, *prefill.T[:3])
    runs = _load(workers.steppers, *decode.T[:3])
    runs.repeats = decode[:, at.LOG_MARK]
    runs.steps = int(np.sum(runs.repeats))
    runs.step_seqs = int(np.sum(runs.repeats * runs.size))
    stages["decode"] = runs
    columns = {name: rows[:, i] for i, name in enumerate(COLUMNS)}
    return Records(requests=requests, **columns, status=rows[:, at.STATUS], stages=stages)


def _load(workers: int, start: Ints, end: Ints, size: Ints) -> StageLoad:
    return StageLoad(workers, start, end, size, busy_ns=int(np.sum(end - start)))

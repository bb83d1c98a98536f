"""A deployment and a list of requests -> records: what is done once, and what is done per candidate.

Simulator(profile)         once per profile: grids, their slices at each share (kept)
.prepare(requests, seed)   once per list and seed: sizes, per-request delays, dispatch draws
.run(deployment, prepared) per candidate: rules and an empty world, then the kernel
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from has.core.deployment import POOLS, Deployment
from has.core.profile import Profile
from has.core.records import COLUMNS, Records, StageLoad
from has.core.requests import Requests
from has.core.stage import Beside, Stage
from has.errors import InputError
from has.latency.lookup import Grid, LatencyModel
from has.latency.memory import kv_capacity
from has.policy.microbatch import gap_coefficient, gap_ns
from has.policy.partition import SmPartitioner, encode_shares, prefill_shares
from has.sim import memory as at
from has.sim.draw import LAST_ARRIVAL_S, at_rate, generators
from has.sim.pipeline import run as run_kernel
from has.sim.tables import delays_of, planes_of, rows_of
from has.sim.world import Tables, Workers, World, new_world

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TOPOLOGIES = {"disaggregated": at.DISAGGREGATED, "e_pd": at.E_PD, "monolithic": at.MONOLITHIC}
DISPATCH = {"random": at.RANDOM, "round_robin": at.ROUND_ROBIN, "shortest_queue": at.SHORTEST_QUEUE}
_STAGES = (Stage.ENCODE, Stage.PREFILL, Stage.DECODE)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A list of requests as the kernel reads it: `rows` int64[N, REQUEST], nothing happened yet."""

    requests: Requests
    rows: Ints
    words: Ints

    def at_rate(self, rate: float) -> Prepared:
        """The same requests, their arrivals stretched about the first so that the mean rate is `rate`."""
        requests = at_rate(self.requests, rate)
        rows = self.rows.copy()
        rows[:, at.ARRIVAL] = requests.arrival_ns
        return replace(self, requests=requests, rows=rows)


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
        self._tables: dict[tuple[object, ...], Tables] = {}

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
        return Prepared(requests, rows, words)

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
        rules = self._rules(deployment, online)
        workers = _workers(deployment, rules)
        media_rate = rate * share / workers.encode if rate and share > 0 and workers.encode else None
        coefficient = gap_coefficient(rules[at.BATCH_BOUND], deployment.fill_probability)
        tables = self._tables_of(deployment, rules)
        log_factor = 4
        while True:
            world = new_world(
                prepared.rows,
                prepared.words,
                rules,
                tables,
                workers,
                coefficient=coefficient,
                gap_ns=gap_ns(coefficient, media_rate),
                initial_rate=media_rate,
                log_factor=log_factor,
            )
            run_kernel(world.m, world.f)
            if not world.m[at.OVERFLOW]:
                break
            log_factor *= 4
        self._note_reach(world)
        return _records(prepared.requests, world, workers)

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
        if deployment.sm_table is not None:
            return SmPartitioner(deployment.sm_table)
        latency = self.latency.on("encode")
        points = [
            SimpleNamespace(
                stage=Stage.ENCODE,
                beside=beside,
                sm_percent=sm,
                batch=int(b),
                tokens=int(t),
                latency_s=float(v),
            )
            for beside in (Beside.NONE, Beside.PREFILL)
            if latency.covers(Stage.ENCODE, beside)
            for grid in (latency.grid(Stage.ENCODE, beside),)
            for i, sm in enumerate(grid.sm)
            for j, b in enumerate(grid.batch)
            for v, t in zip(grid.values[i, j], grid.tokens, strict=True)
        ]
        return SmPartitioner.from_profile(
            SimpleNamespace(rows=points), deployment.encode_slowdown_budget, deployment.encode_batch or 1
        )

    def _rules(self, deployment: Deployment, online: bool) -> dict[int, int]:
        """The header's rules."""
        topology = TOPOLOGIES[deployment.topology]
        dispatch = DISPATCH[deployment.dispatch]
        pool = POOLS[deployment.topology][-1]
        remote = deployment.offload_fraction
        numerator, denominator = remote.numerator, remote.denominator
        if topology != at.DISAGGREGATED:
            numerator, denominator = 1, 1
        local = numerator < denominator
        kv_tokens = kv_capacity(deployment, self.latency.on(pool).metadata, pool)
        encoding = self._models(topology)[0]
        max_wait_s = deployment.max_wait_s
        encoders = deployment.workers("encode") if topology != at.MONOLITHIC else 0
        steppers = deployment.workers(pool)
        # One generator serves both pools of an e_pd deployment, in order of assignment.
        shared_draws = topology == at.E_PD and dispatch == at.RANDOM and encoders > 1 and steppers > 1
        estimate = deployment.rate_estimate or ("online" if online else "known")
        first_by_decode = topology == at.DISAGGREGATED and deployment.first_token == "decode"
        return {
            at.TOPOLOGY: topology,
            at.DISPATCH: dispatch,
            at.FIRST_BY_DECODE: int(first_by_decode),
            at.MAX_QUEUE: at.NEVER if deployment.max_queue is None else deployment.max_queue,
            at.HAS_PREPROCESS: int(self.latency.covers(Stage.PREPROCESS)),
            at.BATCH_BOUND: deployment.encode_batch or 1,
            at.ONLINE: int(estimate == "online" and topology != at.MONOLITHIC),
            at.MAX_WAIT: at.NEVER if max_wait_s is None else min(round(max_wait_s * 1e9), at.FOREVER),
            at.SHARE_NUMERATOR: numerator,
            at.SHARE_DENOMINATOR: denominator,
            at.TOKEN_UNIT: int(deployment.offload_unit == "token"),
            at.SPAN: deployment.local_prefill_span if local else 1,
            at.ENCODE_BESIDE: int(local and encoding.covers(Stage.ENCODE, Beside.PREFILL)),
            at.PREFILL_BESIDE: int(local and encoding.covers(Stage.PREFILL, Beside.ENCODE)),
            at.TOKEN_BUDGET: deployment.prefill_token_budget,
            at.PREFILL_REQUESTS: deployment.max_prefill_requests or at.NEVER,
            at.MAX_SEQS: deployment.max_num_seqs,
            at.KV_TOKENS: at.NEVER if kv_tokens is None else kv_tokens,
            at.LOCKSTEP: int(deployment.max_queue is not None or shared_draws),
            at.STRIDE: max(8, (encoders + steppers) // 8),
        }

    def _tables_of(self, deployment: Deployment, rules: dict[int, int]) -> Tables:
        bound = rules[at.BATCH_BOUND]
        encode, left = np.full(bound + 1, 100.0), np.full(bound + 1, 100.0)
        local = rules[at.SHARE_NUMERATOR] < rules[at.SHARE_DENOMINATOR]
        if local:
            table = self.sm_table(deployment).sm_table
            encode, left = encode_shares(table, bound), prefill_shares(table, bound)
        beside = rules[at.ENCODE_BESIDE], rules[at.PREFILL_BESIDE]
        whose = 0 if not self.latency.pools else 1 + rules[at.TOPOLOGY]
        key = (encode.tobytes(), left.tobytes(), beside, rules[at.MAX_SEQS], local, whose)
        if key not in self._tables:
            self._tables[key] = self._new_tables(encode, left, rules)
        return self._tables[key]

    def _new_tables(self, encode: Floats, left: Floats, rules: dict[int, int]) -> Tables:
        blocks: list[Floats] = []
        places: list[tuple[int, int]] = []
        sizes: list[tuple[int, int]] = []
        filled = 0

        def put(field: int, values: Floats) -> None:
            nonlocal filled
            places.append((field, filled))
            blocks.append(values.ravel())
            filled += values.size

        def put_rows(grid: Grid, shares: Floats, axis: int, points: int, rows: int) -> None:
            put(axis, grid.tokens)
            sizes.append((points, len(grid.tokens)))
            put(rows, rows_of(grid, shares))

        def put_planes(table: int, grid: Grid, shares: Floats) -> None:
            put(table + at.T_AXIS, grid.tokens)
            put(table + at.T_BATCHES, grid.batch)
            sizes.append((table + at.T_POINTS, len(grid.tokens)))
            sizes.append((table + at.T_N_BATCHES, len(grid.batch)))
            put(table + at.T_ROWS, planes_of(grid, shares))

        encoding, prefilling, decoding = self._models(rules[at.TOPOLOGY])
        if encoding.covers(Stage.ENCODE):
            put_rows(encoding.grid(Stage.ENCODE), encode, at.ENCODE_AXIS, at.ENCODE_POINTS, at.ENCODE_ROWS)
        if rules[at.ENCODE_BESIDE]:
            beside = encoding.grid(Stage.ENCODE, Beside.PREFILL)
            put_rows(beside, encode, at.ENCODE_B_AXIS, at.ENCODE_B_POINTS, at.ENCODE_B_ROWS)
        if rules[at.SHARE_NUMERATOR] < rules[at.SHARE_DENOMINATOR]:
            put_planes(at.PREFILL, encoding.grid(Stage.PREFILL), left)
        if rules[at.PREFILL_BESIDE]:
            put_planes(at.PREFILL_B, encoding.grid(Stage.PREFILL, Beside.ENCODE), left)
        put_planes(at.WHOLE, prefilling.grid(Stage.PREFILL), np.full(1, 100.0))
        whole = np.full(rules[at.MAX_SEQS] + 1, 100.0)
        put_rows(decoding.grid(Stage.DECODE), whole, at.DECODE_AXIS, at.DECODE_POINTS, at.DECODE_ROWS)
        put(at.SHARES, left)
        return Tables(np.concatenate(blocks), tuple(places), tuple(sizes))

    def _models(self, topology: int) -> tuple[LatencyModel, LatencyModel, LatencyModel]:
        """Latencies on the GPUs that encode, that prefill remotely, and that decode."""
        on = self.latency.on
        if topology == at.DISAGGREGATED:
            return on("encode"), on("prefill"), on("decode")
        if topology == at.E_PD:
            return on("encode"), on("prefill_decode"), on("prefill_decode")
        return on("all"), on("all"), on("all")

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


def _negative(stage: Stage) -> InputError:
    return InputError(
        f"the profile extrapolates to a negative latency of {stage}",
        where="profile",
        field="rows",
        mend="profile points nearer to the sizes of this workload, or check rows whose latency falls",
    )


def _workers(deployment: Deployment, rules: dict[int, int]) -> Workers:
    encode = deployment.workers("encode") if rules[at.TOPOLOGY] != at.MONOLITHIC else 0
    disaggregated = rules[at.TOPOLOGY] == at.DISAGGREGATED
    return Workers(
        encode=encode,
        groups=encode // rules[at.SPAN],
        pool=deployment.workers("prefill") if disaggregated else 0,
        steppers=deployment.workers(POOLS[deployment.topology][-1]),
        servers=deployment.preprocess_servers,
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

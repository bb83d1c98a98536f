"""A deployment and a list of requests -> records: what is done once, and what is done per candidate.

    Simulator(profile)         once per profile: grids, their slices at each share (kept)
    .prepare(requests, seed)   once per list and seed: sizes, per-request delays, dispatch draws
    .run(deployment, prepared) per candidate: rules and an empty state, then the kernel
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
from has.latency.lookup import LatencyModel
from has.latency.memory import kv_capacity
from has.policy.microbatch import gap_coefficient, gap_ns
from has.policy.partition import SmPartitioner, encode_shares, prefill_shares
from has.sim import columns as c
from has.sim.draw import at_rate, generators
from has.sim.pipeline import run as run_pipeline
from has.sim.state import Rules, State, new_state_of
from has.sim.tables import Floats, Tables, delays, planes, rows

Ints = NDArray[np.int64]

TOPOLOGIES = {"disaggregated": c.DISAGGREGATED, "e_pd": c.E_PD, "monolithic": c.MONOLITHIC}
DISPATCH = {"random": c.RANDOM, "round_robin": c.ROUND_ROBIN, "shortest_queue": c.SHORTEST_QUEUE}
_STAGES = (Stage.ENCODE, Stage.PREFILL, Stage.DECODE)
_WHOLE = np.array([100.0])
_NONE = (np.empty(0), np.empty((0, 0)))
_NO_AXIS = np.empty(0)
_NO_PLANES = np.empty((0, 0, 0))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A list of requests as the kernel reads it. `at_rate` rescales its arrivals and keeps the rest."""

    requests: Requests
    given: Ints
    draws: Ints

    def at_rate(self, rate: float) -> Prepared:
        """The same requests, their arrivals stretched about the first so that the mean rate is `rate`."""
        requests = at_rate(self.requests, rate)
        given = self.given.copy()
        given[:, c.ARRIVAL] = requests.arrival_ns
        return replace(self, requests=requests, given=given)


@dataclass(frozen=True, slots=True)
class Reach:
    """How far out the look-ups of a run went: largest batch and mean tokens, by stage."""

    batch: dict[Stage, int]
    tokens: dict[Stage, int]


class Simulator:
    """Runs deployments against one profile.

    `run` raises InputError where the profile extrapolates to a negative latency; whether a run went
    beyond the profile is for `check` to say, since a candidate that queues without bound does so
    harmlessly in a search.
    """

    def __init__(self, profile: Profile | LatencyModel) -> None:
        self.latency = profile if isinstance(profile, LatencyModel) else LatencyModel.from_profile(profile)
        self.encode_beside = self.latency.covers(Stage.ENCODE, Beside.PREFILL)
        self.prefill_beside = self.latency.covers(Stage.PREFILL, Beside.ENCODE)
        self.preprocesses = self.latency.covers(Stage.PREPROCESS)
        self.reach: Reach | None = None
        self._kept: dict[tuple[object, ...], Floats] = {}
        self._tables: dict[tuple[object, ...], Tables] = {}

    def prepare(self, requests: Requests, seed: int = 0) -> Prepared:
        """`seed`: of dispatch (the third generator spawned from it)."""
        if len(requests) == 0:
            raise InputError("there is no request to simulate", where="argument", field="requests")
        given = np.empty((len(requests), c.GIVEN), np.int64)
        media = requests.is_media
        given[:, c.ARRIVAL] = requests.arrival_ns
        given[:, c.IS_MEDIA] = media
        given[:, c.MEDIA_TOKENS] = requests.media_tokens
        given[:, c.TOTAL] = requests.total_tokens
        given[:, c.OUTPUT] = requests.output_tokens
        given[:, c.PREPROCESS_NS] = self._delays(Stage.PREPROCESS, requests.media_tokens) * media
        given[:, c.EMBEDDING_NS] = self._delays(Stage.EMBEDDING_TRANSFER, requests.media_tokens) * media
        given[:, c.KV_NS] = self._delays(Stage.KV_TRANSFER, requests.total_tokens)
        dispatch = generators(seed)[2]
        # Two draws a request at most (e_pd), and a rejection is a matter of one in 10^8.
        words = dispatch.integers(2**32, size=2 * len(requests) + 64)
        return Prepared(requests, given, words)

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
        encode_workers = deployment.workers("encode") if deployment.topology != "monolithic" else 0
        media_rate = rate * share / encode_workers if rate and share > 0 and encode_workers else None
        rules = self._rules(deployment, online)
        tables = self._tables_of(deployment, rules)
        pool = POOLS[deployment.topology][-1]
        log_factor = 4
        while True:
            state = new_state_of(
                prepared.given,
                prepared.draws,
                rules,
                encode_workers=encode_workers,
                prefill_workers=deployment.workers("prefill") if rules.topology == c.DISAGGREGATED else 0,
                step_workers=deployment.workers(pool),
                preprocess_servers=deployment.preprocess_servers,
                gap_ns=gap_ns(rules.coefficient, media_rate),
                initial_rate=media_rate,
                log_factor=log_factor,
            )
            run_pipeline(state, rules, tables)
            if not state.tally[c.OVERFLOW]:
                break
            log_factor *= 4
        self._refuse_negative(state)
        return _records(deployment, prepared.requests, state, rules)

    def check(self, requests: Requests) -> list[str]:
        """Warnings of look-ups beyond the profile, in the last run and for the sizes of its requests.

        InputError beyond the profile's reach.
        """
        warnings = self.check_sizes(requests)
        if self.reach is not None:
            for stage, batch in self.reach.batch.items():
                if batch:
                    warnings += self.latency.check_range(stage, batch, self.reach.tokens[stage])
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
            if len(tokens) and self.latency.covers(stage):
                warnings += self.latency.check_range(stage, 1, int(tokens.max()))
        return warnings

    def sm_table(self, deployment: Deployment) -> SmPartitioner:
        """The deployment's table, or the one the profile gives."""
        if deployment.sm_table is not None:
            return SmPartitioner(deployment.sm_table)
        rows_of = [
            SimpleNamespace(
                stage=Stage.ENCODE, beside=beside, sm_percent=sm, batch=int(b), tokens=int(t), latency_s=float(v)
            )
            for beside in (Beside.NONE, Beside.PREFILL)
            if self.latency.covers(Stage.ENCODE, beside)
            for grid in (self.latency.grid(Stage.ENCODE, beside),)
            for i, sm in enumerate(grid.sm)
            for j, b in enumerate(grid.batch)
            for v, t in zip(grid.values[i, j], grid.tokens, strict=True)
        ]
        return SmPartitioner.from_profile(
            SimpleNamespace(rows=rows_of), deployment.encode_slowdown_budget, deployment.encode_batch or 1
        )

    def _rules(self, deployment: Deployment, online: bool) -> Rules:
        topology = TOPOLOGIES[deployment.topology]
        dispatch = DISPATCH[deployment.dispatch]
        bound = deployment.encode_batch or 1
        remote = deployment.offload_fraction
        numerator, denominator = remote.numerator, remote.denominator
        if topology != c.DISAGGREGATED:
            numerator, denominator = 1, 1
        pool = POOLS[deployment.topology][-1]
        kv_tokens = kv_capacity(deployment, self.latency.metadata, pool)
        max_wait_s = deployment.max_wait_s
        local = numerator < denominator
        encoders = deployment.workers("encode") if topology != c.MONOLITHIC else 0
        shared_draws = topology == c.E_PD and dispatch == c.RANDOM
        shared_draws = shared_draws and encoders > 1 and deployment.workers(pool) > 1
        estimate = deployment.rate_estimate or ("online" if online else "known")
        return Rules(
            topology=topology,
            dispatch=dispatch,
            first_by_decode=topology == c.DISAGGREGATED and deployment.first_token == "decode",
            max_queue=-1 if deployment.max_queue is None else deployment.max_queue,
            preprocess=self.preprocesses,
            batch_bound=bound,
            coefficient=gap_coefficient(bound, deployment.fill_probability),
            online=estimate == "online" and topology != c.MONOLITHIC,
            max_wait_ns=-1 if max_wait_s is None else min(round(max_wait_s * 1e9), c.FOREVER),
            share_numerator=numerator,
            share_denominator=denominator,
            token_unit=deployment.offload_unit == "token",
            span=deployment.local_prefill_span if local else 1,
            encode_beside=self.encode_beside and local,
            prefill_beside=self.prefill_beside and local,
            token_budget=deployment.prefill_token_budget,
            prefill_requests=deployment.max_prefill_requests or -1,
            max_seqs=deployment.max_num_seqs,
            kv_tokens=-1 if kv_tokens is None else kv_tokens,
            lockstep=deployment.max_queue is not None or shared_draws,
            stride=max(1, (encoders + deployment.workers(pool)) // 8),
        )

    def _tables_of(self, deployment: Deployment, rules: Rules) -> Tables:
        bound = rules.batch_bound
        if rules.topology == c.DISAGGREGATED and rules.share_numerator < rules.share_denominator:
            table = self.sm_table(deployment).sm_table
            encode = encode_shares(table, bound)
            left = prefill_shares(table, bound)
        else:
            encode, left = np.full(bound + 1, 100.0), np.full(bound + 1, 100.0)
        key = (encode.tobytes(), left.tobytes(), rules.encode_beside, rules.prefill_beside, rules.max_seqs)
        if key not in self._tables:
            self._tables[key] = self._new_tables(encode, left, rules)
        return self._tables[key]

    def _new_tables(self, encode: Floats, left: Floats, rules: Rules) -> Tables:
        prefill = self.latency.grid(Stage.PREFILL)
        encode_tokens, encode_rows = _NONE
        if self.latency.covers(Stage.ENCODE):
            encode_tokens, encode_rows = self._rows(Stage.ENCODE, Beside.NONE, encode)
        beside_tokens, beside_rows = _NONE
        if rules.encode_beside:
            beside_tokens, beside_rows = self._rows(Stage.ENCODE, Beside.PREFILL, encode)
        beside = self.latency.grid(Stage.PREFILL, Beside.ENCODE) if rules.prefill_beside else None
        decode_tokens, decode_rows = self._rows(
            Stage.DECODE, Beside.NONE, np.full(rules.max_seqs + 1, 100.0)
        )
        return Tables(
            encode_tokens=encode_tokens,
            encode=encode_rows,
            encode_beside_tokens=beside_tokens,
            encode_beside=beside_rows,
            prefill_batch=prefill.batch,
            prefill_tokens=prefill.tokens,
            prefill=planes(prefill, left),
            prefill_beside_batch=beside.batch if beside else _NO_AXIS,
            prefill_beside_tokens=beside.tokens if beside else _NO_AXIS,
            prefill_beside=planes(beside, left) if beside else _NO_PLANES,
            decode_tokens=decode_tokens,
            decode=decode_rows,
            prefill_share=left,
        )

    def _rows(self, stage: Stage, beside: Beside, shares: Floats) -> tuple[Floats, Floats]:
        grid = self.latency.grid(stage, beside)
        key = (stage, beside, shares.tobytes())
        if key not in self._kept:
            self._kept[key] = rows(grid, shares)
        return grid.tokens, self._kept[key]

    def _delays(self, stage: Stage, sizes: Ints) -> Ints:
        if not self.latency.covers(stage):
            return np.zeros(len(sizes), np.int64)
        grid = self.latency.grid(stage)
        result: Ints = delays(grid.batch, grid.tokens, planes(grid, _WHOLE)[0], sizes)
        if len(result) and result.min() < 0:
            raise _negative(stage)
        return result

    def _refuse_negative(self, state: State) -> None:
        self.reach = Reach(
            {stage: int(state.reach[i, 0]) for i, stage in enumerate(_STAGES)},
            {stage: int(state.reach[i, 1]) for i, stage in enumerate(_STAGES)},
        )
        if state.tally[c.NEGATIVE]:
            raise _negative(_STAGES[state.tally[c.NEGATIVE] - 1])


def _negative(stage: Stage) -> InputError:
    return InputError(
        f"the profile extrapolates to a negative latency of {stage}",
        where="profile",
        field="rows",
        mend="profile points nearer to the sizes of this workload, or check rows whose latency falls",
    )


def _records(deployment: Deployment, requests: Requests, state: State, rules: Rules) -> Records:
    out = state.out
    if rules.topology != c.DISAGGREGATED:
        out[:, c.ROUTE] = c.NEVER
    fields = {name: out[:, i] for i, name in enumerate(COLUMNS)}
    groups = deployment.workers("encode") // rules.span if rules.topology != c.MONOLITHIC else 0
    encode = _log(state, c.LOG_ENCODE, state.encode_log)
    decode = _log(state, c.LOG_DECODE, state.decode_log)
    steppers = len(state.steppers)
    stages: dict[str, StageLoad] = {}
    if rules.preprocess:
        who = np.flatnonzero(out[:, c.PREPROCESSED] != c.NEVER)
        end = out[who, c.PREPROCESSED]
        start = end - state.given[who, c.PREPROCESS_NS]
        stages["preprocess"] = _load(deployment.preprocess_servers, start, end, np.ones(len(who), np.int64))
    else:
        stages["preprocess"] = StageLoad(0)
    encoders = steppers if rules.topology == c.MONOLITHIC else len(state.encoders)
    stages["encode"] = _load(encoders, *encode[:3])
    if rules.topology != c.MONOLITHIC:
        stages["encode"].full = encode[3] == 1
    if rules.topology == c.DISAGGREGATED:
        local = groups if rules.share_numerator < rules.share_denominator else 0
        stages["prefill_local"] = _load(local, *_log(state, c.LOG_LOCAL, state.local_log)[:3])
        stages["prefill_remote"] = _load(
            len(state.pool_free), *_log(state, c.LOG_PREFILL, state.prefill_log)[:3]
        )
    else:
        stages["prefill"] = _load(steppers, *_log(state, c.LOG_PREFILL, state.prefill_log)[:3])
    stages["decode"] = _load(steppers, *decode[:3])
    stages["decode"].repeats = decode[3]
    stages["decode"].steps = int(np.sum(decode[3]))
    stages["decode"].step_seqs = int(np.sum(decode[3] * decode[2]))
    return Records(requests=requests, **fields, status=out[:, c.STATUS], stages=stages)


def _log(state: State, which: int, log: Ints) -> list[Ints]:
    used = log[: state.used[which]]
    return [used[:, i] for i in range(c.LOG)]


def _load(workers: int, start: Ints, end: Ints, size: Ints) -> StageLoad:
    return StageLoad(workers, start, end, size, busy_ns=int(np.sum(end - start)))

"""A deployment as the kernel reads it: rules in numbers, latency tables, and the layout of a world.

All of it depends on the deployment and the profile, not on rates or arrivals: made once per
deployment and kept while it is run at one rate after the other.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from types import SimpleNamespace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from has.core.deployment import POOLS, Deployment, SmRow
from has.core.stage import Beside, Stage
from has.latency.lookup import Grid, LatencyModel
from has.latency.memory import kv_capacity
from has.policy.microbatch import gap_coefficient
from has.policy.partition import SmPartitioner, encode_shares, prefill_shares
from has.sim import memory as at
from has.sim.tables import may_fall_below_zero, planes_of, rows_of, slopes_of
from has.sim.world import Layout, Tables, Workers

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
K = TypeVar("K")
V = TypeVar("V")

TOPOLOGIES = {"disaggregated": at.DISAGGREGATED, "e_pd": at.E_PD, "monolithic": at.MONOLITHIC}
DISPATCH = {"random": at.RANDOM, "round_robin": at.ROUND_ROBIN, "shortest_queue": at.SHORTEST_QUEUE}

KEPT_LAYOUTS, KEPT_TABLES = 16, 256
"""How many are kept, the latest used: memory stays the same however many deployments are run."""


class Planner:
    """Lays out deployments over one set of latencies."""

    def __init__(self, latency: LatencyModel) -> None:
        self.latency = latency
        self._layouts: OrderedDict[tuple[int, int, bool, int], tuple[Deployment, Layout]] = OrderedDict()
        self._tables: OrderedDict[tuple[object, ...], Tables] = OrderedDict()

    def layout(self, deployment: Deployment, requests: int, words: int, online: bool) -> Layout:
        """The world of `deployment` for so many requests, with everything but them and the rate."""
        key = id(deployment), requests, online, words
        found = self._layouts.get(key)
        if found is None:
            # The deployment is kept beside, so that its id is not given to another one.
            found = deployment, self._new_layout(deployment, requests, words, online)
            _keep(self._layouts, key, found, KEPT_LAYOUTS)
        else:
            self._layouts.move_to_end(key)
        return found[1]

    def _new_layout(self, deployment: Deployment, requests: int, words: int, online: bool) -> Layout:
        rules = self._rules(deployment, online)
        return Layout(
            rules,
            self._tables_of(deployment, rules),
            _workers(deployment, rules),
            gap_coefficient(rules[at.BATCH_BOUND], deployment.fill_probability),
            requests,
            words,
        )

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
            encode, left = _shares(deployment.sm_table or self.sm_table(deployment).sm_table, bound)
        beside = rules[at.ENCODE_BESIDE], rules[at.PREFILL_BESIDE]
        whose = 0 if not self.latency.pools else 1 + rules[at.TOPOLOGY]
        key = (encode.tobytes(), left.tobytes(), beside, rules[at.MAX_SEQS], local, whose)
        found = self._tables.get(key)
        if found is None:
            found = self._new_tables(encode, left, rules)
            _keep(self._tables, key, found, KEPT_TABLES)
        return found

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
        steps = decoding.grid(Stage.DECODE)
        put_rows(steps, whole, at.DECODE_AXIS, at.DECODE_POINTS, at.DECODE_ROWS)
        slopes = slopes_of(blocks[-1].reshape(len(whole), -1), steps.tokens)
        put(at.DECODE_SLOPES, slopes)
        sizes.append(
            (
                at.DECODE_RISKY,
                int(may_fall_below_zero(blocks[-2].reshape(slopes.shape), slopes, steps.tokens)),
            )
        )
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


@lru_cache(maxsize=256)
def _shares(table: Literal["streams"] | tuple[SmRow, ...], bound: int) -> tuple[Floats, Floats]:
    """Shares of encode and of local prefill by encode batch, float[bound+1]: a search runs thousands of deployments
    that have a handful of tables."""
    return encode_shares(table, bound), prefill_shares(table, bound)


def _keep(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Keep `value` too, and forget who was used longest ago beyond `most`."""
    kept[key] = value
    if len(kept) > most:
        kept.popitem(last=False)


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

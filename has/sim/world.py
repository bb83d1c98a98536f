"""Lays out the kernel's two blocks (see `memory`) for one deployment, and finds things in them again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from has.policy.microbatch import gap_ns
from has.policy.rate import new_state
from has.sim import memory as at
from has.sim import tournament
from has.sim.encode import RATE_STATE

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Workers(NamedTuple):
    """How many there are of each."""

    encode: int
    groups: int
    pool: int
    steppers: int
    servers: int


@dataclass(frozen=True, slots=True)
class World:
    """`m` and `f`, ready to run or having run; `block` is the memory that `m` begins."""

    m: Ints
    f: Floats
    block: Ints

    @property
    def requests(self) -> Ints:
        """int64[N, REQUEST]: the requests' rows."""
        start, count = self.m[at.REQUESTS], self.m[at.N_REQUESTS]
        return self.m[start : start + count * at.REQUEST].reshape(count, at.REQUEST)

    def log(self, which: int) -> Ints:
        """int64[K, LOG]: the services a stage has done."""
        start, used = self.m[at.LOG_AT + which], self.m[at.LOG_USED + which]
        return self.m[start : start + used * at.LOG].reshape(used, at.LOG)


class Tables(NamedTuple):
    """Latency tables end to end, and where each header field (axis, rows) points within them."""

    values: Floats
    places: tuple[tuple[int, int], ...]
    sizes: tuple[tuple[int, int], ...]


class Layout:
    """Where everything lies for one deployment and a number of requests, and all of it that no run changes.

    In `m`: what is small and copied for each run (header, workers, trees: `_front`), then the
    dispatch words, the heaps, the logs, the requests. `f` belongs to the layout: of it a run
    writes only the encoders' and groups' floats, and reads none that it has not written.
    """

    def __init__(
        self,
        rules: Mapping[int, int],
        tables: Tables,
        workers: Workers,
        coefficient: float,
        requests: int,
        words: int,
    ) -> None:
        self.workers = workers
        self.coefficient = coefficient
        self._requests = requests
        topology = rules[at.TOPOLOGY]
        header: dict[int, int] = dict(rules)
        size = at.HEADER

        def reserve(field: int, room: int, count: int | None = None) -> int:
            nonlocal size
            header[field] = start = size
            if count is not None:
                header[field + 1] = count
            size += room
            return start

        reserve(at.ENCODERS, workers.encode * at.ENCODER, workers.encode)
        reserve(at.GROUPS, workers.groups * at.GROUP, workers.groups)
        floats = size  # only encoders and groups have floats; the tables come behind them
        reserve(at.STEPPERS, workers.steppers * at.STEPPER, workers.steppers)
        shortest = rules[at.DISPATCH] == at.SHORTEST_QUEUE
        trees = [
            (at.POOL, workers.pool, 0),
            (at.SERVERS, workers.servers, 0),
            (at.GROUPS_WAKE, workers.groups, at.FOREVER),
            (at.STEPPERS_WAKE, workers.steppers, at.FOREVER),
        ]
        if shortest:
            trees.append((at.ENCODERS_LOAD, workers.encode, 0))
        if shortest or topology == at.DISAGGREGATED:
            trees.append((at.STEPPERS_LOAD, workers.steppers, 0))
        for field, count, _ in trees:
            reserve(field, tournament.room(count))
        self._rates = [size + i * RATE_STATE for i in range(workers.encode if rules[at.ONLINE] else 0)]
        size += len(self._rates) * RATE_STATE
        front = size
        reserve(at.WORDS, words, words)
        heaps = (
            (at.PENDING, rules[at.HAS_PREPROCESS] == 1),
            (at.PREFILL_LINE, topology != at.MONOLITHIC),
            (at.DECODE_LINE, topology == at.DISAGGREGATED),
            (at.FIRST_TOKENS, rules[at.MAX_QUEUE] >= 0),
        )
        self._heaps = [reserve(field, 4 * (requests + 1) if used else 8) for field, used in heaps]
        seqs = min(rules[at.MAX_SEQS], requests)
        ends = [size + i * 2 * (seqs + 1) for i in range(workers.steppers)]
        size += workers.steppers * 2 * (seqs + 1)
        self._logs = size
        local = topology == at.DISAGGREGATED and rules[at.SHARE_NUMERATOR] < rules[at.SHARE_DENOMINATOR]
        # Services per request; None where that has no bound of its own.
        self._services = (1, 1 if local else 0, 1 if topology == at.DISAGGREGATED else None, None)

        m = self._front = np.zeros(front, np.int64)
        for field, value in header.items():
            m[field] = value
        for field, place in tables.places:
            m[field] = floats + place
        for field, count in tables.sizes:
            m[field] = count
        encoders = self._encoders(m)
        encoders[:, at.OF] = np.arange(workers.encode) // rules[at.SPAN]
        if self._rates:
            encoders[:, at.RATE_AT] = self._rates
        for field, count, value in trees:
            tournament.plant(m[header[field] : header[field] + tournament.room(count)], count, value)
        _rows(m, header[at.GROUPS], workers.groups, at.GROUP)[:, at.WAKE] = at.FOREVER
        steppers = _rows(m, header[at.STEPPERS], workers.steppers, at.STEPPER)
        steppers[:, at.NEXT_AT] = at.FOREVER
        steppers[:, at.PART] = at.NEVER
        steppers[:, at.DECODE_NS] = at.NEVER
        steppers[:, at.ENDS] = ends

        self._f = np.zeros(floats + len(tables.values))
        self._f[at.COEFFICIENT] = coefficient
        self._f[floats:] = tables.values

    def fresh(
        self, requests: Ints, words: Ints, media_rate: float | None, room: int, block: Ints | None = None
    ) -> World:
        """Everything idle and empty.

        requests    int64[N, REQUEST] with nothing happened yet; `words` of the dispatch generator
        media_rate  in force, of one encoder: sets the gap rule
        room        of the logs that have no bound of their own, in services per request
        block       memory to take, if it is large enough; what lay there is lost
        """
        n = self._requests
        rooms = [room * n + 64 if share is None else share * n for share in self._services]
        start = self._logs + at.LOG * sum(rooms)
        size = start + n * at.REQUEST
        if block is None or len(block) < size:
            block = np.empty(size, np.int64)
        m = block[:size]
        m[: len(self._front)] = self._front
        place = self._logs
        for which, services in enumerate(rooms):
            m[at.LOG_AT + which], m[at.LOG_ROOM + which] = place, services
            place += at.LOG * services
        m[at.REQUESTS], m[at.N_REQUESTS] = start, n
        m[m[at.WORDS] : m[at.WORDS] + len(words)] = words
        for heap in self._heaps:
            m[heap] = 0
        m[start:] = requests.ravel()
        self._encoders(m)[:, at.GAP] = gap_ns(self.coefficient, media_rate)
        if self._rates:
            estimate = new_state(media_rate)
            for rate in self._rates:
                m[rate : rate + len(estimate)] = estimate
        return World(m, self._f, block)

    def _encoders(self, m: Ints) -> Ints:
        return _rows(m, at.HEADER, self.workers.encode, at.ENCODER)


def _rows(m: Ints, start: int, count: int, width: int) -> Ints:
    return m[start : start + count * width].reshape(count, width)

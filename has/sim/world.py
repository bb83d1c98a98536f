"""Lays out the kernel's two blocks (see `memory`) for one deployment, and finds things in them again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from has.policy.rate import new_state
from has.sim import memory as at
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
    """`m` and `f`, ready to run or having run."""

    m: Ints
    f: Floats

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


def new_world(
    requests: Ints,
    words: Ints,
    rules: Mapping[int, int],
    tables: Tables,
    workers: Workers,
    *,
    coefficient: float,
    gap_ns: int,
    initial_rate: float | None,
    log_factor: int,
) -> World:
    """Everything idle and empty.

    requests   int64[N, REQUEST] with nothing happened yet; `words` of the dispatch generator
    rules      the header's rules, by address
    log_factor room in the logs that have no bound of their own: services per request
    """
    n = len(requests)
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
    reserve(at.POOL, workers.pool, workers.pool)
    reserve(at.SERVERS, workers.servers, workers.servers)
    reserve(at.WORDS, len(words), len(words))
    heaps = (
        (at.PENDING, rules[at.HAS_PREPROCESS] == 1),
        (at.PREFILL_LINE, topology != at.MONOLITHIC),
        (at.DECODE_LINE, topology == at.DISAGGREGATED),
        (at.FIRST_TOKENS, rules[at.MAX_QUEUE] >= 0),
    )
    for field, used in heaps:
        reserve(field, 4 * (n + 1) if used else 8)
    seqs = min(rules[at.MAX_SEQS], n)
    ends = [size + i * 2 * (seqs + 1) for i in range(workers.steppers)]
    size += workers.steppers * 2 * (seqs + 1)
    rates = [size + i * RATE_STATE for i in range(workers.encode if rules[at.ONLINE] else 0)]
    size += len(rates) * RATE_STATE
    local = topology == at.DISAGGREGATED and rules[at.SHARE_NUMERATOR] < rules[at.SHARE_DENOMINATOR]
    open_ended = log_factor * n + 64
    rooms = (
        n,
        n if local else 0,
        n if topology == at.DISAGGREGATED else open_ended,
        open_ended,
    )
    for which, room in enumerate(rooms):
        header[at.LOG_ROOM + which] = room
        reserve(at.LOG_AT + which, room * at.LOG)
    start = reserve(at.REQUESTS, n * at.REQUEST, n)
    logs, blank = header[at.LOG_AT], np.empty(size, np.int64)
    m = blank
    m[:logs] = 0  # logs are written before they are read
    for field, value in header.items():
        m[field] = value
    for field, place in tables.places:
        m[field] = floats + place
    for field, count in tables.sizes:
        m[field] = count
    words_at = header[at.WORDS]
    m[words_at : words_at + len(words)] = words
    m[start:] = requests.ravel()

    encoders = _rows(m, header[at.ENCODERS], workers.encode, at.ENCODER)
    encoders[:, at.GAP] = gap_ns
    if rates:
        estimate = new_state(initial_rate)
        encoders[:, at.RATE_AT] = rates
        for rate in rates:
            m[rate : rate + len(estimate)] = estimate
    _rows(m, header[at.GROUPS], workers.groups, at.GROUP)[:, at.WAKE] = at.FOREVER
    steppers = _rows(m, header[at.STEPPERS], workers.steppers, at.STEPPER)
    steppers[:, at.NEXT_AT] = at.FOREVER
    steppers[:, at.PART] = at.NEVER
    steppers[:, at.DECODE_NS] = at.NEVER
    steppers[:, at.ENDS] = ends

    f = np.zeros(floats + len(tables.values))
    f[at.COEFFICIENT] = coefficient
    f[floats:] = tables.values
    return World(m, f)


def _rows(m: Ints, start: int, count: int, width: int) -> Ints:
    return m[start : start + count * width].reshape(count, width)

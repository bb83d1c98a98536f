"""Which worker gets a request: at random, in turn, or where fewest stand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.sim.compiled import compiled
from has.sim.memory import (
    DISPATCH,
    DRAWN,
    ENCODERS_LOAD,
    N_ENCODERS,
    N_STEPPERS,
    N_WORDS,
    RANDOM,
    ROUND_ROBIN,
    STEPPERS_LOAD,
    TURN,
    TURN_PD,
    WORDS,
)
from has.sim.tournament import first_within, least

Ints = NDArray[np.int64]
_WORD = 2**32


@compiled
def draw(m: Ints, n: int) -> int:
    """`Generator.integers(n)` on the generator whose 32-bit words these are (Lemire's method; none for n = 1)."""
    if n == 1:
        return 0
    while True:
        product = m[m[WORDS] + m[DRAWN]] * n
        m[DRAWN] = m[DRAWN] + 1 if m[DRAWN] + 1 < m[N_WORDS] else 0
        low = product & (_WORD - 1)
        if low >= n or low >= (_WORD - n) % n:
            return int(product >> 32)


@compiled
def choose_encoder(m: Ints) -> int:
    n = m[N_ENCODERS]
    if m[DISPATCH] == RANDOM:
        return draw(m, n)
    if m[DISPATCH] == ROUND_ROBIN:
        return _in_turn(m, TURN, n)
    return first_within(m, m[ENCODERS_LOAD], least(m, m[ENCODERS_LOAD]))


@compiled
def choose_stepper(m: Ints) -> int:
    n = m[N_STEPPERS]
    if m[DISPATCH] == RANDOM:
        return draw(m, n)
    if m[DISPATCH] == ROUND_ROBIN:
        return _in_turn(m, TURN_PD, n)
    return first_within(m, m[STEPPERS_LOAD], least(m, m[STEPPERS_LOAD]))


@compiled
def _in_turn(m: Ints, turn: int, n: int) -> int:
    worker = m[turn]
    m[turn] = worker + 1 if worker + 1 < n else 0
    return int(worker)

"""Which worker gets a request: at random, in turn, or where fewest stand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.sim.compiled import compiled
from has.sim.memory import (
    ADMITTED,
    BUSY,
    COUNT,
    DISPATCH,
    DRAWN,
    ENCODER,
    ENCODERS,
    N_ENCODERS,
    N_STEPPERS,
    N_WORDS,
    RANDOM,
    ROUND_ROBIN,
    SIZE,
    STEPPER,
    STEPPERS,
    TURN,
    TURN_PD,
    WORDS,
)

Ints = NDArray[np.int64]
_WORD = 2**32


@compiled
def draw(m: Ints, n: int) -> int:
    """`Generator.integers(n)` on the generator whose 32-bit words these are (Lemire's method; none for n = 1)."""
    if n == 1:
        return 0
    while True:
        product = m[m[WORDS] + m[DRAWN] % m[N_WORDS]] * n
        m[DRAWN] += 1
        low = product % _WORD
        if low >= n or low >= (_WORD - n) % n:
            return int(product // _WORD)


@compiled
def choose_encoder(m: Ints) -> int:
    n = m[N_ENCODERS]
    if m[DISPATCH] == RANDOM:
        return draw(m, n)
    if m[DISPATCH] == ROUND_ROBIN:
        return _in_turn(m, TURN, n)
    best, least = 0, -1
    for worker in range(n):
        encoder = m[ENCODERS] + worker * ENCODER
        load = m[encoder + COUNT] + m[encoder + BUSY] * m[encoder + SIZE]
        if least < 0 or load < least:
            best, least = worker, load
    return best


@compiled
def choose_stepper(m: Ints) -> int:
    n = m[N_STEPPERS]
    if m[DISPATCH] == RANDOM:
        return draw(m, n)
    if m[DISPATCH] == ROUND_ROBIN:
        return _in_turn(m, TURN_PD, n)
    best, least = 0, -1
    for worker in range(n):
        stepper = m[STEPPERS] + worker * STEPPER
        load = m[stepper + COUNT] + m[stepper + ADMITTED]
        if least < 0 or load < least:
            best, least = worker, load
    return best


@compiled
def _in_turn(m: Ints, turn: int, n: int) -> int:
    worker = m[turn] % n
    m[turn] += 1
    return int(worker)

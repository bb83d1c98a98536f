"""Which worker gets a request: at random, in turn, or where fewest stand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from has.core.compiled import compiled
from has.sim.columns import COUNT, DRAWN, E_BUSY, E_SIZE, RANDOM, ROUND_ROBIN, S_ADMITTED

Ints = NDArray[np.int64]
_WORD = 2**32


@compiled
def draw(words: Ints, tally: Ints, n: int) -> int:
    """`Generator.integers(n)` on the generator whose 32-bit words these are (Lemire's method; none for n = 1)."""
    if n == 1:
        return 0
    while True:
        product = words[tally[DRAWN] % len(words)] * n
        tally[DRAWN] += 1
        low = product % _WORD
        if low >= n or low >= (_WORD - n) % n:
            return int(product // _WORD)


@compiled
def encoder_for(encoders: Ints, rule: int, words: Ints, tally: Ints, turn: int) -> int:
    n = len(encoders)
    if rule == RANDOM:
        return draw(words, tally, n)
    if rule == ROUND_ROBIN:
        return _in_turn(tally, turn, n)
    best, least = 0, -1
    for w in range(n):
        load = encoders[w, COUNT]
        if encoders[w, E_BUSY] == 1:
            load += encoders[w, E_SIZE]
        if least < 0 or load < least:
            best, least = w, load
    return best


@compiled
def stepper_for(steppers: Ints, rule: int, words: Ints, tally: Ints, turn: int) -> int:
    n = len(steppers)
    if rule == RANDOM:
        return draw(words, tally, n)
    if rule == ROUND_ROBIN:
        return _in_turn(tally, turn, n)
    best, least = 0, -1
    for w in range(n):
        load = steppers[w, COUNT] + steppers[w, S_ADMITTED]
        if least < 0 or load < least:
            best, least = w, load
    return best


@compiled
def _in_turn(tally: Ints, turn: int, n: int) -> int:
    worker = tally[turn] % n
    tally[turn] += 1
    return int(worker)

"""Decode steps in closed form.

A run of m steps with an unchanged batch: its mean context grows by one a step, and the latency is
piecewise linear in it, so within one segment of the token axis the sum is arithmetic,

    Σ_{j<q} (v + slope·j) = q·v + slope·q(q-1)/2.

Along a flat segment every step is rounded for itself, as in a step-by-step account; otherwise the
run is rounded once, at its end. `row` holds the step's latency in ns at the points of `tokens`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from has.core.compiled import compiled

Floats = NDArray[np.float64]


@compiled
def _segment(tokens: Floats, context: float) -> int:
    k = 0
    while k < len(tokens) - 2 and context >= tokens[k + 1]:
        k += 1
    return k


@compiled
def steps_ns(tokens: Floats, row: Floats, context: float, steps: int) -> int:
    """Duration of `steps` steps, the first at mean context `context`."""
    if len(tokens) == 1:
        return int(steps * int(np.rint(row[0])))
    total = 0.0
    k = _segment(tokens, context)
    while steps > 0:
        slope = (row[k + 1] - row[k]) / (tokens[k + 1] - tokens[k])
        q = steps
        if k < len(tokens) - 2:
            q = min(q, int(math.ceil(tokens[k + 1] - context)))
        if slope == 0.0:
            total += q * np.rint(row[k])
        else:
            total += q * (row[k] + slope * (context - tokens[k])) + slope * 0.5 * q * (q - 1)
        context += q
        steps -= q
        k += 1
    return int(np.rint(total))


@compiled
def steps_until(tokens: Floats, row: Floats, context: float, elapsed_ns: int, most: int) -> int:
    """Fewest steps, in 1..most, that take at least `elapsed_ns`; `most` if none do."""
    guess = _solve(tokens, row, context, float(elapsed_ns), most)
    while guess > 1 and steps_ns(tokens, row, context, guess - 1) >= elapsed_ns:
        guess -= 1
    while guess < most and steps_ns(tokens, row, context, guess) < elapsed_ns:
        guess += 1
    return guess


@compiled
def _solve(tokens: Floats, row: Floats, context: float, elapsed: float, most: int) -> int:
    """The same but for a step or two of rounding."""
    if len(tokens) == 1:
        step = np.rint(row[0])
        return most if step * most <= elapsed else max(1, min(most, int(elapsed / step)))
    done, total = 0, 0.0
    k = _segment(tokens, context)
    while done < most:
        slope = (row[k + 1] - row[k]) / (tokens[k + 1] - tokens[k])
        first = row[k] + slope * (context - tokens[k])
        q = most - done
        if k < len(tokens) - 2:
            q = min(q, int(math.ceil(tokens[k + 1] - context)))
        segment = q * first + slope * 0.5 * q * (q - 1)
        if total + segment >= elapsed:
            left = elapsed - total
            if slope == 0.0:
                q = int(math.ceil(left / first)) if first > 0.0 else 1
            else:
                half = first - 0.5 * slope
                root = math.sqrt(max(0.0, half * half + 2.0 * slope * left))
                # The root in the form that subtracts nothing of like size.
                q = int(math.ceil(2.0 * left / (half + root))) if half + root > 0.0 else 1
            return max(1, min(most, done + q))
        total += segment
        done += q
        context += q
        k += 1
    return most

"""Decode steps in closed form.

A run of n steps with an unchanged batch: its mean context grows by one a step, and the latency is
piecewise linear in it, so within one segment of the token axis the sum is arithmetic,

    Σ_{j<q} (v + slope·j) = q·v + slope·q(q-1)/2.

Along a flat segment every step is rounded for itself, as in a step-by-step account; otherwise the
run is rounded once, at its end. `axis`, `row` and `slopes` are addresses in `f` of the token axis,
`points` long, of a step's latencies in ns at its points, and of their slopes from each point to the next.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from has.sim.compiled import compiled

Floats = NDArray[np.float64]


@compiled
def _segment(f: Floats, axis: int, points: int, context: float) -> int:
    k = 0
    while k < points - 2 and context >= f[axis + k + 1]:
        k += 1
    return k


@compiled
def steps_ns(f: Floats, axis: int, points: int, row: int, slopes: int, context: float, steps: int) -> int:
    """Duration of `steps` steps, the first at mean context `context`."""
    if points == 1:
        return steps * int(np.rint(f[row]))
    total = 0.0
    k = _segment(f, axis, points, context)
    while steps > 0:
        slope = f[slopes + k]
        q = steps
        if k < points - 2:
            q = min(q, math.ceil(f[axis + k + 1] - context))
        if slope == 0.0:
            total += q * np.rint(f[row + k])
        else:
            total += q * (f[row + k] + slope * (context - f[axis + k])) + slope * 0.5 * q * (q - 1)
        context += q
        steps -= q
        k += 1
    return int(np.rint(total))


@compiled
def steps_until(
    f: Floats,
    axis: int,
    points: int,
    row: int,
    slopes: int,
    context: float,
    elapsed_ns: int,
    most: int,
) -> tuple[int, int]:
    """(steps, their duration): the fewest, in 1..most, that take at least `elapsed_ns`; `most` if none do."""
    guess = _solve(f, axis, points, row, slopes, context, float(elapsed_ns), most)
    took = steps_ns(f, axis, points, row, slopes, context, guess)
    if took < elapsed_ns:
        while guess < most and took < elapsed_ns:
            guess += 1
            took = steps_ns(f, axis, points, row, slopes, context, guess)
        return guess, took
    while guess > 1:
        shorter = steps_ns(f, axis, points, row, slopes, context, guess - 1)
        if shorter < elapsed_ns:
            break
        guess, took = guess - 1, shorter
    return guess, took


@compiled
def _solve(
    f: Floats, axis: int, points: int, row: int, slopes: int, context: float, elapsed: float, most: int
) -> int:
    """The same but for a step or two of rounding."""
    if points == 1:
        step = np.rint(f[row])
        return most if step * most <= elapsed else max(1, min(most, int(elapsed / step)))
    done, total = 0, 0.0
    k = _segment(f, axis, points, context)
    while done < most:
        slope = f[slopes + k]
        first = f[row + k] + slope * (context - f[axis + k])
        q = most - done
        if k < points - 2:
            q = min(q, math.ceil(f[axis + k + 1] - context))
        segment = q * first + slope * 0.5 * q * (q - 1)
        if total + segment >= elapsed:
            left = elapsed - total
            half = first - 0.5 * slope
            root = math.sqrt(max(0.0, half * half + 2.0 * slope * left))
            # The root of slope/2·x² + half·x = left, in the form that subtracts nothing of like size.
            if half + root > 0.0:
                done += math.ceil(2.0 * left / (half + root))
            return max(1, min(most, done))
        total += segment
        done += q
        context += q
        k += 1
    return most

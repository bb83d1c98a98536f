"""How long the rest of a profile takes.

    symbol  meaning
    w_i     seconds that point i is expected to take, by the table that paces it
    l_i     GPUs it keeps busy meanwhile
    r       real over expected seconds of the points that are done: of the stage's own, as far as there are
            any (they weigh against `TRUST_S` seconds of all stages')
    G       GPUs that work is spread over

Paced points left take r·Σ w_i·l_i / G, what those running have done already taken off, and at least as
long as the longest of the running ones still needs; those that are not paced run alone, one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from has.device.base import Work
from has.device.cpu import VirtualGpu
from has.profiler.plan import Key, Point, Sampling, load, weight

TRUST_S = 5.0
"""Expected seconds that count as seen before anything is: one odd point does not turn the forecast."""
PREPARE_S = 0.4
"""Of a paced point: building its inputs, and waiting for what runs beside it."""
ALONE_S = 0.3
"""Of a point that is not paced, until one has been seen."""
BESIDE = 1.2
"""A point beside another takes about this much longer than alone."""
MORE_SAMPLES = 1.5
"""Of the least number: some points do not agree at once."""


def expected_s(gpu: VirtualGpu, sampling: Sampling, point: Point) -> float:
    """Seconds that measuring `point` on `gpu` should take; of one that is not paced, `ALONE_S`."""
    if weight(point) == 0.0:
        return ALONE_S
    once = gpu.meant_s(Work(str(point.stage), point.batch, point.tokens, point.sm_asked))
    once *= BESIDE if point.companion else 1.0
    least = sampling.steps if str(point.stage) == "decode" else sampling.least
    # The cap is looked at after each sample, so one that is longer is taken whole.
    return PREPARE_S + min(MORE_SAMPLES * least * once, sampling.cap_s + once)


class Forecast:
    """Told what starts and ends, says how many seconds are left."""

    def __init__(
        self,
        points: Sequence[Point],
        expected_s: Callable[[Point], float],
        gpus: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._expected = {point.key: expected_s(point) for point in points}
        self._waiting = {point.key: point for point in points}
        self._running: dict[object, tuple[Point, float]] = {}
        self._gpus = gpus
        self._clock = clock
        self._all = {True: [TRUST_S, TRUST_S], False: [ALONE_S, ALONE_S]}
        """By whether a point is paced: expected and real seconds so far."""
        self._stages: dict[object, list[float]] = {}
        """Likewise by stage and what runs beside it."""

    def expect(self, points: Iterable[Point]) -> None:
        """These are to be measured after all."""
        self._waiting |= {point.key: point for point in points if point.key not in self._running}

    def started(self, point: Point) -> None:
        self._waiting.pop(point.key, None)
        self._running[point.key] = (point, self._clock())

    def ended(self, point: Point, *, again: bool = False) -> None:
        """`again`: it is to be measured once more."""
        _, begun = self._running.pop(point.key)
        own = self._stages.setdefault((point.stage, point.beside), [0.0, 0.0])
        for seen in (self._all[weight(point) > 0], own):
            seen[0] += self._expected[point.key]
            seen[1] += self._clock() - begun
        if again:
            self._waiting[point.key] = point

    def follow(self, keys: Iterable[Key]) -> None:
        """These points need not be measured after all."""
        for key in keys:
            self._waiting.pop(key, None)

    def left_s(self) -> float:
        """Seconds until all points are done, at least one while any is not."""
        now = self._clock()
        busy, longest, alone = 0.0, 0.0, 0.0
        for point in self._waiting.values():
            if weight(point) > 0:
                busy += self._meant_s(point) * load(point)
            else:
                alone += self._meant_s(point)
        for point, begun in self._running.values():
            rest = max(0.0, self._meant_s(point) - (now - begun))
            busy += rest * load(point)
            longest = max(longest, rest)
        left = max(busy / self._gpus, longest) + alone
        return max(1.0, left) if self._waiting or self._running else 0.0

    def _meant_s(self, point: Point) -> float:
        expected, real = self._all[weight(point) > 0]
        own_expected, own_real = self._stages.get((point.stage, point.beside), (0.0, 0.0))
        factor = (TRUST_S * real / expected + own_real) / (TRUST_S + own_expected)
        return self._expected[point.key] * factor

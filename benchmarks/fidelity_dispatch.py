"""A run simulated with the workers that a live run drew: what is left is not chance in dispatch.

`dispatch: random` draws from one generator in order of assignment. In life a request that is a millisecond early
takes another's draw, and all that come after differ. Which worker each request went to is in the live records; here
the simulator is given draws that send it there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from has.core.deployment import Deployment
from has.core.records import NEVER, Records
from has.sim.simulator import Prepared, Simulator

Ints = NDArray[np.int64]
ROUNDS = 100


def as_dispatched(
    simulator: Simulator, deployment: Deployment, prepared: Prepared, live: Records, rate: float
) -> Records | None:
    """`prepared` simulated with the choices of `live` (the same requests); None where no order of draws makes them.

    Draws are taken in the simulator's order of assignments, which follows from the draws: a fixed point,
    found by trying the order of the last run, the live one first.
    """
    known, order = live, None
    for _ in range(ROUNDS):
        last, order = order, _order(deployment, known)
        if order == last:
            break
        known = simulator.run(deployment, replace(prepared, words=_words(deployment, live, order)), rate=rate)
    same = all(
        np.array_equal(getattr(known, column), getattr(live, column)) for column, _, _ in _draws(deployment)
    )
    return known if same else None


def _draws(deployment: Deployment) -> list[tuple[str, str, int]]:
    """What is drawn: (column of the choice, column of its instant, workers to choose from)."""
    encoder, first, instant = "encode_worker", "prefill_worker", "prefill_ready_ns"
    match deployment.topology:
        case "disaggregated":
            return [(encoder, "preprocessed_ns", deployment.workers("encode"))]
        case "e_pd":
            return [
                (encoder, "preprocessed_ns", deployment.workers("encode")),
                (first, instant, deployment.workers("prefill_decode")),
            ]
        case "monolithic":
            return [(first, instant, deployment.workers("all"))]


def _order(deployment: Deployment, records: Records) -> list[tuple[int, int]]:
    """(request, which of its draws) in order of time."""
    entries: list[tuple[int, int, int]] = []
    for which, (choice, instant, _) in enumerate(_draws(deployment)):
        drawn = np.flatnonzero(getattr(records, choice) != NEVER)
        times: Ints = getattr(records, instant)[drawn]
        entries += [(int(t), int(request), which) for t, request in zip(times, drawn, strict=True)]
    return [(request, which) for _, request, which in sorted(entries)]


def _words(deployment: Deployment, live: Records, order: list[tuple[int, int]]) -> Ints:
    """The 32-bit words from which `Generator.integers(n)` makes the live choices: the middle of each one's range."""
    draws = _draws(deployment)
    words = []
    for request, which in order:
        choice, _, workers = draws[which]
        if workers > 1:  # of one there is nothing to draw
            words.append((2 * int(getattr(live, choice)[request]) + 1) * 2**32 // (2 * workers))
    return np.array([*words, 0], np.int64)

"""What a candidate could carry if the profile were wrong in the ways it may be.

A stage's latencies are wrong for every candidate alike. So the best that one candidate may carry is
not to be held against the worst that another may: they are compared within one world, in which each
stage has one true factor. What is far behind in every world is behind.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from has.core.requests import Floats
from has.search.predict import scaled
from has.search.problem import Problem
from has.search.space import Candidate

STAGES = ("encode", "prefill", "decode")


def behind_in_every_world(
    problem: Problem,
    candidates: Sequence[Candidate],
    floors: Floats,
    *,
    error: float,
    rest: float,
    margin: float,
    enough: float,
) -> tuple[Floats, Floats]:
    """Of each candidate, what it carries and what it should, in the world where it does best: [C], [C].

    The worlds have stage latencies at 1-`error`, 1 and 1+`error` of the profile's, in every combination.
    A candidate should carry (1-`margin`) of what the best candidate surely does whose no-queue TTFT
    (`floors`) is not larger, or of `enough`. `rest` is the relative error within a world.
    """
    carried = np.zeros(len(candidates))
    needed = np.full(len(candidates), np.inf)
    order = np.argsort(floors, kind="stable")
    places = np.searchsorted(floors[order], floors, side="right") - 1
    kv_tokens = [problem.kv_tokens(c) for c in candidates]
    for factors in itertools.product((1 - error, 1.0, 1 + error), repeat=len(STAGES)):
        latency = scaled(problem.latency, np.log(np.array([1.0, *factors, 1.0])))

        optimist = problem.capacity_model(latency=latency, slack=1 - rest, optimism=margin)
        pessimist = problem.capacity_model(latency=latency, slack=1 + rest, queued=True)
        may = np.array([optimist.of(c, kv).limit for c, kv in zip(candidates, kv_tokens, strict=True)])
        surely = np.array([pessimist.of(c, kv).limit for c, kv in zip(candidates, kv_tokens, strict=True)])
        rival = np.maximum.accumulate(np.minimum(surely[order], enough))[places]
        should = (1 - margin) * rival
        better = may / np.maximum(should, 1e-12) > carried / np.maximum(needed, 1e-12)
        carried, needed = np.where(better, may, carried), np.where(better, should, needed)
    return carried, needed

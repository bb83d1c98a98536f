"""What a largest rate is worth once traffic lasts.

Trials and rankings run the same short list, stretched to each rate. At a high rate it is over in
seconds, before a queue that only grows has cost anything: 1,000 requests at 200 requests/s last 5 s,
and a deployment that carries 120 in the long run meets a 2 s TTFT on nearly all of them. That is
harmless between candidates, which all run it, and misleading as a promise. So the rate that is
written is held to arrivals of another seed that last `SPAN` times the TTFT bound; of a trace, to what
is replayed of it, which lasts by itself (`traffic`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from has.core.deployment import Deployment
from has.core.requests import Requests
from has.errors import InputError
from has.search.loop import Loop
from has.search.predict import Predictor
from has.search.problem import Problem
from has.search.side_by_side import side_by_side
from has.sim.draw import draw_requests

SPAN = 150.0
"""Length of the traffic, in TTFT bounds: 7 % too many requests make the last of them wait ten bounds."""
FEWEST, MOST = 3000, 60_000
"""Requests: enough for a percentile, few enough for a second or two of simulation."""


def sustained(loop: Loop, values: Sequence[tuple[Deployment, float]]) -> list[float]:
    """Of each deployment its value, or the lower rate that the calibrated simulator carries on traffic that lasts.

    Only of a largest rate. Of a trace, what of it is replayed (`traffic`).
    """
    if loop.problem.objective.name != "max-rate":
        return [value for _, value in values]
    return side_by_side(loop.ensemble.central, partial(_sustained, loop), values)


def _sustained(loop: Loop, predictor: Predictor, of: tuple[Deployment, float]) -> float:
    deployment, value = of
    if value <= 0:
        return value
    try:
        carried = loop.carried(deployment, _lasting(loop, value), upper=value, predictor=predictor)
    except InputError:
        return value  # sizes of the longer list lie beyond the profile's reach: nothing more can be said
    # 0: the simulator knows no rate at all. Trials have shown one, and that stands.
    return min(value, carried) if carried > 0 else value


def requests_of(bounds: float, problem: Problem, rate: float, most: int = MOST) -> int:
    """How many requests at `rate` last so many TTFT bounds, `FEWEST` to `most`."""
    return min(most, max(FEWEST, math.ceil(bounds * problem.slo.ttft_s * rate)))


def _lasting(loop: Loop, rate: float) -> Requests:
    problem = loop.problem
    if problem.workload.arrivals.process == "trace":
        return problem.requests
    return draw_requests(
        problem.workload,
        rate=problem.base_rate,
        requests=requests_of(SPAN, problem, rate),
        seed=problem.seed + 1,
        model=problem.settings["model"],
    )

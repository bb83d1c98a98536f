"""What an answer is worth once traffic lasts.

Trials and rankings run one list, stretched to each rate. At a high rate it is over before a queue that
grows slowly has cost anything (`length`). That is harmless between candidates, which all run it, and
misleading as a promise. So a largest rate is held to arrivals of another seed that last `SPAN` times the
TTFT bound, the one that is written to `PROMISE_SPAN`, and what meets the SLO at a given rate must meet it there as well; of a trace, to what is
replayed of it, which lasts by itself (`traffic`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from has.core.deployment import Deployment
from has.core.requests import Requests
from has.errors import InputError
from has.search.length import MOST, PROMISE_MOST, PROMISE_SPAN, SPAN, requests_lasting
from has.search.loop import Loop
from has.search.objective import ABOVE
from has.search.predict import Predictor
from has.search.side_by_side import side_by_side
from has.sim.draw import draw_requests

CHANCE = 0.02
"""Share of requests by which other arrivals of the same load may miss more than a trial's."""


def sustained(
    loop: Loop, values: Sequence[tuple[Deployment, float]], *, promised: bool = False
) -> list[float]:
    """Of each deployment its value, or the lower rate that the calibrated simulator carries on traffic that lasts.

    Only of a largest rate. Of a trace, what of it is replayed (`traffic`). `promised`: on traffic that lasts
    longer by far, for the few rates that are written.
    """
    fastest = max((value for _, value in values), default=0.0)
    if loop.problem.objective.name != "max-rate" or fastest <= 0:
        return [value for _, value in values]
    requests = _lasting(loop, fastest, *((PROMISE_SPAN, PROMISE_MOST) if promised else (SPAN, MOST)))
    return side_by_side(loop.ensemble.central, partial(_sustained, loop, requests), values)


def _sustained(loop: Loop, requests: Requests, predictor: Predictor, of: tuple[Deployment, float]) -> float:
    deployment, value = of
    if value <= 0:
        return value
    try:  # the scan begins at the very value, which most often stands
        carried = loop.carried(deployment, requests, upper=value / ABOVE, predictor=predictor)
    except InputError:
        return value  # sizes of the longer list lie beyond the profile's reach: nothing more can be said
    # 0: the simulator knows no rate at all. Trials have shown one, and that stands.
    return min(value, carried) if carried > 0 else value


def fades(loop: Loop, deployment: Deployment) -> float | None:
    """The share of requests within the SLO over traffic that lasts, where that misses the target and only the
    length is to blame; else None. Of objectives at a given rate, as the calibrated simulator sees it."""
    rate, central = max(loop.problem.objective.rates), loop.ensemble.central
    requests = _lasting(loop, rate)
    try:
        central.warnings(requests)
    except InputError:
        return None  # as for a largest rate
    lasting = central.point(deployment, rate, requests).attainment
    needed = loop.problem.slo.attainment - CHANCE
    if lasting >= needed or lasting >= central.point(deployment, rate, loop.lists.trial).attainment - CHANCE:
        return None
    return lasting


def _lasting(loop: Loop, rate: float, span: float = SPAN, most: int = MOST) -> Requests:
    problem = loop.problem
    if problem.workload.arrivals.process == "trace":
        return problem.requests
    return draw_requests(
        problem.workload,
        rate=problem.base_rate,
        requests=requests_lasting(span, problem.slo.ttft_s, rate, most=most),
        seed=problem.seed + 1,
        model=problem.settings["model"],
    )

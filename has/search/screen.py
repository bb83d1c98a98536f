"""All candidates simulated once, cheaply: which are worth a closer look, and which baselines to hold them to."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from has.core.requests import Requests
from has.core.space import OffloadRange, SearchSpace
from has.core.trial import TrialState
from has.search.cuts import Pruned
from has.search.objective import Objective, Score
from has.search.predict import ROUGH, Predictor
from has.search.samplers.port import Tried
from has.search.space import Candidate

IN_SIGHT = 0.6
"""A maximum rate below this share of the best is not looked for more closely."""
SHORTLIST = 32
"""Candidates that the surrogate looks at: the first ones."""
DOUBT = 0.05
"""Share of requests by which a first look may be unlucky: three standard deviations of 300 requests at the target."""
NEAR, FEW = 0.1, 0.02
"""Of a largest rate, cut candidates this close to the best come back, but at most this share of the space."""
Scores = dict[Candidate, Score]


def rank(objective: Objective, candidate: Candidate, score: Score) -> tuple[float, ...]:
    """Sorts the better last: meets the SLO, is cheap (objective cost), has the value; then what misses by least."""
    cheap = -objective.cost(candidate) if objective.name == "cost" and score.feasible else 0.0
    return (float(score.feasible), cheap, *map(float, score.rank[1:]))


def screen(
    predictor: Predictor,
    candidates: Sequence[Candidate],
    requests: Requests,
    progress: Callable[[int], None],
    *,
    at_least: float | None = None,
    known: Mapping[Candidate, Score] | None = None,
) -> Scores:
    """Every candidate's score on these requests. `at_least`: a maximum rate below it is not looked for;
    `known`: scores that need not be looked for again."""
    max_rate = predictor.problem.objective.name == "max-rate"
    order = sorted(candidates, key=predictor.limit, reverse=True) if max_rate else candidates
    known = known or {}
    scores: Scores = {c: known[c] for c in candidates if c in known}
    best = max((score.value for score in scores.values()), default=0.0)
    for done, candidate in enumerate(order, 1):
        if candidate in scores:
            continue
        lower = IN_SIGHT * best if at_least is None else at_least
        scores[candidate] = predictor.score(candidate, requests, lower=lower, **ROUGH)
        best = max(best, scores[candidate].value)
        progress(done)
    return {candidate: scores[candidate] for candidate in candidates}


def held(
    predictor: Predictor,
    scores: Mapping[Candidate, Score],
    lasting: Requests,
    count: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Scores:
    """Scores at a given rate, those of the first `count` in their ranking judged on traffic that `lasting` is.

    A first look is over before slow overload shows (`length`), so what it likes is an upper bound but for chance,
    for which it is given `DOUBT`. Whoever comes first is judged anew and finds its place, until the first ones all
    were. Of the objective cost that ends where nobody is left who may meet the SLO. A largest rate is held to
    lasting traffic at the end.
    """
    objective = predictor.problem.objective
    found = dict(scores)
    if objective.name == "max-rate":
        return found

    def entry(place: int, candidate: Candidate, score: Score) -> tuple[list[float], int, Candidate]:
        return [-x for x in rank(objective, candidate, score)], place, candidate

    def may_meet(score: Score) -> bool:
        return score.feasible or score.point.attainment >= objective.slo.attainment - DOUBT

    heap = [
        entry(n, c, replace(score, feasible=may_meet(score))) for n, (c, score) in enumerate(found.items())
    ]
    heapq.heapify(heap)
    judged: set[Candidate] = set()
    settled = 0
    while heap and settled < count:
        _, place, candidate = heapq.heappop(heap)
        if candidate in judged:
            settled += 1
            continue
        if objective.name == "cost" and not may_meet(found[candidate]):
            break
        judged.add(candidate)
        found[candidate] = predictor.score(candidate, lasting)
        heapq.heappush(heap, entry(place, candidate, found[candidate]))
        progress(len(judged))
    return found


def ranked(objective: Objective, scores: Mapping[Candidate, Score]) -> list[Candidate]:
    """The most promising first; of equals, the one listed first."""
    return sorted(scores, key=lambda c: rank(objective, c, scores[c]), reverse=True)


def keep_simulators_best(pruned: Pruned, objective: Objective, kept: Scores, cut: Scores) -> Pruned:
    """The guard: what the simulator, which knows queues, likes better than everything kept comes back.

    Of a largest rate also what it likes nearly as well, but no more than a few. (Of goodput there may
    be hundreds of equals.)
    """
    best_kept = max((rank(objective, c, s) for c, s in kept.items()), default=(-1.0,))
    order = ranked(objective, cut)
    back = [c for c in order[:1] if rank(objective, c, cut[c]) > best_kept]
    if objective.name == "max-rate":
        best = max((score.value for score in kept.values()), default=0.0)
        few = max(1, round(FEW * (len(pruned.kept) + len(pruned.cuts))))
        back = [c for c in order[:few] if cut[c].value >= (1 - NEAR) * best and cut[c].value > 0] or back
    if not back:
        return pruned
    others = f" and {len(back) - 1} more were" if len(back) > 1 else " was"
    note = f"{back[0].label}{others} cut, but the simulator ranks it first or nearly so: kept"
    return pruned.restore(back, note)


def baseline_spaces(space: SearchSpace) -> dict[str, SearchSpace]:
    """Where the best of each kind of baseline is looked for, whatever topologies the space offers."""
    return {
        "monolithic": space.model_copy(update={"topologies": ("monolithic",)}),
        "e_pd": space.model_copy(update={"topologies": ("e_pd",)}),
        "static_epd": space.model_copy(
            update={
                "topologies": ("disaggregated",),
                "encode_batch": (1,),
                "prefill_offload": OffloadRange(min=1.0, max=1.0),
            }
        ),
    }


def tried(
    objective: Objective, candidate: Candidate, state: TrialState, value: float | None, feasible: bool
) -> Tried:
    """A trial as samplers see it: cost becomes a utility in which every answer within the SLO beats every other."""
    utility = value
    if objective.name == "cost" and value is not None and feasible:
        utility = 2.0 - objective.cost(candidate) / 2**20
    return Tried(candidate, state, value, utility, feasible)

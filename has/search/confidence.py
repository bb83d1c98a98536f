"""How sure a search may say it is that nothing there is would be clearly better.

The surrogate's belief gives a probability, and a belief that is a little wrong is too sure where it is sure and too modest
where it is not. How often it was right is known where the truth is (`benchmarks/search`): what it held for likely with p was
so in the share q, logit q = OFFSET + SLOPE · logit p (Platt's scaling; a slope below 1 is a belief that is too narrow). Fitted
on 3,000 statements in the worlds that the search was tuned on, judged in the others (docs/search/search.md). What was judged
is how near a rate is to the largest; the probability of a cheapest deployment is corrected alike, for want of a benchmark of its own.
"""

from __future__ import annotations

import math

import numpy as np

from has.search.evidence import WITHIN_PERCENT
from has.search.loop import Loop
from has.search.space import Candidate

OFFSET, SLOPE = 1.15, 0.3
DRAWS = 4000
"""From the posterior, for a probability."""


def confidence(loop: Loop, chosen: Candidate) -> float:
    """Probability that nothing there is would be better by more than `WITHIN_PERCENT`; for cost: that the chosen one
    meets the SLO, and nothing cheaper by more than that does."""
    belief, objective = loop.posterior([*loop.shortlist]), loop.problem.objective
    if objective.name != "cost":
        return corrected(belief.probability_within(chosen, WITHIN_PERCENT, loop.problem.seed, DRAWS), DRAWS)
    draws = belief.draws(DRAWS, loop.problem.seed)
    costs = np.array([objective.cost(c) for c in belief.candidates])
    mine = belief.index(chosen)
    cheaper = costs * (1 + WITHIN_PERCENT / 100) < costs[mine]
    meets = draws >= objective.slo.attainment
    return corrected(float(np.mean(meets[:, mine] & ~(meets & cheaper).any(axis=1))), DRAWS)


def corrected(probability: float, draws: int) -> float:
    """How often what the belief says with `probability` was right; of `draws` samples, none or all say no more than half of one."""
    least = 0.5 / draws
    held = min(max(probability, least), 1 - least)
    return 1 / (1 + math.exp(-OFFSET - SLOPE * math.log(held / (1 - held))))

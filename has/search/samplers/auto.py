"""The default: expected improvement over the listed candidates, under the simulators' own belief."""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from has.core.requests import Floats
from has.search.samplers.port import Proposal, View
from has.search.surrogate import Posterior


class Auto:
    """Proposes the candidate with the largest expected improvement on the best tried one.

    The difference to that one is what is judged: errors that all candidates share cancel in it.
    The last trial goes to the best posterior mean, for only what was tried is recommended.
    """

    name = "auto"
    exhaustive = False

    def propose(self, view: View) -> Proposal | None:
        done = {entry.candidate for entry in view.tried}
        fresh = [c for c in view.shortlist if c not in done]
        if not fresh:
            return Proposal(view.untried[0], 0.0) if view.untried else None
        seen = [e.candidate for e in view.tried if e.value is not None and e.candidate in set(view.shortlist)]
        belief = view.posterior([*fresh, *seen])
        n = len(fresh)
        if view.objective.name == "cost":
            gain = _saving(view, belief, n)
        elif not seen:
            gain = belief.mean[:n] / max(float(np.max(belief.mean[:n])), 1e-12)
        else:
            best = n + int(np.argmax(belief.mean[n:]))
            gain = _improvement(belief, n, best) / max(abs(float(belief.mean[best])), 1e-12)
            if view.remaining == 1 and float(np.max(belief.mean[:n])) > float(belief.mean[best]):
                chosen = int(np.argmax(belief.mean[:n]))
                return Proposal(fresh[chosen], float(gain[chosen]))
        chosen = int(np.argmax(gain))
        return Proposal(fresh[chosen], float(gain[chosen]) if seen else None)


def _improvement(belief: Posterior, n: int, best: int) -> Floats:
    """E[max(0, y_c - y_best)] for the first n candidates, from their joint distribution with the best."""
    covariance = belief.covariance
    delta = belief.mean[:n] - belief.mean[best]
    variance = np.diag(covariance)[:n] + covariance[best, best] - 2 * covariance[:n, best]
    sd = np.sqrt(np.maximum(variance, 1e-18))
    ratio = delta / sd
    gain: Floats = sd * norm.pdf(ratio) + delta * norm.cdf(ratio)
    return gain


def _saving(view: View, belief: Posterior, n: int) -> Floats:
    """Probability of meeting the SLO, times what the candidate would save on the cheapest that does, as a share.

    Among equals in price the surer one is better, so a little of the probability counts by itself.
    """
    cost = view.objective.cost
    good = [cost(e.candidate) for e in view.tried if e.feasible]
    dearest = max(cost(c) for c in belief.candidates)
    incumbent = min(good, default=2 * dearest)
    saved = np.array([max(0.0, incumbent - cost(c)) for c in belief.candidates[:n]])
    sd = np.maximum(belief.sd[:n], 1e-9)
    probability = norm.cdf((belief.mean[:n] - view.objective.slo.attainment) / sd)
    gain: Floats = probability * saved / incumbent
    return gain

"""The default: expected improvement over the listed candidates, under the simulators' own belief."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr  # scipy.stats would take half a second to load

from has.core.requests import Floats
from has.search.samplers.port import Proposal, View
from has.search.space import Candidate
from has.search.surrogate import Posterior

NEARLY = 0.8
"""Share of the best expected improvement for which a change of B and s alone is preferred to one of pools."""


class Auto:
    """Proposes the candidate of which a trial is expected to improve the recommendation most.

    The difference to the best tried one is what is judged: errors that all candidates share cancel in
    it. Where trials are noisy, another trial of one that was tried may tell most.
    The last trial goes to the best posterior mean, for only what was tried is recommended.
    """

    name = "auto"
    exhaustive = False

    def propose(self, view: View) -> Proposal | None:
        listed = set(view.shortlist)
        done = {*(entry.candidate for entry in view.tried), *view.pending}
        fresh = [c for c in view.shortlist if c not in done]
        if not fresh:
            return Proposal(view.untried[0], 0.0) if view.untried else None
        seen = [e.candidate for e in view.tried if e.value is not None and e.candidate in listed]
        seen = list(dict.fromkeys([*seen, *(c for c in view.pending if c in listed)]))
        belief = view.posterior([*fresh, *seen]).believing([c for c in view.pending if c in listed])
        n = len(fresh)
        runs = view.chance(fresh)
        if view.objective.name == "cost":
            gain = _saving(view, belief, n) * runs
        elif not seen:
            gain = belief.mean[:n] * runs / max(float(np.max(belief.mean[:n])), 1e-12)
        else:
            best = n + int(np.argmax(belief.mean[n:]))
            scale = max(abs(float(belief.mean[best])), 1e-12)
            gain = _improvement(belief, n, best) * runs / scale
            if view.remaining == 1 and float(np.max(belief.mean[:n] * runs)) > float(belief.mean[best]):
                chosen = int(np.argmax(belief.mean[:n] * runs))
                return Proposal(fresh[chosen], float(gain[chosen]))
            repeat = None if view.pending else _worth_repeating(belief, n, best)
            if repeat is not None and repeat[1] / scale > np.max(gain):
                return Proposal(belief.candidates[repeat[0]], repeat[1] / scale)
        chosen = int(np.argmax(gain))
        if view.dear and view.tried:
            chosen = _without_restart(fresh, gain, view.tried[-1].candidate, chosen)
        return Proposal(fresh[chosen], float(gain[chosen]) if seen else None)


def _without_restart(fresh: Sequence[Candidate], gain: Floats, now: Candidate, chosen: int) -> int:
    """The best candidate on the GPUs as they are split now, if it promises nearly as much as the best of all."""
    same = [i for i, c in enumerate(fresh) if c.allocation == now.allocation]
    best = max(same, key=lambda i: gain[i], default=chosen)
    return best if gain[best] >= NEARLY * gain[chosen] else chosen


def _improvement(belief: Posterior, n: int, best: int) -> Floats:
    """E[max(0, y_c - y_best)] for the first n candidates, from their joint distribution with the best."""
    covariance = belief.covariance
    delta = belief.mean[:n] - belief.mean[best]
    variance = np.diag(covariance)[:n] + covariance[best, best] - 2 * covariance[:n, best]
    return _expected_excess(delta, np.sqrt(np.maximum(variance, 1e-18)))


def _worth_repeating(belief: Posterior, n: int, best: int) -> tuple[int, float] | None:
    """Which tried candidate to try again, and what that is expected to add; None where trials repeat exactly.

    Another trial of the best one may show that the second is better, and the other way round.
    """
    if belief.noise is None or len(belief.candidates) - n < 2:
        return None
    covariance, mean = belief.covariance, belief.mean
    seen = [i for i in range(n, len(mean)) if i != best]
    second = max(seen, key=lambda i: mean[i])
    gains = []
    for tried, rival in [(best, second), *((i, best) for i in seen)]:
        own = covariance[tried, tried]
        moved = abs(own - covariance[tried, rival]) / np.sqrt(own + belief.noise[tried] ** 2)
        gap = -abs(mean[tried] - mean[rival])
        gains.append((float(_expected_excess(np.array([gap]), np.array([max(moved, 1e-9)]))[0]), tried))
    gain, chosen = max(gains)
    return chosen, gain


def _expected_excess(delta: Floats, sd: Floats) -> Floats:
    """E[max(0, x)] of x ~ N(delta, sd²)."""
    ratio = delta / sd
    excess: Floats = sd * np.exp(-(ratio**2) / 2) / np.sqrt(2 * np.pi) + delta * ndtr(ratio)
    return excess


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
    probability = ndtr((belief.mean[:n] - view.objective.slo.attainment) / sd)
    gain: Floats = probability * saved / incumbent
    return gain

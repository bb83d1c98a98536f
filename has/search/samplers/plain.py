"""Samplers that learn nothing: the yardsticks."""

from __future__ import annotations

from has.search.samplers.port import Proposal, View


class Random:
    """Uniform over what was not tried."""

    name = "random"
    exhaustive = False

    def propose(self, view: View) -> Proposal | None:
        if not view.untried:
            return None
        return Proposal(view.untried[int(view.rng.integers(len(view.untried)))])


class Grid:
    """Every candidate, the most promising first."""

    name = "grid"
    exhaustive = True

    def propose(self, view: View) -> Proposal | None:
        return Proposal(view.untried[0]) if view.untried else None

"""The order in which candidates are looked at: as the simulator ranks them, on the profile and, once trials
have told of the stages, on what those told."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from has.core.requests import Requests
from has.core.words import plural
from has.search.cuts import Pruned
from has.search.objective import Objective
from has.search.predict import Predictor
from has.search.screen import SHORTLIST, Scores, held, ranked, screen
from has.search.space import Candidate

RANKED_AGAIN = 200
"""Candidates that calibrated simulators rank anew."""
NEAR = 0.1
"""A candidate that was cut comes back if the calibrated simulator sees it this close to the best."""


class Ranking:
    """`order` is of the candidates that `pruned` keeps; `uncalibrated` simulated all of them."""

    def __init__(
        self, objective: Objective, pruned: Pruned, kept: Scores, cut: Scores, uncalibrated: Predictor
    ) -> None:
        self.pruned = pruned
        self.order = ranked(objective, kept)
        self._objective = objective
        self._first = {**cut, **kept}
        self._latest = dict(self._first)
        self._cut = cut
        self._uncalibrated = uncalibrated

    @property
    def first(self) -> list[Candidate]:
        return self.order[:SHORTLIST]

    def again(self, central: Predictor, requests: Requests, lasting: Requests) -> str | None:
        """In the order of the calibrated simulator on `requests`, the first ones on `lasting`, as far as candidates
        can still matter.

        What was cut on the uncalibrated profile comes back if it can; says so.
        """
        order = self._in_sight(central)
        scores = screen(central, order[:RANKED_AGAIN], requests, lambda _: None)
        scores = held(central, scores, lasting, SHORTLIST)
        self._latest |= scores
        kept = set(self.order)
        best = max((score.value for score in scores.values()), default=0.0)
        back = [c for c, s in scores.items() if c not in kept and s.value >= (1 - NEAR) * best > 0]
        note = None
        if back:
            note = f"good with the stage latencies that trials showed, and so back: {plural(len(back), 'candidate')}"
            self.pruned = self.pruned.restore(back, note)
            kept |= set(back)
        first = ranked(self._objective, {c: s for c, s in scores.items() if c in kept})
        self.order = [*first, *(c for c in order[RANKED_AGAIN:] if c in kept)]
        return note

    def likeliest_cut(self, tried: Mapping[Candidate, object]) -> Candidate | None:
        """Of the untried candidates that a bound cut (what no GPU holds aside), what the simulator likes best."""
        rules = self._rules()
        scores = {c: s for c, s in self._cut.items() if c in rules and c not in tried}
        return ranked(self._objective, scores)[0] if scores else None

    def take_back(self, refuted: Candidate) -> str:
        """All that was cut by the rule that cut this one; says so."""
        rules = self._rules()
        rule = rules[refuted]
        note = f"the audit trial {refuted.label} beat what was kept: rule {rule} is taken back"
        self.pruned = self.pruned.restore([c for c, r in rules.items() if r == rule], note)
        self.order = ranked(
            self._objective, {c: self._latest[c] for c in self.pruned.kept if c in self._latest}
        )
        return note

    def _rules(self) -> dict[Candidate, str]:
        return {cut.candidate: cut.rule for cut in self.pruned.cuts if cut.rule not in ("reach", "memory")}

    def _in_sight(self, central: Predictor) -> list[Candidate]:
        """By what they were predicted to be worth, times how their capacities changed since."""
        carried = {c: self._uncalibrated.limit(c) for c in self._latest}
        usual = np.median([self._latest[c].value / carried[c] for c in self.first if carried[c]])
        worth = {
            c: central.limit(c) * (self._first[c].value / carried[c] or usual)
            for c in self._latest
            if carried[c] > 0
        }
        return sorted(worth, key=lambda c: worth[c], reverse=True)

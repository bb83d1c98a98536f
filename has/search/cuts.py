"""What pruning leaves, what it cut, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from has.search.space import Candidate


@dataclass(frozen=True, slots=True)
class Cut:
    """A candidate that was cut: by which rule, at which bound, with which value, under which margin."""

    candidate: Candidate
    rule: str
    bound: float
    value: float
    margin: float
    reason: str


@dataclass(frozen=True, slots=True)
class Pruned:
    """What is left, and why the rest is not. `notes` are checks that were off or guards that acted."""

    kept: tuple[Candidate, ...]
    cuts: tuple[Cut, ...]
    notes: tuple[str, ...] = ()

    @property
    def by_rule(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for cut in self.cuts:
            counts[cut.rule] = counts.get(cut.rule, 0) + 1
        return counts

    def restore(self, candidates: Iterable[Candidate], note: str) -> Pruned:
        """With these candidates back in."""
        back = set(candidates)
        if not back:
            return self
        order = [*self.kept, *(cut.candidate for cut in self.cuts if cut.candidate in back)]
        return Pruned(
            tuple(order), tuple(c for c in self.cuts if c.candidate not in back), (*self.notes, note)
        )

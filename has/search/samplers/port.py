"""What a sampler sees and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from has.core.requests import Floats
from has.core.trial import TrialState
from has.search.objective import Objective
from has.search.space import Candidate
from has.search.surrogate import Posterior


@dataclass(frozen=True, slots=True)
class Tried:
    """A finished trial. `value` is the objective's (higher is better; for a stopped trial at most that),
    None where it failed; `utility` folds feasibility and cost in, for samplers that know one number."""

    candidate: Candidate
    state: TrialState
    value: float | None
    utility: float | None
    feasible: bool = False


@dataclass(frozen=True)
class View:
    """The state of a search at one proposal.

    candidates  all that may be proposed, the most promising by simulation first
    shortlist   the ones the surrogate looks at: the beginning of `candidates`, and what was tried
    tried       in order
    number      of this proposal; with `seed` it seeds all that is drawn
    remaining   proposals left, this one included
    posterior   the surrogate's joint belief
    chance      probability of each candidate that it runs at all, from crashes of its like
    pending     proposed, not yet finished: trials that run side by side
    dear        whether another allocation is costly to set up, so that of equals one that needs none is better
    """

    candidates: Sequence[Candidate]
    shortlist: Sequence[Candidate]
    tried: Sequence[Tried]
    number: int
    remaining: int
    seed: int
    objective: Objective
    posterior: Callable[[Sequence[Candidate]], Posterior]
    chance: Callable[[Sequence[Candidate]], Floats] = lambda candidates: np.ones(len(candidates))
    pending: Sequence[Candidate] = ()
    dear: bool = False

    @cached_property
    def untried(self) -> list[Candidate]:
        done = {*(entry.candidate for entry in self.tried), *self.pending}
        return [c for c in self.candidates if c not in done]

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng((self.seed, self.number))


@dataclass(frozen=True, slots=True)
class Proposal:
    """`expected_improvement`, a share of the best so far, is None where a sampler knows none."""

    candidate: Candidate
    expected_improvement: float | None = None


class Sampler(Protocol):
    """Stateless: the same view gives the same proposal, so that a resumed search goes on as it would have."""

    name: str
    exhaustive: bool
    """Tries every candidate and wants no trial ended early."""

    def propose(self, view: View) -> Proposal | None:
        """A candidate of `view.candidates` that was not tried yet, or None when there is none."""

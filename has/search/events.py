"""What a search tells whoever watches it: a terminal's table, a test, nobody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from has.core.trial import Trial


class Callbacks:
    """Override what you want to hear. Called in the searching thread; exceptions end the search."""

    def stage(self, name: str, detail: str = "") -> None:
        """A stage has begun: reading, predicting, pruning, ensemble, trials, confirming, writing."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """How far the stage is."""

    def pruned(self, kept: int, total: int, by_rule: Mapping[str, int]) -> None:
        """Pruning is done: candidates kept of all, and how many each rule cut."""

    def trial_started(self, number: int, label: str, kind: str, rate: float | None, predicted: float) -> None:
        """A trial begins; `predicted` is its objective in the model's eyes."""

    def trial_finished(self, trial: Trial, predicted: float, best: Trial | None, replayed: bool) -> None:
        """A trial has ended (or was read from the journal); `best` is the best one so far."""

    def note(self, text: str) -> None:
        """A line a person should see: a default, a warning, an audit that failed."""

    def finished(self, outcome: Any) -> None:
        """The search is over; the outcome of `has.search`."""

"""When a running trial may be ended: what it cannot reach any more, or a queue that only grows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from has.core.trial import Progress

CHECKPOINTS = 10
"""The backlog is looked at each time another tenth of the requests has been sent."""
GROWING = 4
"""That many looks in a row, each seeing more waiting than the one before, are a growing queue …"""
HOPELESS = 0.5
"""… if also this share of what was answered missed the SLO: a burst that is caught up with is none."""


@dataclass
class Watch:
    """Asked now and then by an executor; a string ends the trial and is the reason.

    `incumbent_rps` is the goodput to beat on this very list of requests (None: nothing yet);
    `span_s` the time of the last arrival after the first; `warmup_s` what figures cut off.
    The bound is exact: no continuation gives more than (met + left) / (max(T, span) - warmup).
    """

    incumbent_rps: float | None
    span_s: float
    warmup_s: float = 0.0
    _backlogs: list[int] = field(default_factory=list)

    def __call__(self, progress: Progress) -> str | None:
        return self._beaten(progress) or self._growing(progress)

    def _beaten(self, progress: Progress) -> str | None:
        if self.incumbent_rps is None:
            return None
        at_most = progress.met + progress.total - progress.finished
        seconds = max(progress.elapsed_s, self.span_s) - self.warmup_s
        if seconds <= 0 or at_most / seconds >= self.incumbent_rps:
            return None
        return (
            f"cannot beat the best any more: at most {at_most / seconds:.3g} of its"
            f" {self.incumbent_rps:.3g} requests/s can still meet the SLO"
        )

    def _growing(self, progress: Progress) -> str | None:
        if progress.sent * CHECKPOINTS < progress.total * len(self._backlogs):
            self._backlogs.clear()  # the executor has begun the trial anew
        if progress.sent * CHECKPOINTS < progress.total * (len(self._backlogs) + 1):
            return None
        self._backlogs.append(progress.sent - progress.finished)
        recent = self._backlogs[-GROWING - 1 :]
        grows = len(recent) > GROWING and all(a < b for a, b in itertools.pairwise(recent))
        if not grows or progress.missed <= HOPELESS * progress.finished or progress.finished == 0:
            return None
        return f"a queue that only grows: {', '.join(map(str, recent))} requests waiting"

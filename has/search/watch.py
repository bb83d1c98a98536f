"""When a running trial may be ended: what it cannot reach any more, a queue that only grows, too many misses."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

from has.core.trial import Progress
from has.core.words import percent

CHECKPOINTS = 10
"""The backlog is looked at each time another tenth of the requests has been sent."""
GROWING = 4
"""That many looks in a row, each seeing more waiting than the one before, are a growing queue …"""
HOPELESS = 0.5
"""… if also this share of what was answered missed the SLO: a burst that is caught up with is none. Where the
incumbent misses as many, more is offered than anything carries, and a queue that grows tells nothing."""

CUSUM = 40.0
"""Evidence, as a log likelihood ratio, that misses come at the hopeless share and not at the incumbent's.

Misses come in bursts, one queue's requests together, so it takes far more than for independent ones.
"""
LEAST_MISSES = 0.05
"""Share of misses that an incumbent is taken to have at least: the best of trials has none by luck."""


@dataclass
class Watch:
    """Asked now and then by an executor; a string ends the trial and is the reason.

    `incumbent_rps` is the goodput to beat on this very list of requests (None: nothing yet, and nothing is ended:
    the first trial to run its whole list is what the later ones are held to);
    `span_s` the time of the last arrival after the first; `warmup_s` what figures cut off.
    The bound is exact: no continuation gives more than (met + left) / (max(T, span) - warmup).
    Long before it is reached, a cumulative sum (Page's CUSUM) of the evidence tells misses at half way
    between the incumbent's share and all from misses at the incumbent's.
    """

    incumbent_rps: float | None
    span_s: float
    warmup_s: float = 0.0
    _backlogs: list[int] = field(default_factory=list)
    _evidence: float = 0.0
    _counted: tuple[int, int] = (0, 0)

    def __call__(self, progress: Progress) -> str | None:
        return self._beaten(progress) or self._growing(progress) or self._hopeless(progress)

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
        likely = self._incumbent_misses(progress)
        if not grows or likely is None or likely >= HOPELESS:
            return None
        if progress.finished == 0 or progress.missed <= HOPELESS * progress.finished:
            return None
        return f"a queue that only grows: {', '.join(map(str, recent))} requests waiting"

    def _hopeless(self, progress: Progress) -> str | None:
        met, missed = (now - before for now, before in zip(_counts(progress), self._counted, strict=True))
        if met < 0 or missed < 0:  # the executor has begun the trial anew
            met, missed = _counts(progress)
            self._evidence = 0.0
        self._counted = _counts(progress)
        likely = self._incumbent_misses(progress)
        if likely is None:
            return None
        hopeless = (1 + likely) / 2
        gained = missed * math.log(hopeless / likely) + met * math.log((1 - hopeless) / (1 - likely))
        self._evidence = max(0.0, self._evidence + gained)
        if self._evidence < CUSUM:
            return None
        return (
            f"too many misses: {progress.missed} of {progress.finished}, where the best so far"
            f" misses about {percent(likely, 0)}"
        )

    def _incumbent_misses(self, progress: Progress) -> float | None:
        """Share of its requests that the incumbent missed, or a little more; None where none is, or it met nothing."""
        seconds = self.span_s - self.warmup_s
        if not self.incumbent_rps or seconds <= 0 or progress.total == 0:
            return None
        return max(LEAST_MISSES, 1 - self.incumbent_rps * seconds / progress.total)


def _counts(progress: Progress) -> tuple[int, int]:
    return progress.met, progress.missed

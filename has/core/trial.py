"""The port through which search tries deployments, and what comes back.

Search is handed an `Executor` and never learns whether it is a simulator, bundled workers or an
engine. An executor turns every fault of a deployment into an `Outcome` with a reason; it raises
only what would make every further trial fail too (a missing device, an exhausted disk).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from has.core.deployment import Deployment
from has.core.figures import check_warmup
from has.core.records import Records
from has.core.requests import Requests
from has.core.slo import Slo

Figures = Mapping[str, Any]
"""Shaped as `has simulate --json` prints it."""


class TrialState(StrEnum):
    """complete: ran its whole list. stopped: ended early, its figures are a bound. failed: a reason, no figures."""

    COMPLETE = "complete"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a running trial stands. `met` counts finished requests that met the SLO, `missed` those that did not."""

    total: int
    sent: int
    finished: int
    met: int
    missed: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """One deployment against one fixed list of requests.

    `requests` arrive at the rate under test (`rate`, requests per second in all). `warmup_s` cuts
    the figures; InputError where it would leave none. `watch` is asked now and then; a string it
    returns ends the trial early and is the reason.
    """

    deployment: Deployment
    requests: Requests
    rate: float | None
    slo: Slo
    warmup_s: float = 0.0
    seed: int = 0
    watch: Callable[[Progress], str | None] | None = None

    def __post_init__(self) -> None:
        check_warmup(self.requests, self.warmup_s)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of a plan gave. `figures` is None exactly when it failed."""

    state: TrialState
    figures: Figures | None = None
    reason: str | None = None
    records: Records | None = None
    telemetry: Mapping[str, Any] = field(default_factory=dict)
    """Stage times the executor itself measured (per stage: measured over predicted), gate values."""


class Executor(Protocol):
    """Runs plans. One at a time unless `parallel` says more."""

    parallel: int
    live: bool

    def run(self, plan: TrialPlan) -> Outcome:
        """Run `plan` to its end, its early end or its failure. Leaves nothing behind."""

    def close(self) -> None:
        """End all workers. May be called twice."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A finished trial, as a line of `trials.jsonl` holds it."""

    number: int
    state: TrialState
    deployment: Deployment
    objective: float | None
    figures: Figures | None
    reason: str | None
    seed: int
    started_at: str
    duration_s: float
    telemetry: Mapping[str, Any] = field(default_factory=dict)
    rate: float | None = None
    """Requests per second offered while it was measured."""
    kind: str = "search"
    """Why it was run: search, audit, confirm, or baseline:<name>."""

"""What a search looks like while it runs: a table that redraws itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from has.cli.console import Talk
from has.core.trial import Trial, TrialState
from has.core.words import plural
from has.report.document import Table, number
from has.report.terminal import draw_part, spark_line
from has.search.events import Callbacks

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = 12
"""Trials that the live table shows; earlier ones are in the journal."""
TELL_EVERY_S = 5.0
"""Without a terminal a stage says no more often than this how far it is."""


class SearchView(Callbacks):
    """Use as a context manager around the search."""

    def __init__(self, talk: Talk, budget: int) -> None:
        self._talk = talk
        self._budget = budget
        self._began = time.monotonic()
        self._stage, self._detail, self._done, self._total = "", "", 0, 0
        self._funnel = ""
        self._trials: list[tuple[Trial, float]] = []
        self._running: tuple[int, str, str, float | None, float] | None = None
        self._best: Trial | None = None
        self._live: Any = None
        self._told = self._began

    def __enter__(self) -> SearchView:
        if self._talk.live:
            from rich.live import Live

            self._live = Live(
                get_renderable=self._draw, console=self._talk.console, refresh_per_second=4, transient=False
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._running = None
            self._live.stop()
            self._live = None

    # -- what the search tells ---------------------------------------------------------------------

    def stage(self, name: str, detail: str = "") -> None:
        self._stage, self._detail, self._done, self._total, self._told = name, detail, 0, 0, time.monotonic()
        if name != "trials":
            self._line(f"{self._clock()} {name}{': ' + detail if detail else ''}")

    def progress(self, stage: str, done: int, total: int) -> None:
        self._stage, self._done, self._total = stage, done, total
        now = time.monotonic()
        if self._live is None and now - self._told > TELL_EVERY_S:
            self._told = now
            self._line(f"{self._clock()}   {stage} {done}{f'/{total}' if total else ''}")

    def pruned(self, kept: int, total: int, by_rule: Mapping[str, int]) -> None:
        cuts = ", ".join(f"{rule} {count}" for rule, count in by_rule.items() if count)
        self._funnel = f"pruning kept {kept} of {plural(total, 'candidate')}" + (
            f" (cut by {cuts})" if cuts else ""
        )
        self._line(f"{self._clock()} {self._funnel}")

    def trial_started(self, number: int, label: str, kind: str, rate: float | None, predicted: float) -> None:
        self._running = (number, label, kind, rate, predicted)

    def trial_finished(self, trial: Trial, predicted: float, best: Trial | None, replayed: bool) -> None:
        self._running = None
        self._trials.append((trial, predicted))
        self._best = best
        self._line(
            f"{self._clock()} {self._words(trial, predicted)}{' (from the journal)' if replayed else ''}"
        )

    def note(self, text: str) -> None:
        self._talk.say(f"{self._clock()} {text}")

    # -- drawing -----------------------------------------------------------------------------------

    def _line(self, text: str) -> None:
        if self._live is None:
            self._talk.say(text)

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes:2d}:{seconds:02d}"

    def _words(self, trial: Trial, predicted: float) -> str:
        name = f"{self._called(trial)} {trial.deployment.label}"
        if trial.rate is not None:
            name += f" at {number(trial.rate)}/s"
        if trial.state is TrialState.FAILED:
            return f"{name}: failed: {trial.reason}"
        figures = trial.figures or {}
        attainment = figures.get("attainment")
        words = f"{name}: {number(trial.objective)}"
        if not math.isnan(predicted):
            words += f" (predicted {number(predicted)})"
        if attainment is not None:
            words += f", attainment {attainment:.1%}"
        if trial.state is TrialState.STOPPED:
            words += f", ended early: {trial.reason}"
        return words + ("  <- best so far" if trial is self._best else "")

    def _called(self, trial: Trial) -> str:
        """What a line calls a run. Those outside the budget are counted apart: their number was had before."""
        what, _, rest = trial.kind.partition(":")
        if what == "confirm":
            return f"confirmation {trial.number + 1} [{rest.strip()}]"
        again = any(other.number == trial.number for other, _ in self._trials if other is not trial)
        return f"extra trial [{trial.kind}]" if again else f"trial {trial.number} [{trial.kind}]"

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        head = f"{self._clock()}  {self._stage}"
        if self._total:
            head += f" {self._done}/{self._total}"
        if self._detail:
            head += f"  {self._detail}"
        parts: list[RenderableType] = [Text(head, style="bold")]
        if self._funnel:
            parts.append(Text(self._funnel))
        if self._trials or self._running:
            parts.append(draw_part(self._table()))
        if self._best is not None:
            parts.append(Text(f"best so far: {self._best.deployment.label}  {number(self._best.objective)}"))
        reached = [float(trial.objective) for trial, _ in self._trials if trial.objective is not None]
        if len(reached) > 1:
            parts.append(Text(f"trial by trial: {spark_line(reached)} up to {number(max(reached))}"))
        left = self._time_left()
        if left:
            parts.append(Text(left))
        return Group(*parts)

    def _table(self) -> Table:
        rows: list[tuple[Any, ...]] = []
        for trial, predicted in self._trials[-SHOWN:]:
            figures = trial.figures or {}
            attainment = figures.get("attainment")
            rows.append(
                (
                    f"{'*' if trial is self._best else ' '}{_number(trial.number, trial.kind)}",
                    trial.kind,
                    trial.deployment.label,
                    trial.rate,
                    predicted,
                    trial.objective,
                    None if attainment is None else f"{attainment:.1%}",
                    (figures.get("ttft_ms") or {}).get("p99"),
                    (figures.get("tpot_ms") or {}).get("p99"),
                    trial.state.value if trial.reason is None else f"{trial.state.value}: {trial.reason}",
                )
            )
        if self._running is not None:
            n, label, kind, rate, predicted = self._running
            rows.append(
                (f" {_number(n, kind)}", kind, label, rate, predicted, None, None, None, None, "running")
            )
        columns = (
            "#",
            "for",
            "configuration",
            "rate/s",
            "predicted",
            "measured",
            "attained",
            "TTFT p99",
            "TPOT p99",
            "",
        )
        return Table(columns, rows)

    def _time_left(self) -> str:
        measured = [trial for trial, _ in self._trials if trial.duration_s > 0]
        if not measured or len(self._trials) >= self._budget:
            return ""
        each = sum(trial.duration_s for trial in measured) / len(measured)
        return f"at most {each * (self._budget - len(self._trials)) / 60:.0f} min of trials left"


def _number(number: int, kind: str) -> str:
    """Confirmations are counted apart, in a journal of their own, and so are some baselines."""
    return (
        f"c{number + 1}" if kind.startswith("confirm") else "" if kind.startswith("baseline") else str(number)
    )

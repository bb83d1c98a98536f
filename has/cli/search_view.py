"""What a search looks like while it runs: a table that redraws itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from has.cli.console import Talk
from has.core.trial import Trial, TrialState
from has.core.words import percent, plural, time_left
from has.report.document import Table, number
from has.report.terminal import draw_part, spark_line
from has.search.events import Callbacks

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = 12
"""Trials that the live table shows; earlier ones are in the journal."""
AROUND = 8
"""Lines of the terminal that stand around the rows of the table."""
WIDE = 140
"""Columns from which on the table has room for why a trial ended as it did."""
TELL_EVERY_S = 5.0
"""Without a terminal a stage says no more often than this how far it is."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the live table, shown on terminals of at least so many characters."""

    name: str
    from_width: int = 0


COLUMNS = (
    Column("#"),
    Column("for", 90),
    Column("configuration"),
    Column("rate/s", 100),
    Column("predicted", 75),
    Column("tried"),
    Column("attained"),
    Column("TTFT p99", 115),
    Column("TPOT p99", 125),
    Column("state"),
)


class SearchView(Callbacks):
    """Use as a context manager around the search. `tried` says what trials do: measured, simulated."""

    def __init__(self, talk: Talk, budget: int, tried: str = "measured") -> None:
        self._talk = talk
        self._budget = budget
        self._tried = tried
        self._began = time.monotonic()
        self._stage, self._detail, self._done, self._total = "", "", 0, 0
        self._funnel = ""
        self._trials: list[tuple[Trial, float]] = []
        self._running: tuple[int, str, str, float | None, float] | None = None
        self._best: Trial | None = None
        self._live: Any = None
        self._told = self._stage_began = self._began

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
        self._stage, self._detail, self._done, self._total = name, detail, 0, 0
        self._told = self._stage_began = time.monotonic()
        if name == "trials":
            last = detail.rpartition(" ")[2]  # "up to 40": a sampler may try more than was planned, or fewer
            self._budget = int(last) if last.isdigit() else self._budget
        else:
            self._line(f"{self._clock()} {name}{': ' + detail if detail else ''}")

    def progress(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if self._stage == "trials":  # between two of them the model may be simulated anew
            self._detail = f"{stage} {done}"
        else:
            if stage != self._stage:
                self._detail, self._stage_began = "", now
            self._stage, self._done, self._total = stage, done, total
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
        if self._stage == "trials":
            self._detail = f"{len(self._trials) + 1} of up to {self._budget}"

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
        if trial.kind.startswith("confirm"):  # what its short list brought a second says more of its tail
            return f"{name}: SLO met by {percent(attainment)}"
        words = f"{name}: {number(trial.objective)}"
        if not math.isnan(predicted):
            words += f" (predicted {number(predicted)})"
        if attainment is not None:
            words += f", attainment {percent(attainment)}"
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
        """The last trials; the narrower the terminal, the fewer columns and rows."""
        width, height = self._talk.console.width, self._talk.console.height
        shown = [column for column in COLUMNS if width >= column.from_width]
        rows = [self._cells(trial, predicted) for trial, predicted in self._trials[-SHOWN:]]
        if self._running is not None:
            n, label, kind, rate, predicted = self._running
            cells = {"#": f" {_number(n, kind)}", "for": kind, "configuration": label, "rate/s": rate}
            rows.append({**cells, "predicted": predicted, "state": "running"})
        rows = rows[-max(3, height - AROUND) :]
        names = [self._tried if c.name == "tried" else "" if c.name == "state" else c.name for c in shown]
        return Table(names, [[cells.get(c.name) for c in shown] for cells in rows])

    def _cells(self, trial: Trial, predicted: float) -> dict[str, Any]:
        """One row, by the names of `COLUMNS`."""
        figures = trial.figures or {}
        attainment = figures.get("attainment")
        state = trial.state.value
        if trial.reason is not None and self._talk.console.width >= WIDE:
            state += f": {trial.reason}"
        return {
            "#": f"{'*' if trial is self._best else ' '}{_number(trial.number, trial.kind)}",
            "for": trial.kind,
            "configuration": trial.deployment.label,
            "rate/s": trial.rate,
            "predicted": predicted,
            "tried": trial.objective,
            "attained": percent(attainment),
            "TTFT p99": (figures.get("ttft_ms") or {}).get("p99"),
            "TPOT p99": (figures.get("tpot_ms") or {}).get("p99"),
            "state": state,
        }

    def _time_left(self) -> str:
        """Of the trials; of a stage whose length is known, by how far it came in what time."""
        measured = [trial for trial, _ in self._trials if trial.duration_s > 0]
        if self._stage == "trials" and measured and len(self._trials) < self._budget:
            each = sum(trial.duration_s for trial in measured) / len(measured)
            return f"at most {time_left(each * (self._budget - len(self._trials)))} of trials left"
        took = time.monotonic() - self._stage_began
        if self._total > self._done > 0 and took > 1:
            return f"about {time_left(took / self._done * (self._total - self._done))} of this left"
        return ""


def _number(number: int, kind: str) -> str:
    """Confirmations are counted apart, in a journal of their own, and so are some baselines."""
    return (
        f"c{number + 1}" if kind.startswith("confirm") else "" if kind.startswith("baseline") else str(number)
    )

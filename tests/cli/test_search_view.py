"""What a search shows while it runs: a table that redraws itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest

from has.cli.console import Talk
from has.cli.search_view import SearchView
from has.core.deployment import Deployment
from has.core.trial import Trial, TrialState
from has.files.validate import validate


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def trial(number: int, objective: float) -> Trial:
    fields: dict[str, Any] = {
        "version": 1,
        "model": "tiny-image",
        "topology": "monolithic",
        "gpus": 4,
        "alloc": {"all": 4},
        "slo": {"ttft_ms": 2000, "tpot_ms": 50, "attainment": 0.9},
    }
    return Trial(
        number=number,
        state=TrialState.COMPLETE,
        deployment=validate(Deployment, fields),
        objective=objective,
        figures={"attainment": 0.95, "ttft_ms": {"p99": 900.0}, "tpot_ms": {"p99": 30.0}},
        reason=None,
        seed=0,
        started_at="2026-01-01T00:00:00+00:00",
        duration_s=120.0,
        rate=6.0,
    )


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[[io.StringIO], str]:
    """What two trials of four leave on a stream."""

    def show(stream: io.StringIO) -> str:
        monkeypatch.setattr("sys.stderr", stream)
        with SearchView(Talk(io.StringIO(), json=False, quiet=False), budget=4) as view:
            view.stage("trials")
            for t in (trial(0, 3.0), trial(1, 6.0)):
                view.trial_started(t.number, t.deployment.label, t.kind, t.rate, 5.0)
                view.trial_finished(t, 5.0, t, replayed=False)
        return stream.getvalue()

    return show


def test_a_terminal_sees_a_table_a_spark_line_and_the_time_left(
    shown: Callable[[io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = shown(Terminal())
    assert "trial by trial: ▅█ up to 6" in text
    assert "at most 4 min of trials left" in text
    assert "best so far: 4M  6" in text
    assert "\x1b[1m" in text  # bold head


NARROW = ("60", "24")


def test_a_narrow_terminal_gets_fewer_columns_and_no_line_is_broken(
    shown: Callable[[io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", NARROW[0])
    monkeypatch.setenv("LINES", NARROW[1])
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(Terminal()))
    rows = [line.split() for line in text.splitlines() if line.lstrip().startswith(("*1", "1 4M"))]
    assert rows
    assert all(row[-1] == "complete" and "4M" in row for row in rows)
    assert max(map(len, text.splitlines())) <= 60
    assert "TPOT p99" not in text
    assert "attained" in text


def test_it_says_measured_only_of_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "140")
    with SearchView(Talk(io.StringIO(), json=False, quiet=False), 4, "simulated") as view:
        view.stage("trials", "up to 4")
        view.trial_finished(trial(0, 3.0), 5.0, trial(0, 3.0), replayed=False)
    assert "simulated" in stream.getvalue()
    assert "measured" not in stream.getvalue()


def test_a_stage_of_known_length_says_what_is_left_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    now = [100.0]
    monkeypatch.setattr("has.cli.search_view.time.monotonic", lambda: now[0])
    view = SearchView(Talk(io.StringIO(), json=False, quiet=False), 4)
    view.stage("predicting")
    now[0] += 10
    view.progress("predicting", 100, 400)
    assert view._time_left() == "about 30 s of this left"
    view.stage("trials", "up to 9")
    view.progress("ensemble", 7, 0)
    view.trial_finished(trial(0, 3.0), 5.0, None, replayed=False)
    assert view._time_left() == "at most 16 min of trials left"


def test_no_color_is_honoured(shown: Callable[[io.StringIO], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(Terminal())
    assert "trial by trial" in text
    assert not any(f"\x1b[{code}m" in text for code in (*range(30, 38), *range(90, 98)))


def test_a_file_gets_plain_lines_and_no_control_characters(shown: Callable[[io.StringIO], str]) -> None:
    text = shown(io.StringIO())
    assert "\x1b" not in text
    assert text.count("trial ") == 2
    assert "trial by trial" not in text

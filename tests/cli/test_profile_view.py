"""What a profile shows while it is measured, where stderr is no terminal."""

from __future__ import annotations

import io

import pytest

from has.cli.console import Talk
from has.cli.profile import _ProgressView
from has.profiler.points import Progress


def test_a_busy_machine_is_told_between_the_tenths(capsys: pytest.CaptureFixture[str]) -> None:
    with _ProgressView(Talk(io.StringIO(), json=False, quiet=False)) as view:
        view.show(Progress(0, 20, None, "measuring costs"))
        view.show(Progress(0, 20, None, "measuring costs, 3 of 10 s"))
        view.show(Progress(0, 20, None, "measuring costs", warning="other processes use 1.8 of 2 cores"))
        view.show(Progress(2, 20, 40.0, "encode"))
    assert capsys.readouterr().err.splitlines() == [
        "profiling 0/20    measuring costs",
        "other processes use 1.8 of 2 cores",
        "profiling 2/20  40 s left  encode",
    ]

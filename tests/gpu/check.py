"""Checks on a real GPU, each a line of a table and of a file. Not run on one yet; `--rehearse` runs them on the CPU without their meaning.

In order of what is learned a second: what the driver gives, whether halves are disjoint, whether answers are the CPU's, stages
against the estimate, and with all the time that is left a quick profile. What a step has found is in the file before the next
begins; a step that fails or takes too long costs its own lines only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu import steps
from tests.gpu.setting import Line, Setting, environment, setting_of

BUDGET_S = 560.0


@dataclass(frozen=True)
class Step:
    """most_s: seconds that it may take; a share of what is left where that is less."""

    name: str
    run: Callable[[Setting], Iterator[Line]]
    most_s: float


STEPS = (
    Step("granted", steps.granted, 30),
    Step("scaling", steps.scaling, 60),
    Step("noise at rest", steps.noise, 10),
    Step("answers", steps.answers, 90),
    Step("stages", steps.stages, 150),
    Step("profile", steps.profile, 400),
    Step("noise under load", steps.noise, 10),
)


class TooLong(Exception):
    """A step's time is up."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TooLong in the main thread once they have passed: between two bytecodes, so not within a call of the driver."""

    def stop(*_: object) -> None:
        raise TooLong(f"took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Findings:
    """Printed, and kept one a line at once."""

    path: Path
    failed: int = 0
    begun: float = field(default_factory=time.monotonic)

    def note(self, **what: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"at_s": round(time.monotonic() - self.begun, 1), **what}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def add(self, step: str, line: Line) -> None:
        self.failed += not line.ok
        self.note(step=step, what=line.what, ok=line.ok, figure=line.figure, **line.data)
        print(f"{'ok  ' if line.ok else 'FAIL'}  {line.what:<36} {line.figure}", flush=True)


def run(setting: Setting, findings: Findings, chosen: list[Step], budget_s: float) -> None:
    for step in chosen:
        left_s = budget_s - (time.monotonic() - findings.begun)
        if left_s < 5:
            findings.add(step.name, Line(step.name, False, "not run: out of time"))
            continue
        setting.until = time.monotonic() + min(step.most_s, left_s)
        try:
            with within(min(step.most_s, left_s) + 5):  # a step that minds the time ends by itself before
                for line in step.run(setting):
                    findings.add(step.name, line)
        except Exception as error:  # whatever it is, the next step may still tell something
            findings.note(step=step.name, trace=traceback.format_exc())
            findings.add(
                step.name, Line(step.name, False, f"{type(error).__name__}: {error}".splitlines()[0])
            )
        findings.note(step=step.name, ended=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests/gpu/check.sh", description=__doc__)
    parser.add_argument("model", nargs="?", default="qwen2.5-vl-7b")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, to try the script itself")
    parser.add_argument(
        "--out", type=Path, default=Path("results/gpu-check"), help="folder for what is found"
    )
    parser.add_argument("--seconds", type=float, default=BUDGET_S, help="in all")
    parser.add_argument("--only", action="append", choices=[step.name for step in STEPS], help="this step")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    findings = Findings(given.out / "check.jsonl")
    findings.note(environment=environment())
    try:
        setting = setting_of(given.model, given.out, rehearse=given.rehearse)
    except Exception as error:
        findings.note(trace=traceback.format_exc())
        mend = f"\n  {error.mend}" if getattr(error, "mend", "") else ""
        print(f"no check: {error}{mend}", file=sys.stderr)
        return 3
    findings.note(device=setting.words)
    print(setting.words, flush=True)
    chosen = [step for step in STEPS if not given.only or step.name in given.only]
    run(setting, findings, chosen, given.seconds)
    print(
        f"{findings.failed} failed, {time.monotonic() - findings.begun:.0f} s; all of it in {findings.path}"
    )
    setting.gpu.close()
    return 1 if findings.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

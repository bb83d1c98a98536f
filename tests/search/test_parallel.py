"""Two trials side by side: two suggestions at once, learned from in order, and as good on resume."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from has.core.profile import Profile
from has.core.space import SearchSpace
from has.core.trial import Outcome, TrialPlan
from has.core.workload import Workload
from has.errors import InputError
from has.search.run import resume_inputs, search
from has.trial.simulated import SimulatedExecutor
from tests.search.test_killed import essence

SPACE = SearchSpace(version=1, encode_batch=[1, 4], prefill_offload={"step": 0.5})


class Watched(SimulatedExecutor):
    """Sees how many runs are under way at once. Until two were, who comes alone waits `patience_s` for company."""

    def __init__(self, profile: Profile, patience_s: float = 0.0) -> None:
        super().__init__(profile, noise=0.03, parallel=2)
        self._patience_s = patience_s
        self.most = 0
        self._now = 0
        self._changed = threading.Condition()

    def run(self, plan: TrialPlan) -> Outcome:
        with self._changed:
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most > 1, timeout=self._patience_s)
        try:
            return super().run(plan)
        finally:
            with self._changed:
                self._now -= 1


@pytest.mark.parametrize(("sampler", "least"), [("auto", 2), ("random", 4)])
def test_two_simulated_trials_run_at_once_differ_and_resume(
    profile: Profile, workload: Workload, tmp_path: Path, sampler: str, least: int
) -> None:
    folder = tmp_path / "run"
    executor = Watched(profile, patience_s=1.0)
    asked: dict[str, Any] = {"space": SPACE, "rate": 7.0, "requests": 150, "trials": 8, "sampler": sampler}
    first = search(4, profile, workload, **asked, executor=executor, run_dir=folder)
    assert executor.most == 2
    proposed = [t.deployment.digest() for t in first.trials if t.kind == "search"]
    assert len(set(proposed)) == len(proposed) >= least
    journal = folder / "trials.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    whole = essence(first)
    for kept in (len(lines) - 1, len(lines) - 2, 3):
        journal.write_text("".join(lines[:kept]))
        for name in ("confirmations.jsonl", "best.yaml"):
            (folder / name).unlink()
        again = search(**resume_inputs(folder), executor=Watched(profile))
        assert essence(again) == whole


@pytest.mark.parametrize("parallel", [0, -1, 2.0, True])
def test_a_number_of_trials_is_one(profile: Profile, parallel: object) -> None:
    with pytest.raises(InputError) as refused:
        SimulatedExecutor(profile, parallel=parallel)  # type: ignore[arg-type]
    assert refused.value.field == "parallel"

"""A run that is gone on with: what it holds is found again, and it is asked what it was asked last."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from has.core.profile import Profile
from has.core.trial import Outcome, TrialPlan, TrialState
from has.core.workload import Workload
from has.errors import InputError
from has.search.events import Callbacks
from has.search.run import resume_inputs, search
from tests.search.small import make_workload
from tests.search.test_run import Killed, Wrapped, essence, run


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def resumed(folder: Path, *, runs: int) -> Any:
    """The run in `folder`, gone on with, for which so many deployments had to be run."""
    inputs = resume_inputs(folder)
    executor = Wrapped(inputs["profile"], lambda plan: None)
    outcome = search(**inputs, executor=executor)
    assert executor.runs == runs
    return outcome


def test_confirmations_are_known_by_what_they_ran_not_by_their_place(
    profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    """Fewer trials had ranked the finalists otherwise, and confirmed them at another rate."""
    folder = tmp_path / "run"
    whole = run(profile, workload, run_dir=folder)
    journal = folder / "confirmations.jsonl"
    lines = lines_of(journal)
    first = [line for line in lines if line["deployment"] == lines[0]["deployment"]]
    others = [line for line in lines if line not in first]
    assert others
    figures = {**first[0]["figures"], "goodput_rps": 0.1}
    lower = [{**line, "rate": line["rate"] * 20 / 21, "figures": figures} for line in first]
    write_lines(journal, [*lower, *reversed(others)])
    assert essence(resumed(folder, runs=len(first))) == essence(whole)
    grown = lines_of(journal)
    assert [line["number"] for line in grown[len(lines) :]] == list(
        range(len(lines), len(lines) + len(first))
    )
    assert essence(resumed(folder, runs=0)) == essence(whole)
    assert lines_of(journal) == grown


def test_a_confirmation_that_failed_is_not_run_again(
    profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    folder, rates = tmp_path / "run", []

    def busy(plan: TrialPlan) -> Outcome | None:
        if plan.rate is None or abs(plan.rate / 8.0 - 1) <= 0.1:
            return None
        rates.append(plan.rate)
        return Outcome(TrialState.FAILED, reason="the host was too busy")

    outcome = run(profile, workload, executor=Wrapped(profile, busy), run_dir=folder)
    failed = [t for t in outcome.confirmations if t.state == TrialState.FAILED]
    assert [t.rate for t in failed] == rates
    assert essence(resumed(folder, runs=0)) == essence(outcome)


def test_baselines_are_known_by_what_they_ran_not_by_their_place(
    profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    """More trials try some of them, which then are no runs outside the budget any more."""
    folder = tmp_path / "run"
    whole = run(profile, workload, trials=1, run_dir=folder)
    journal = folder / "baselines.jsonl"
    kept = lines_of(journal)[::-1]
    assert len(kept) > 1
    write_lines(journal, kept)
    assert essence(resumed(folder, runs=0)) == essence(whole)
    assert lines_of(journal) == kept


def test_more_trials_are_asked_for_until_others_are(
    profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    """Cut off after a resume with more trials, the run goes on to as many, and then answers with them."""

    def kill(plan: TrialPlan) -> Outcome | None:
        if killed.runs > 2:
            raise Killed
        return None

    asked = {"rate": 8.0, "trials": 3, "sampler": "random", "prune": False}
    run(profile, workload, **asked, run_dir=tmp_path / "whole")
    whole = search(**resume_inputs(tmp_path / "whole") | {"trials": 9})
    assert len(whole.trials) == 9
    folder = tmp_path / "run"
    run(profile, workload, **asked, run_dir=folder)
    killed = Wrapped(profile, kill)
    with pytest.raises(Killed):
        search(**resume_inputs(folder) | {"trials": 9}, executor=killed)
    for _ in range(2):
        assert essence(search(**resume_inputs(folder))) == essence(whole)
    assert f"--trials {9} " in whole.best.evidence["reproduce"]


@pytest.mark.parametrize("fewer", [1, 4])
def test_fewer_trials_than_are_finished_leave_out_none(
    profile: Profile, workload: Workload, tmp_path: Path, fewer: int
) -> None:
    folder = tmp_path / "run"
    whole = run(profile, workload, rate=10.0, trials=7, sampler="random", run_dir=folder)
    tried = len(whole.trials)
    assert tried > fewer
    heard = Mock(Callbacks)
    executor = Wrapped(profile, lambda plan: None)
    again = search(**resume_inputs(folder) | {"trials": fewer}, executor=executor, callbacks=heard)
    assert essence(again) == essence(whole)
    assert executor.runs == 0
    assert f"--trials {tried} " in again.best.evidence["reproduce"]
    (said,) = [call.args[0] for call in heard.note.call_args_list if "finished trials" in call.args[0]]
    assert said.startswith(f"the run holds {tried} finished trials")


def test_trials_that_another_budget_went_on_to_are_learned_from(
    profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    """Where proposals end, what the journal still holds is taken in all the same."""
    folder = tmp_path / "run"
    run(profile, workload, rate=10.0, trials=14, sampler="random", run_dir=folder)
    kept = lines_of(folder / "trials.jsonl")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["question"]["sampler"] = "auto"  # which soon expects no gain any more
    (folder / "manifest.json").write_text(json.dumps(manifest))
    heard = Mock(Callbacks)
    search(**resume_inputs(folder), callbacks=heard)
    replayed = [call.kwargs["replayed"] for call in heard.trial_finished.call_args_list]
    assert replayed.count(True) == len(kept)


def test_a_trace_that_was_edited_is_no_longer_the_same_question(profile: Profile, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"{0.2 * n:.1f},image,500,40,20" for n in range(60)]
    trace.write_text("\n".join(["arrival_s,modality,media_tokens,prompt_tokens,output_tokens", *rows]) + "\n")
    replay = make_workload(arrivals={"process": "trace", "file": str(trace)}, requests=())
    folder = tmp_path / "run"
    first = run(profile, replay, rate=None, trials=2, requests=None, run_dir=folder)
    assert essence(search(**resume_inputs(folder))) == essence(first)
    trace.write_text(trace.read_text().replace("image,500", "image,900"))
    with pytest.raises(InputError, match="trace is not what it was") as refused:
        search(**resume_inputs(folder))
    assert str(trace) in str(refused.value)
    trace.unlink()
    with pytest.raises(InputError, match="no such trace"):
        search(**resume_inputs(folder))

"""Whole searches on three or four GPUs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from has.core.deployment import Deployment
from has.core.figures import met
from has.core.profile import Profile
from has.core.records import Records
from has.core.slo import Slo
from has.core.space import SearchSpace
from has.core.trial import Executor, Outcome, Progress, Trial, TrialPlan, TrialState
from has.core.workload import Workload
from has.errors import InfeasibleError, InputError, RunError
from has.files.deployment import load_deployment, save_deployment
from has.report.answer import answer_lines, baselines_title
from has.search.confirm import _gain
from has.search.question import load_baselines
from has.search.run import resume_inputs, search
from has.search.simulated import ModelExecutor
from has.search.space import candidate_of, enumerate_space
from tests.search.small import make_profile, make_workload

SPACE = SearchSpace(version=1, encode_batch=[1, 4], prefill_offload={"step": 0.5})


class Wrapped:
    """The simulator, with what a test does before a run."""

    parallel = 1

    def __init__(
        self, profile: Profile, before: Callable[[TrialPlan], Outcome | None], *, live: bool = False
    ) -> None:
        self.live = live
        self.runs = 0
        self._inner = ModelExecutor(profile)
        self._before = before

    def run(self, plan: TrialPlan) -> Outcome:
        self.runs += 1
        return self._before(plan) or self._inner.run(plan)

    def close(self) -> None: ...


def run(profile: Profile, workload: Workload, gpus: int = 4, **changes: Any) -> Any:
    arguments: dict[str, Any] = {"space": SPACE, "rate": 8.0, "requests": 200, "trials": 8, "seed": 1}
    return search(gpus, profile, workload, **(arguments | changes))


def essence(outcome: Any) -> Any:
    """All of an outcome but its times and places."""
    said = outcome.as_json()
    said.pop("run")
    for key in ("run", "date", "reproduce", "digests", "executor"):
        said["best"]["evidence"].pop(key, None)
    trials = [
        (t.kind, t.state, t.deployment.digest(), t.objective, t.figures, t.rate) for t in outcome.trials
    ]
    return json.loads(json.dumps(said, default=str)), trials


def test_recommends_the_exhaustive_best_within_noise(profile: Profile, workload: Workload) -> None:
    """`grid` tries everything; `auto` with eight trials is within 1 % of it."""
    exhaustive = run(profile, workload, sampler="grid", trials=None, prune=False, rate=10.0)
    everything = enumerate_space(SPACE, 4)
    assert {candidate_of(t.deployment) for t in exhaustive.trials} == set(everything)
    assert all(t.state == TrialState.COMPLETE for t in exhaustive.trials)
    quick = run(profile, workload, rate=10.0)
    assert quick.objective >= 0.99 * max(t.objective for t in exhaustive.trials)
    assert candidate_of(quick.best) in set(everything)
    assert quick.candidates["kept"] < quick.candidates["all"] == len(everything)


def test_same_seed_same_outcome(profile: Profile, workload: Workload) -> None:
    assert essence(run(profile, workload)) == essence(run(profile, workload))


def test_run_folder_holds_everything(profile: Profile, workload: Workload, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    outcome = run(profile, workload, run_dir=folder)
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "manifest.json", "profile.parquet", "workload.yaml", "space.yaml", "trials.jsonl", "optuna.log",
        "trials.csv", "trials.parquet", "pruned.csv", "best.yaml",
    }  # fmt: skip
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    assert len(lines) == len(outcome.trials) <= 8
    assert {
        "number",
        "state",
        "deployment",
        "objective",
        "figures",
        "reason",
        "seed",
        "started_at",
        "duration_s",
    } <= set(lines[0])
    assert [line["number"] for line in lines] == list(range(len(lines)))
    best = load_deployment(folder / "best.yaml")
    assert best == outcome.best
    assert best.evidence is not None
    assert best.evidence["run"] == str(folder)
    assert set(best.evidence["baselines"]) == {"monolithic", "e_pd", "static_epd"}
    assert best.sm_table is not None
    assert best.max_wait_ms is not None
    assert best.rate == 8.0
    header, *rows = (folder / "pruned.csv").read_text().splitlines()
    assert header.split(",")[6:10] == ["rule", "bound", "value", "margin"]
    assert len(rows) == outcome.candidates["all"] - outcome.candidates["kept"]


def test_optuna_dashboard_can_open_the_run(profile: Profile, workload: Workload, tmp_path: Path) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    outcome = run(profile, workload, run_dir=tmp_path / "run")
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "run" / "optuna.log")))
    (study,) = optuna.get_all_study_summaries(storage)
    loaded = optuna.load_study(study_name=study.study_name, storage=storage)
    assert [t.value for t in loaded.trials] == [t.objective for t in outcome.trials]
    assert loaded.direction == optuna.study.StudyDirection.MAXIMIZE


def test_a_confirmation_that_failed_counts_for_nobody(profile: Profile, workload: Workload) -> None:
    """As one that a busy host refused: it is told, and is no run of no goodput."""
    undisturbed = run(profile, workload)
    leader = undisturbed.best.label
    assert undisturbed.runners_up

    def busy(plan: TrialPlan) -> Outcome | None:
        off = plan.deployment.label == leader and plan.rate is not None and abs(plan.rate / 8.0 - 1) > 0.1
        return Outcome(TrialState.FAILED, reason="the host was too busy") if off else None

    outcome = run(profile, workload, executor=Wrapped(profile, busy))
    assert outcome.best.label == leader
    assert [t.reason for t in outcome.confirmations if t.state == TrialState.FAILED] == [
        "the host was too busy"
    ] * 2
    assert {r.deployment.label for r in outcome.runners_up} == {
        r.deployment.label for r in undisturbed.runners_up
    }
    assert "2 of 3 runs under other arrivals failed: the host was too busy" in answer_lines(outcome.best)


def told(*goodputs: float | None) -> list[Trial]:
    return [Mock(Trial, figures=None if g is None else {"goodput_rps": g}) for g in goodputs]


@pytest.mark.parametrize(
    ("mine", "its", "gain"),
    [
        ((10.0, 5.0), (11.0, 7.0), 1.2),
        ((10.0, None), (11.0, 99.0), 1.1),
        ((None, 10.0), (11.0, None), None),
        ((0.0, 0.0), (5.0, 5.0), math.inf),
        ((0.0,), (0.0,), None),
    ],
)
def test_finalists_are_compared_where_both_ran(mine, its, gain: float | None) -> None:
    assert _gain(told(*mine), told(*its)) == (None if gain is None else pytest.approx(gain))


class Killed(BaseException):
    """Stands for a signal: nothing catches it."""


@pytest.mark.parametrize("at", [0, 2, 5, 7, 10])
def test_a_killed_search_resumes_to_the_same_end(
    profile: Profile, workload: Workload, tmp_path: Path, at: int
) -> None:
    whole = run(profile, workload)

    def kill(plan: TrialPlan) -> Outcome | None:
        if executor.runs > at:
            raise Killed
        return None

    executor = Wrapped(profile, kill)
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        run(profile, workload, run_dir=folder, executor=executor)
    journal = folder / "trials.jsonl"
    done = len(journal.read_text().splitlines()) if journal.exists() else 0
    with journal.open("ab") as file:
        file.write(b'{"number": 99, "kind": "sear')  # what a crash in the middle of a write leaves
    again = Wrapped(profile, lambda plan: None)
    resumed = search(**resume_inputs(folder), executor=again)
    assert essence(resumed) == essence(whole)
    assert executor.runs - 1 + again.runs == count_runs(profile, workload)
    numbers = [json.loads(line)["number"] for line in journal.read_text().splitlines()]
    assert numbers == list(range(len(whole.trials)))
    assert done <= at


def count_runs(profile: Profile, workload: Workload) -> int:
    executor = Wrapped(profile, lambda plan: None)
    run(profile, workload, executor=executor)
    return executor.runs


def test_resuming_with_another_question_is_refused(
    profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run(profile, workload, run_dir=folder)
    with pytest.raises(InputError, match="something else"):
        run(profile, workload, resume=folder, rate=9.0)
    with pytest.raises(InputError, match="something else"):
        run(make_profile(encode_s=0.09), workload, resume=folder)
    with pytest.raises(InputError, match="already there"):
        run(profile, workload, run_dir=folder)
    with pytest.raises(InputError, match="no run is there"):
        run(profile, workload, resume=tmp_path / "nothing")


def test_a_crash_is_a_result_and_never_recommended(
    profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    best = run(profile, workload).best

    def crash(plan: TrialPlan) -> Outcome | None:
        if plan.deployment.label == best.label:
            return Outcome(TrialState.FAILED, reason="CUDA out of memory on encode worker 0")
        return None

    outcome = run(profile, workload, run_dir=tmp_path / "run", executor=Wrapped(profile, crash))
    failed = [t for t in outcome.trials if t.state == TrialState.FAILED]
    assert [t.deployment.label for t in failed] == [best.label]
    assert failed[0].reason == "CUDA out of memory on encode worker 0"
    assert failed[0].objective is None
    assert outcome.best.label != best.label


def test_a_baseline_whose_trial_fails_is_still_scored_and_said_to_be_predicted(
    profile: Profile, workload: Workload
) -> None:
    sound = run(profile, workload).baselines

    def busy(plan: TrialPlan) -> Outcome | None:
        if plan.deployment.topology == "monolithic":
            return Outcome(TrialState.FAILED, reason="host too busy")
        return None

    scored = run(profile, workload, executor=Wrapped(profile, busy)).baselines
    assert (scored["monolithic"].objective_source, scored["e_pd"].objective_source) == (
        "predicted",
        "measured",
    )
    assert scored["monolithic"].reason == "host too busy"
    assert scored["monolithic"].objective == pytest.approx(sound["monolithic"].objective, rel=0.1)


def test_every_trial_failing_is_a_failure(profile: Profile, workload: Workload) -> None:
    broken = Wrapped(profile, lambda plan: Outcome(TrialState.FAILED, reason="no such device"))
    with pytest.raises(RunError, match="no such device"):
        run(profile, workload, executor=broken)


@pytest.mark.parametrize("rate", [None, 4.0])
def test_an_slo_below_every_floor_is_answered_with_no(
    profile: Profile, workload: Workload, rate: float | None
) -> None:
    impossible = workload.model_copy(update={"slo": Slo(ttft_ms=2000.0, tpot_ms=0.5)})
    with pytest.raises(InfeasibleError, match="TPOT") as answer:
        run(profile, impossible, rate=rate)
    assert answer.value.least_bad.figures["attainment"] == 0.0


def test_nothing_meets_the_slo(profile: Profile, workload: Workload, tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError) as answer:
        run(profile, workload, rate=60.0, run_dir=tmp_path / "run")
    assert answer.value.exit_status == 1
    least_bad = answer.value.least_bad
    assert not least_bad.feasible
    written = load_deployment(tmp_path / "run" / "best.yaml")
    assert written == least_bad.best
    assert written.evidence is not None
    assert written.evidence["meets_slo"] is False


def test_an_slo_below_one_prefill_says_which_bound_and_by_how_much(
    profile: Profile, workload: Workload
) -> None:
    with pytest.raises(InfeasibleError, match=r"TTFT without any queue .* ms of 50 ms"):
        run(profile, workload, ttft_ms=50.0)


def test_memory_that_admits_nothing_names_itself_and_the_figure(workload: Workload, tmp_path: Path) -> None:
    large = make_profile(
        memory_bytes=48 * 10**9,
        weights_bytes={"encoder": 10**9, "lm": 69 * 10**9},
        kv_bytes_per_token=10**6,
    )
    with pytest.raises(InfeasibleError, match="memory") as answer:
        run(large, workload, run_dir=tmp_path / "run")
    assert "69.0 GB" in answer.value.message
    assert answer.value.least_bad is None
    assert not (tmp_path / "run" / "best.yaml").exists()


def test_the_users_deployment_is_scored_beside_the_baselines(
    profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    mine = run(profile, workload).trials[0].deployment.model_copy(update={"max_num_seqs": 3})
    save_deployment(mine, tmp_path / "mine.yaml")
    outcome = run(profile, workload, baselines=[tmp_path / "mine.yaml"])
    assert set(outcome.baselines) == {"monolithic", "e_pd", "static_epd", str(tmp_path / "mine.yaml")}
    for baseline in outcome.baselines.values():
        assert baseline.deployment is not None
        assert baseline.deployment.gpus == 4
        assert baseline.objective is not None
        assert baseline.objective == pytest.approx(baseline.figures["goodput_rps"])
    static = outcome.baselines["static_epd"].deployment
    assert static is not None
    assert (static.encode_batch, static.prefill_offload) == (1, 1.0)
    assert outcome.objective >= max(b.objective for b in outcome.baselines.values()) * 0.99


@pytest.mark.parametrize(("written", "tried"), [(None, 500.0), (80.0, 80.0)])
def test_the_users_deployment_is_tried_as_it_would_be_served(written: float | None, tried: float) -> None:
    """Without its server's age cap a file whose batches wait would be beaten too easily."""
    mine = Deployment(
        version=1,
        model="synthetic",
        topology="disaggregated",
        gpus=4,
        alloc={"encode": 1, "prefill": 1, "decode": 2},
        encode_batch=4,
        prefill_offload=1.0,
        max_wait_ms=written,
        slo={"ttft_ms": 2000.0, "tpot_ms": 40.0, "attainment": 0.9},
    )
    assert load_baselines([mine])[mine.label].max_wait_ms == tried


def test_not_to_disaggregate_can_be_the_answer(workload: Workload) -> None:
    """Encode and prefill are nothing beside decode, and transfers cost: every GPU should decode."""
    profile = make_profile(encode_s=0.001, prefill_s=0.001, decode_s=0.030)
    outcome = run(profile, workload, gpus=3, rate=None, objective="max-rate", trials=10)
    assert outcome.best.topology == "monolithic"


def test_max_rate_is_the_rate_at_which_the_target_is_just_met(profile: Profile, workload: Workload) -> None:
    outcome = run(profile, workload, rate=None)
    assert outcome.unit == "req/s"
    assert outcome.best.rate == pytest.approx(outcome.objective, rel=1e-5)
    assert 0.9 <= outcome.figures["attainment"] < 0.97


def test_cost_finds_the_fewest_gpus(profile: Profile, workload: Workload) -> None:
    outcome = run(profile, workload, gpus=5, rate=6.0, objective="cost", trials=12)
    fewer = outcome.best.gpus - 1
    assert outcome.objective == outcome.best.gpus == outcome.best.evidence["objective"]["gpus"]
    assert outcome.best.gpus < 5
    with pytest.raises(InfeasibleError):
        run(profile, workload, gpus=fewer, rate=6.0, sampler="grid", trials=None, prune=False)
    priced = run(profile, workload, gpus=5, rate=6.0, objective="cost", price=2.5, trials=12)
    assert priced.objective == 2.5 * outcome.best.gpus
    assert priced.unit == "$/h"


def test_several_rates_count_by_the_worst(profile: Profile, workload: Workload) -> None:
    outcome = run(profile, workload, rate=[4.0, 10.0])
    assert outcome.unit.startswith("share")
    assert 0 < outcome.objective <= 1


class SlowerThanProfiled(Wrapped):
    """A live executor whose encoders are 1.4 times as slow as the profile says."""

    def __init__(self) -> None:
        super().__init__(make_profile(factors={"encode": 1.4}), lambda plan: None, live=True)


@pytest.mark.parametrize("objective", ["goodput", "max-rate"])
def test_live_trials_correct_the_profile(profile: Profile, workload: Workload, objective: str) -> None:
    rate = 10.0 if objective == "goodput" else None
    outcome = run(
        profile, workload, rate=rate, objective=objective, executor=SlowerThanProfiled(), requests=150
    )
    assert len(outcome.trials) <= 8
    assert len({t.rate for t in outcome.trials}) == 1  # one offered rate, stated
    factors = outcome.best.evidence["stage_factors"]
    assert factors["encode"]["factor"] == pytest.approx(1.4, rel=0.05)
    assert factors["decode"]["factor"] == pytest.approx(1.0, rel=0.05)
    if objective == "max-rate":
        truth = run(make_profile(factors={"encode": 1.4}), workload, rate=None, trials=10)
        assert outcome.objective == pytest.approx(truth.objective, rel=0.15)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rate": -1.0}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"gpus": 0}, "gpus"),
        ({"trials": 0}, "trials"),
        ({"objective": "speed"}, "objective"),
        ({"sampler": "annealing"}, "sampler"),
        ({"price": 0.0}, "price"),
        ({"attainment": 1.5}, "attainment"),
    ],
)
def test_arguments_out_of_range_are_named(
    profile: Profile, workload: Workload, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as error:
        run(profile, workload, **changes)
    assert error.value.field == field


def test_rate_and_slo_must_come_from_somewhere(profile: Profile) -> None:
    with pytest.raises(InputError, match="needs a rate"):
        run(profile, make_workload(rate=None), rate=None, objective="goodput")
    with pytest.raises(InputError, match="ttft_ms"):
        run(profile, make_workload(slo=None))


def test_executor_satisfies_the_port(profile: Profile) -> None:
    executor: Executor = ModelExecutor(profile)
    assert not executor.live


def test_two_trials_side_by_side_differ_and_are_as_good_on_resume(
    profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    class Pair(Wrapped):
        parallel = 2

    short = {"trials": 5, "requests": 100}
    first = run(profile, workload, executor=Pair(profile, lambda _: None), run_dir=tmp_path / "r", **short)
    tried = [t.deployment.digest() for t in first.trials if t.kind == "search"]
    assert len(set(tried)) == len(tried) >= 2
    lines = (tmp_path / "r" / "trials.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "r" / "trials.jsonl").write_text("".join(lines[:-1]))  # killed between the two of a pair
    again = Pair(profile, lambda _: None)
    second = run(profile, workload, executor=again, resume=tmp_path / "r", **short)
    assert essence(second) == essence(first)


def test_crashes_that_no_formula_foresaw_are_learned_from(profile: Profile, workload: Workload) -> None:
    """Everything with a single decode GPU runs out of memory: a few trials find that out, and no more do."""

    def crash(plan: TrialPlan) -> Outcome | None:
        single = plan.deployment.topology == "disaggregated" and plan.deployment.alloc["decode"] == 1
        return Outcome(TrialState.FAILED, reason="out of memory") if single else None

    outcome = run(
        profile,
        workload,
        gpus=5,
        rate=None,
        objective="max-rate",
        trials=16,
        requests=100,
        executor=Wrapped(profile, crash),
    )
    failed = [t for t in outcome.trials if t.state == TrialState.FAILED and t.kind == "search"]
    assert len(failed) <= 6  # of eleven such candidates, all of which were predicted to be better
    assert outcome.best.alloc["decode"] > 1


class Asking(Wrapped):
    """Live: asks each trial's watch at every arrival and answer, as a runtime does now and then."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile, lambda plan: None, live=True)

    def run(self, plan: TrialPlan) -> Outcome:
        outcome = super().run(plan)
        reason = None if plan.watch is None or outcome.records is None else _asked(plan, outcome.records)
        return outcome if reason is None else replace(outcome, state=TrialState.STOPPED, reason=reason)


def _asked(plan: TrialPlan, records: Records) -> str | None:
    arrival, finish, good = records.requests.arrival_ns, records.finish_ns, met(records, plan.slo)
    for now in np.sort(np.concatenate([arrival, finish])):
        sent, done = int(np.sum(arrival <= now)), finish <= now
        in_time = int(np.sum(good & done))
        missed = int(np.sum(done)) - in_time
        assert plan.watch is not None
        reason = plan.watch(
            Progress(len(arrival), sent, in_time + missed, in_time, missed, int(now - arrival[0]) / 1e9)
        )
        if reason is not None:
            return reason
    return None


def test_more_than_anything_carries_is_answered_live_with_the_least_bad(
    profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    """Every queue only grows there, which is no failure of any trial."""
    with pytest.raises(InfeasibleError) as answer:
        run(
            profile,
            workload,
            rate=30.0,
            ttft_ms=500.0,
            requests=300,
            executor=Asking(profile),
            run_dir=tmp_path / "run",
        )
    assert answer.value.exit_status == 1
    assert answer.value.least_bad.figures["requests"] > 0
    assert load_deployment(tmp_path / "run" / "best.yaml") == answer.value.least_bad.best


def test_a_queue_that_only_grows_still_ends_a_live_trial_where_others_keep_up(
    profile: Profile, workload: Workload
) -> None:
    asked = {"rate": 10.0, "ttft_ms": 500.0, "attainment": 0.7, "requests": 300}
    outcome = run(profile, workload, **asked, executor=Asking(profile))
    assert TrialState.STOPPED in {t.state for t in outcome.trials}
    assert outcome.feasible


def test_a_space_beyond_the_profiles_reach_is_refused_by_name(profile: Profile, workload: Workload) -> None:
    """Nobody may be told that every trial failed where none was run."""
    space = SearchSpace(version=1, encode_batch=[80, 128], topologies=["disaggregated", "e_pd"])
    for prune in (True, False):
        with pytest.raises(InputError, match="reach") as refused:
            run(profile, workload, space=space, prune=prune)
        assert (refused.value.field, refused.value.value) == ("encode_batch", [80, 128])
        assert "64" in refused.value.allowed
        assert refused.value.mend


class OutOfReach(Wrapped):
    """A live executor whose decode steps are too long for the TPOT bound, which the profile does not know."""

    def __init__(self) -> None:
        super().__init__(make_profile(factors={"decode": 1.6}), lambda plan: None, live=True)


@pytest.mark.parametrize("live", [True, False])
def test_trials_that_show_a_bound_out_of_reach_are_answered_with_the_least_bad(
    profile: Profile, workload: Workload, live: bool
) -> None:
    executor = OutOfReach() if live else ModelExecutor(make_profile(factors={"decode": 1.6}))
    with pytest.raises(InfeasibleError) as error:
        run(profile, workload, rate=None, objective="max-rate", tpot_ms=13.0, executor=executor, trials=6)
    assert error.value.least_bad is not None


def test_each_workload_must_be_within_reach_of_the_profile(profile: Profile, workload: Workload) -> None:
    far = {"modality": "image", "media_tokens": 100_000, "prompt_tokens": 10, "output_tokens": 10}
    beyond = make_workload(requests=[far], name="far")
    for given in (beyond, [workload, beyond]):
        with pytest.raises(InputError, match="tokens"):
            run(profile, given)


def test_a_trace_with_pixels_is_drawn_for_the_model_that_is_named(tmp_path: Path) -> None:
    rows = [f"{0.1 * i},image,640x480,,20,10" for i in range(60)]
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "arrival_s,modality,image_px,media_tokens,prompt_tokens,output_tokens\n" + "\n".join(rows)
    )
    sized = make_workload(arrivals={"process": "trace", "file": str(trace)}, requests=[])
    outcome = run(make_profile(), sized, rate=None, objective="goodput", model="qwen2.5-vl-7b", requests=None)
    assert outcome.unit == "req/s"


def test_a_baseline_on_other_gpus_is_told_as_one(
    profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    own = Deployment.model_validate(
        {
            "version": 1,
            "model": "synthetic",
            "topology": "monolithic",
            "gpus": 2,
            "alloc": {"all": 2},
            "slo": {"ttft_ms": 2000.0, "tpot_ms": 40.0},
        }
    )
    outcome = run(profile, workload, baselines={"small": own})
    assert outcome.best.evidence["baselines"]["small"]["gpus"] == 2
    only = {**outcome.best.evidence, "baselines": {"small": outcome.best.evidence["baselines"]["small"]}}
    alone = outcome.best.model_copy(update={"evidence": only})
    assert "strongest baseline, small, on 2 GPUs, not 4" in " ".join(answer_lines(alone))
    assert baselines_title(alone) == "Against the baselines"
    assert baselines_title(outcome.best.model_copy(update={"evidence": {**only, "baselines": {}}})).endswith(
        "on the same GPUs"
    )


@pytest.mark.parametrize(("dtype", "proposed"), [("fp8", "fp8"), ("bfloat16", None)])
def test_a_profile_of_quantized_weights_proposes_quantized_ones(dtype, proposed, workload: Workload) -> None:
    """An engine quantizes only if it is told to; what a model is stored in, it takes by itself."""
    usual = make_profile()
    of_dtype = usual.model_copy(update={"metadata": usual.metadata.model_copy(update={"dtype": dtype})})
    assert run(of_dtype, workload, trials=2).best.dtype == proposed

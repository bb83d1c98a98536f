"""`has search` on simulated trials: what it says, writes, resumes, and how it ends."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.cli.conftest import Said

SEARCH = (
    *("search", "--gpus", "4", "--profile", "p.csv", "--workload", "w.yaml", "--space", "small.yaml"),
    *("--trials", "3", "--requests", "200"),
)


@pytest.fixture
def small(inputs: Path) -> Path:
    """With a small space, and a TTFT that keeps short the traffic a largest rate is held to."""
    (inputs / "small.yaml").write_text(
        "version: 1\nencode_batch: [1, 2]\nprefill_offload: {min: 0.0, max: 1.0, step: 0.5}\n"
    )
    workload = (inputs / "w.yaml").read_text()
    (inputs / "w.yaml").write_text(workload.replace("ttft_ms: 2000", "ttft_ms: 400"))
    return inputs


class Finished(NamedTuple):
    folder: Path
    said: Said


@pytest.fixture(scope="module")
def kept() -> dict[str, Finished]:
    """Room for the one run that the tests of this file share."""
    return {}


@pytest.fixture
def finished(kept, has, small, tmp_path_factory) -> Said:  # type: ignore[no-untyped-def]
    """A run that has ended, `run` in this folder with its best.yaml; what its command said."""
    if "it" not in kept:
        said = has(*SEARCH, "--run", "run", "--json")
        assert said.status == 0, said.err
        folder = tmp_path_factory.mktemp("finished")
        shutil.copytree("run", folder / "run")
        shutil.copy("best.yaml", folder / "best.yaml")
        kept["it"] = Finished(folder, said)
    else:
        shutil.copytree(kept["it"].folder / "run", "run")
        shutil.copy(kept["it"].folder / "best.yaml", "best.yaml")
    return kept["it"].said


def test_the_answer_and_what_is_left_behind(finished) -> None:  # type: ignore[no-untyped-def]
    answer = finished.json
    assert set(answer) >= {
        *(
            "best",
            "figures",
            "objective",
            "trials",
            "simulations",
            "candidates",
            "baselines",
            "confidence",
            "run",
        ),
    }
    assert set(answer["baselines"]) == {"monolithic", "e_pd", "static_epd"}
    for baseline in answer["baselines"].values():
        assert baseline["deployment"]["gpus"] == 4
    assert answer["best"]["gpus"] == sum(answer["best"]["alloc"].values()) == 4
    best = yaml.safe_load(Path("best.yaml").read_text())
    assert best["evidence"]["run"] == "run"
    assert best["evidence"]["meets_slo"] is True
    left = {path.name for path in Path("run").iterdir()}
    assert left >= {
        *("manifest.json", "profile.parquet", "workload.yaml", "space.yaml", "trials.jsonl", "trials.csv"),
        *("trials.parquet", "pruned.csv", "best.yaml", "report.html", "optuna.log"),
    }
    assert Path("run/best.yaml").read_text() == Path("best.yaml").read_text()
    lines = [json.loads(line) for line in Path("run/trials.jsonl").read_text().splitlines()]
    assert [line["number"] for line in lines] == list(range(answer["trials"]))


def test_the_words_name_defaults_gain_confidence_files_and_the_next_command(has, small) -> None:  # type: ignore[no-untyped-def]
    said = has(*SEARCH)
    for default in (
        *("--model tiny-image", "--on simulated", "--objective max-rate", "--sampler auto", "--seed 0"),
        *("--out best.yaml", "--run results/"),
    ):
        assert default in said.err
    for given in ("--trials", "--requests", "--space", "--workload", "--profile"):
        assert f"  {given} " not in said.err
    for words in (
        *(
            "on the same GPUs",
            "with probability",
            "written: best.yaml",
            "run: results/",
            "next: has deploy best.yaml",
        ),
        *("monolithic", "static E+P+D"),
    ):
        assert words in said.out


@pytest.mark.parametrize(("rate", "option"), [("3", " --rate 3"), ("6", "")])
def test_the_next_command_explains_at_the_rate_of_the_answer(rate, option, has, small) -> None:  # type: ignore[no-untyped-def]
    """The workload's own rate, 6, goes before the deployment's."""
    said = has(*SEARCH, "--rate", rate)
    assert said.status == 0, said.err
    explain = said.out.split("why this one: has ")[1].splitlines()[0]
    assert explain == f"explain best.yaml{option}"
    assert has(*explain.split(), "--json").json["rate"] == float(rate)


def test_a_baseline_that_there_cannot_be_is_not_blamed_on_memory(has, small) -> None:  # type: ignore[no-untyped-def]
    one = [*SEARCH[:2], "1", *SEARCH[3:]]
    baselines = has(*one, "--json").json["baselines"]
    assert baselines["monolithic"]["deployment"]["gpus"] == 1
    for name in ("e_pd", "static_epd"):
        assert baselines[name]["reason"] == "the space has no such deployment of 1 GPU"


def test_a_finished_run_resumes_to_the_same_answer(has, finished) -> None:  # type: ignore[no-untyped-def]
    first = finished.json
    trials = Path("run/trials.jsonl").read_text()
    again = has("search", "--resume", "run", "--json", "--out", "again.yaml").json
    assert Path("run/trials.jsonl").read_text() == trials
    for part in ("figures", "objective", "baselines", "confidence", "candidates"):
        assert again[part] == first[part]
    assert Path("again.yaml").exists()


def test_more_trials_stay_asked_for(has, finished) -> None:  # type: ignore[no-untyped-def]
    more = has("search", "--resume", "run", "--trials", "5", "--json").json
    assert json.loads(Path("run/manifest.json").read_text())["question"]["trials"] == 5
    again = has("search", "--resume", "run", "--json").json
    for part in ("trials", "figures", "objective", "baselines", "confidence", "candidates"):
        assert again[part] == more[part]


def test_the_command_that_reproduces_it_is_one_line_to_copy(has, finished, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("COLUMNS", "60")
    said = has("report", "run").out.splitlines()
    (line,) = [line for line in said if line.startswith("has search --gpus 4 --profile run/profile.parquet")]
    again = has(*shlex.split(line)[1:], "--run", "again", "--json")
    assert again.status == 0, again.err
    assert again.json["best"]["alloc"] == finished.json["best"]["alloc"]
    assert max(len(other) for other in said if other != line) <= 60


def test_a_torn_journal_resumes(has, finished) -> None:  # type: ignore[no-untyped-def]
    first = finished.json
    journal = Path("run/trials.jsonl")
    journal.write_bytes(journal.read_bytes()[:-40])
    stale = Path("run", ".trials.parquet.abcd_123.tmp")
    stale.write_text("half")
    assert has("search", "--resume", "run", "--json").json["objective"] == first["objective"]
    assert not stale.exists()


def test_what_a_resumed_run_may_not_change(has, finished) -> None:  # type: ignore[no-untyped-def]
    for option in (("--gpus", "8"), ("--rate", "4"), ("--seed", "1"), ("--no-prune",)):
        said = has("search", "--resume", "run", *option)
        assert said.status == 2
        assert option[0] in said.err


ASKED_ONCE = {
    "gpus": "8",
    "model": "tiny-image",
    "device": "cpu",
    "profile": "p.csv",
    "pool_profile": "encode=p.csv",
    "workload": "w.yaml",
    "space": "small.yaml",
    "rate": "4",
    "ttft_ms": "400",
    "tpot_ms": "50",
    "attainment": "0.9",
    "objective": "goodput",
    "on": "simulated",
    "sampler": "random",
    "no_prune": None,
    "price": "2",
    "trial_profile": "p.csv",
    "trial_noise": "0.1",
    "requests": "100",
    "run": "x",
    "seed": "1",
}
"""Every option that a run remembers, with a value."""
OF_THE_ANSWER = {"resume", "json", "quiet"}


def test_every_option_is_remembered_or_may_change_or_asks_nothing(has, finished) -> None:  # type: ignore[no-untyped-def]
    from inspect import signature

    from has.cli.search import command
    from has.cli.search_plan import MAY_CHANGE

    options = set(signature(command).parameters)
    assert options == {*ASKED_ONCE, *MAY_CHANGE, *OF_THE_ANSWER}
    for name, value in ASKED_ONCE.items():
        option = f"--{name.replace('_', '-')}"
        said = has("search", "--resume", "run", option, *([] if value is None else [value]))
        assert (said.status, option in said.err) == (2, True), said.err
        assert "--trials, --baseline, --out" in said.err


def test_a_bare_resume_runs_on_the_same_truth_against_the_same_baselines(has, small) -> None:  # type: ignore[no-untyped-def]
    Path("truth.csv").write_text(Path("p.csv").read_text().replace("0.05", "0.09"))
    shutil.copy("p.json", "truth.json")
    other = Path("d.yaml").read_text().replace("gpus: 8", "gpus: 4")
    Path("own.yaml").write_text(
        other.replace("{encode: 2, prefill: 2, decode: 4}", "{encode: 1, prefill: 1, decode: 2}")
    )
    truth = ("--trial-profile", "truth.csv", "--trial-noise", "0.05", "--baseline", "own.yaml")
    first = has(*SEARCH, *truth, "--run", "run", "--json")
    assert first.status == 0, first.err
    lines = Path("run/trials.jsonl").read_bytes()
    for left in ("truth.csv", "truth.json", "own.yaml"):
        Path(left).unlink()
    Path("run/trials.jsonl").write_bytes(lines[: lines.index(b"\n") + 1])
    again = has("search", "--resume", "run", "--json")
    assert again.status == 0, again.err
    for part in ("figures", "objective", "baselines", "confidence"):
        assert again.json[part] == first.json[part]
    for line, before in zip(
        Path("run/trials.jsonl").read_bytes().splitlines(), lines.splitlines(), strict=True
    ):
        assert json.loads(line)["figures"] == json.loads(before)["figures"]

    Path("more.yaml").write_text(
        other.replace("{encode: 2, prefill: 2, decode: 4}", "{encode: 2, prefill: 1, decode: 1}")
    )
    assert {"own.yaml", "more.yaml"} <= set(
        has("search", "--resume", "run", "--baseline", "more.yaml", "--json").json["baselines"]
    )
    assert {"own.yaml", "more.yaml"} <= set(has("search", "--resume", "run", "--json").json["baselines"])


def test_a_run_folder_is_not_overwritten(has, finished) -> None:  # type: ignore[no-untyped-def]
    said = has(*SEARCH, "--run", "run")
    assert said.status == 2
    assert "--resume run" in said.err


def test_two_runs_of_a_day_have_two_folders(has, inputs) -> None:  # type: ignore[no-untyped-def]
    from has.cli.search_plan import _new_run_folder

    folders = []
    for _ in range(3):
        folders.append(_new_run_folder("Qwen/m", 4))
        folders[-1].mkdir(parents=True)
    assert len(set(folders)) == 3


def test_bounds_that_were_meant_in_seconds_are_warned_of_without_an_slo_in_the_workload(has, small) -> None:  # type: ignore[no-untyped-def]
    bare = (small / "w.yaml").read_text().partition("slo:")[0]
    (small / "w.yaml").write_text(bare)
    said = has(*SEARCH, "--ttft-ms", "1.5", "--tpot-ms", "0.06", "--run", "run")
    assert said.status == 1
    assert "slo.ttft_ms 1.5 is 1.5 milliseconds; if seconds were meant: 1500" in said.err
    assert "slo.tpot_ms 0.06 is 0.06 milliseconds; if seconds were meant: 60" in said.err


def test_nothing_meets_the_slo_is_status_1_and_the_least_bad_is_written(has, small) -> None:  # type: ignore[no-untyped-def]
    said = has(*SEARCH, "--ttft-ms", "1", "--run", "run", "--json")
    assert said.status == 1
    assert said.json["feasible"] is False
    assert "nothing meets the SLO" in said.err
    evidence = yaml.safe_load(Path("best.yaml").read_text())["evidence"]
    assert evidence["meets_slo"] is False
    candidates = said.json["candidates"]
    assert sum(evidence["candidates"]["cut"].values()) == candidates["all"] - candidates["kept"]
    assert "least bad" in has("report", "run").out


def test_memory_that_admits_nothing_is_status_1_without_a_file(has, small) -> None:  # type: ignore[no-untyped-def]
    metadata = json.loads(Path("p.json").read_text())
    metadata |= {
        "memory_bytes": 1_000_000,
        "kv_bytes_per_token": 1000,
        "weights_bytes": {"encoder": 10_000_000, "lm": 90_000_000},
    }
    Path("p.json").write_text(json.dumps(metadata))
    said = has(*SEARCH, "--json")
    assert said.status == 1
    assert "memory" in said.json["error"]["message"]
    assert not Path("best.yaml").exists()


def test_own_baselines_are_scored_as_they_are(has, small) -> None:  # type: ignore[no-untyped-def]
    Path("mine.yaml").write_text(
        "version: 1\nmodel: tiny-image\ntopology: monolithic\ngpus: 4\nalloc: {all: 4}\n"
        "slo: {ttft_ms: 2000, tpot_ms: 50}\n"
    )
    said = has(*SEARCH, "--baseline", "mine.yaml", "--json")
    assert said.json["baselines"]["mine.yaml"]["deployment"]["topology"] == "monolithic"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("search",), 2, "--gpus 8"),
        (("search", "--gpus", "0"), 2, "--gpus"),
        (("search", "--gpus", "4", "--objective", "speed"), 2, "max-rate"),
        (("search", "--gpus", "4", "--rate", "nan"), 2, "--rate"),
        (("search", "--gpus", "4", "--rate", "-1"), 2, "--rate"),
        (("search", "--gpus", "4", "--attainment", "1.5"), 2, "--attainment"),
        (("search", "--gpus", "4", "--device", "tpu"), 2, "--device"),
        (("search", "--gpus", "4", "--device", "cuda"), 3, "has doctor"),
        (("search", "--gpus", "9", "--on", "live"), 3, "--on simulated"),
        (("search", "--gpus", "4", "--on", "moon"), 2, "--on"),
        ((*SEARCH, "--sampler", "oracle"), 2, "optuna-tpe"),
        ((*SEARCH, "--on", "live"), 3, "--on simulated"),
        ((*SEARCH, "--objective", "max-rate", "--rate", "2"), 2, "--objective goodput"),
        (("search", "--resume", "nowhere"), 2, "nowhere"),
    ],
)
def test_bad_questions(arguments, status, words, has, small) -> None:  # type: ignore[no-untyped-def]
    said = has(*arguments)
    assert said.status == status, said.err
    assert words in said.err
    assert not Path("best.yaml").exists()


def test_the_interrupt_names_the_line_that_goes_on(has, finished, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from has.cli import search_view

    shutil.rmtree("run")

    seen = []

    def stop_after_two(self, trial, *_: object, **__: object) -> None:  # type: ignore[no-untyped-def]
        seen.append(trial.number)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(search_view.SearchView, "trial_finished", stop_after_two)
        said = has(*SEARCH, "--run", "a run", "--out", "an o.yaml")
    assert said.status == 130
    assert "2 finished trials kept in a run" in said.err
    line = next(line for line in said.err.splitlines() if "go on: " in line).partition("go on: ")[2]
    assert line == "has search --resume 'a run' --out 'an o.yaml'"
    kept = Path("a run/trials.jsonl").read_text()
    assert "No answer yet: 2 trials" in has("report", "a run").out
    assert has(*shlex.split(line)[1:]).status == 0
    assert Path("a run/trials.jsonl").read_text().startswith(kept)
    assert yaml.safe_load(Path("an o.yaml").read_text())["alloc"] == finished.json["best"]["alloc"]


def test_an_interrupt_before_the_first_trial_forgets_no_trials_asked_for(has, finished, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from has.cli import wiring

    def interrupted(plan: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(wiring, "executor", interrupted)
    said = has("search", "--resume", "run", "--trials", "5")
    assert said.status == 130
    assert "go on: has search --resume run --trials 5" in said.err


def test_nought_is_given_and_nothing_is_not() -> None:
    from has.cli.search_plan import Options

    given = Options.of(
        {"seed": 0, "trial_noise": 0.0, "no_prune": False, "rate": [], "gpus": None, "json": True}
    )
    assert (given.seed, given.trial_noise) == (0, 0.0)
    assert (given.no_prune, given.rate, given.gpus) == (None, None, None)

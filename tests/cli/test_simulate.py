"""`has simulate`: figures, records, where inputs come from."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

ARGUMENTS = ("simulate", "d.yaml", "--profile", "p.csv", "--workload", "w.yaml")


def test_three_constant_rows_are_a_profile(has, inputs) -> None:  # type: ignore[no-untyped-def]
    figures = has(*ARGUMENTS, "--json").json
    assert figures["requests"] == figures["completed"] == 3000
    assert figures["stages"]["encode"]["service_ms"]["mean"] == pytest.approx(50)
    assert figures["stages"]["prefill_remote"]["service_ms"]["mean"] == pytest.approx(40)
    assert figures["routed"]["local"] + figures["routed"]["remote"] == 3000
    assert abs(figures["routed"]["remote"] - 1500) < 2  # |remote - N·s| < n_E


def test_stdout_is_one_document_and_stderr_names_the_defaults(has, inputs) -> None:  # type: ignore[no-untyped-def]
    said = has(*ARGUMENTS, "--json")
    assert said.out.count("\n") == 1
    for default in ("--requests 3000", "--seed 0", "--rate 6", "fill_probability 0.6", "sm_table derived"):
        assert default in said.err
    assert "--profile" not in said.err  # it was given


def test_quiet_says_nothing_but_the_result(has, inputs) -> None:  # type: ignore[no-untyped-def]
    said = has(*ARGUMENTS, "--quiet")
    assert said.err == ""
    assert "attainment" in said.out


def test_the_same_seed_is_the_same_run(has, inputs) -> None:  # type: ignore[no-untyped-def]
    once, again, other = (has(*ARGUMENTS, "--json", "--seed", seed).out for seed in ("3", "3", "4"))
    assert once == again != other


def test_flag_goes_before_workload_goes_before_deployment(has, inputs) -> None:  # type: ignore[no-untyped-def]
    by_flag = has(*ARGUMENTS, "--json", "--rate", "3", "--ttft-ms", "1").json
    assert by_flag["offered_rps"] == pytest.approx(3, rel=0.1)
    assert by_flag["attainment"] == 0
    (inputs / "w.yaml").write_text((inputs / "w.yaml").read_text().replace("rate: 6.0", "rate: 12.0"))
    assert has(*ARGUMENTS, "--json").json["offered_rps"] == pytest.approx(12, rel=0.1)
    (inputs / "w.yaml").write_text((inputs / "w.yaml").read_text().replace(", rate: 12.0", ""))
    assert has(*ARGUMENTS, "--json").json["offered_rps"] == pytest.approx(6, rel=0.1)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_records_have_a_row_a_request(ending, has, inputs) -> None:  # type: ignore[no-untyped-def]
    file = inputs / f"r.{ending}"
    figures = has(*ARGUMENTS, "--requests", "50", "--records", file, "--json").json
    if ending == "csv":
        with file.open() as lines:
            met = [row["met"] == "true" for row in csv.DictReader(lines)]
    else:
        import pyarrow.parquet

        met = pyarrow.parquet.read_table(file)["met"].to_pylist()
    assert len(met) == 50
    assert sum(met) / 50 == pytest.approx(figures["attainment"])


def test_a_warm_up_longer_than_the_run_is_refused(has, inputs) -> None:  # type: ignore[no-untyped-def]
    said = has(*ARGUMENTS, "--requests", "30", "--warmup-s", "600")
    assert said.status == 2
    assert "warmup_s: leaves no request to count: all 30 arrive within" in said.err
    assert "a shorter warm-up, or more requests" in said.err
    assert has(*ARGUMENTS, "--requests", "3000", "--warmup-s", "60").status == 0


def test_records_of_another_ending_are_refused_before_any_work(has, inputs) -> None:  # type: ignore[no-untyped-def]
    said = has(*ARGUMENTS, "--records", "r.xlsx")
    assert said.status == 2
    assert "--records" in said.err


def test_profile_and_workload_come_from_the_run_of_the_deployment(has, inputs) -> None:  # type: ignore[no-untyped-def]
    run = inputs / "results" / "a-run"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    from has.files.profile import load_profile, save_profile

    save_profile(load_profile(inputs / "p.csv"), run / "profile.parquet")
    (run / "workload.yaml").write_text((inputs / "w.yaml").read_text())
    with (inputs / "d.yaml").open("a") as file:
        file.write("evidence: {run: results/a-run}\n")
    said = has("simulate", "d.yaml", "--json")
    assert said.json == has(*ARGUMENTS, "--json").json
    assert "results/a-run/profile.parquet" in said.err


def test_a_deployment_of_an_unknown_model_without_profile_says_what_to_give(has, inputs) -> None:  # type: ignore[no-untyped-def]
    (inputs / "d.yaml").write_text((inputs / "d.yaml").read_text().replace("tiny-image", "nobody/knows"))
    said = has("simulate", "d.yaml")
    assert said.status == 2
    assert "--profile FILE" in said.err


def test_a_profile_of_another_model_is_a_warning(has, inputs) -> None:  # type: ignore[no-untyped-def]
    (inputs / "d.yaml").write_text((inputs / "d.yaml").read_text().replace("tiny-image", "other"))
    said = has(*ARGUMENTS)
    assert said.status == 0
    assert "warning: the profile is of model tiny-image" in said.err


def test_beyond_the_reach_of_the_profile_is_refused(has, inputs) -> None:  # type: ignore[no-untyped-def]
    rows = Path("p.csv").read_text() + "prefill,100,1,128,0.08\n"
    Path("p.csv").write_text(rows)
    Path("w.yaml").write_text(Path("w.yaml").read_text().replace("media_tokens: 64", "media_tokens: 5000"))
    said = has(*ARGUMENTS)
    assert said.status == 2
    assert "prefill" in said.err


@pytest.mark.parametrize(("arrivals", "more"), [((0.0,), ""), ((0.0, 0.5), "fill_probability: 1\n")])
def test_a_batch_that_is_never_launched_is_told_with_what_launches_it(arrivals, more, has, inputs) -> None:  # type: ignore[no-untyped-def]
    """A lone request has no rate, so no gap rule; without an age cap its batch waits for ever, which no server lets it."""
    rows = "".join(f"{at},image,64,20,5\n" for at in arrivals)
    Path("t.csv").write_text("arrival_s,modality,media_tokens,prompt_tokens,output_tokens\n" + rows)
    Path("d.yaml").write_text(Path("d.yaml").read_text().replace("rate: 6.0\n", more))
    trace = ("simulate", "d.yaml", "--profile", "p.csv", "--workload", "t.csv", "--json")
    said = has(*trace)
    assert said.status == 0
    assert said.json["failed"] == len(arrivals)
    words = "1 request never encoded" if len(arrivals) == 1 else "2 requests never encoded"
    assert f"warning: {words}" in said.err
    assert "--as-deployed" in said.err
    assert f"warning: {words}" in has("explain", *trace[1:]).err
    capped = has(*trace, "--as-deployed")
    assert capped.json["completed"] == len(arrivals)
    assert "never encoded" not in capped.err

"""Which rate and which SLO hold: the option, else the workload, else the deployment; and what is said of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

FILES = ("--profile", "p.csv", "--workload", "w.yaml")
OTHER_SLO = "slo: {ttft_ms: 1500, tpot_ms: 40, attainment: 0.8}"
SLO = "slo: {ttft_ms: 2000, tpot_ms: 50, attainment: 0.9}"


def edit(file: str, old: str, new: str) -> None:
    text = Path(file).read_text()
    assert old in text
    Path(file).write_text(text.replace(old, new))


def in_force(command: str, has: Any, *options: str) -> tuple[float, dict[str, float], str]:
    """(rate, SLO, stderr) that `simulate` or `explain` worked with, as it shows them."""
    if command == "explain":
        said = has("explain", "d.yaml", *FILES, *options, "--json")
        assert said.status == 0, said.err
        return said.json["rate"], said.json["slo"], said.err
    said = has("simulate", "d.yaml", *FILES, *options, "--requests", "400")
    assert said.status == 0, said.err
    ttft, tpot, share = re.search(r"TTFT ≤ (\S+) ms and TPOT ≤ (\S+) ms for (\S+) %", said.out).groups()  # type: ignore[union-attr]
    rate = float(re.search(r"offered, requests/s\s+(\S+)", said.out)[1])  # type: ignore[index]
    slo = {"ttft_ms": float(ttft), "tpot_ms": float(tpot), "attainment": float(share) / 100}
    return rate, slo, said.err


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_the_option_then_the_workload_then_the_deployment(command: str, has, inputs) -> None:  # type: ignore[no-untyped-def]
    edit("d.yaml", "rate: 6.0", "rate: 9.0")
    edit("d.yaml", SLO, OTHER_SLO)
    options = ("--rate", "3", "--ttft-ms", "700", "--tpot-ms", "30", "--attainment", "0.5")
    rate, slo, said = in_force(command, has, *options)
    assert rate == pytest.approx(3, rel=0.15)
    assert slo == {"ttft_ms": 700, "tpot_ms": 30, "attainment": 0.5}
    assert "--rate" not in said
    assert "--ttft-ms" not in said

    rate, slo, said = in_force(command, has, "--ttft-ms", "700")
    assert rate == pytest.approx(6, rel=0.15)
    assert slo == {"ttft_ms": 700, "tpot_ms": 50, "attainment": 0.9}
    words = " ".join(said.split())
    assert "--rate 6 the workload's, before the deployment's 9" in words
    assert "--tpot-ms 50 --attainment 0.9 the workload's, before the deployment's --tpot-ms 40" in words

    edit("w.yaml", ", rate: 6.0", "")
    edit("w.yaml", SLO, "")
    rate, slo, said = in_force(command, has)
    assert rate == pytest.approx(9, rel=0.15)
    assert slo == {"ttft_ms": 1500, "tpot_ms": 40, "attainment": 0.8}
    assert said.count("the deployment's, as the workload has none") == 2


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_the_copies_of_a_run_are_a_workload_like_any(command: str, has, inputs) -> None:  # type: ignore[no-untyped-def]
    run = inputs / "results" / "a-run"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    (run / "workload.yaml").write_text((inputs / "w.yaml").read_text())
    edit("d.yaml", "rate: 6.0", "rate: 9.0\nevidence: {run: results/a-run}")
    said = has(command, "d.yaml", "--profile", "p.csv")
    assert "--rate 6 the workload's, before the deployment's 9" in " ".join(said.err.split())


def test_a_trace_keeps_its_times(has, inputs) -> None:  # type: ignore[no-untyped-def]
    rows = "".join(f"{n / 4},image,1,64,10,5\n" for n in range(100))
    Path("t.csv").write_text("arrival_s,modality,items,media_tokens,prompt_tokens,output_tokens\n" + rows)
    Path("w.yaml").write_text(f"version: 1\narrivals: {{process: trace, file: t.csv}}\n{SLO}\n")
    for command in ("simulate", "explain"):
        words = " ".join(has(command, "d.yaml", *FILES).err.split())
        assert "--rate the trace's its times as they are; the gap rule takes the deployment's 6" in words
    assert has("simulate", "d.yaml", *FILES, "--json").json["offered_rps"] == pytest.approx(4)
    assert has("simulate", "d.yaml", *FILES, "--rate", "8", "--json").json["offered_rps"] == pytest.approx(8)


def test_search_takes_the_option_then_the_workload_and_judges_baselines_by_it(has, inputs) -> None:  # type: ignore[no-untyped-def]
    Path("s.yaml").write_text("version: 1\ntopologies: [monolithic]\n")
    edit("d.yaml", SLO, OTHER_SLO)
    edit(
        "d.yaml",
        "gpus: 8\nalloc: {encode: 2, prefill: 2, decode: 4}",
        "gpus: 4\nalloc: {encode: 1, prefill: 1, decode: 2}",
    )
    said = has(
        *("search", "--gpus", "4", *FILES, "--space", "s.yaml", "--trials", "1", "--requests", "100"),
        *("--baseline", "d.yaml", "--tpot-ms", "60", "--rate", "2", "--run", "run", "--json"),
    )
    assert said.status in (0, 1), said.err
    best = yaml.safe_load(Path("best.yaml").read_text())
    assert best["slo"] == {"ttft_ms": 2000, "tpot_ms": 60, "attainment": 0.9}
    assert best["rate"] == 2
    words = " ".join(said.err.split())
    assert "--ttft-ms 2000 --attainment 0.9 the workload's" in words
    assert "--ttft-ms 2000 for --baseline d.yaml too, before its own 1500" in words


def test_deploy_takes_the_deployments_own(has, inputs) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("torch")
    said = has("deploy", "d.yaml", "--dry-run", "--json")
    assert said.status == 0, said.err
    assert said.json["deployment"]["slo"]["ttft_ms"] == 2000
    assert said.json["deployment"]["rate"] == 6


def test_bench_takes_the_option_then_the_workload(has, inputs, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from has.errors import RunError

    sent = []

    def bench_url(url: str, requests: Any, **_: Any) -> None:
        sent.append(requests)
        raise RunError("no server is asked in this test")

    monkeypatch.setattr("has.trial.url.bench_url", bench_url)
    said = has("bench", "http://127.0.0.1:9", "--workload", "w.yaml", "--goodput", "ttft:700")
    words = " ".join(said.err.split())
    assert "--rate 6 the workload's" in words
    assert "--goodput tpot:50 the workload's" in words
    has("bench", "http://127.0.0.1:9", "--workload", "w.yaml", "--rate", "60")
    assert sent[1].mean_rate == pytest.approx(10 * sent[0].mean_rate)


@pytest.mark.parametrize(
    "command",
    [
        ("simulate", "d.yaml", *FILES, "--requests", "20"),
        ("explain", "d.yaml", *FILES),
        ("deploy", "d.yaml", "--dry-run"),
    ],
    ids=lambda c: c[0],
)
def test_bounds_that_look_like_seconds_are_asked_about(command, has, inputs) -> None:  # type: ignore[no-untyped-def]
    for file in ("d.yaml", "w.yaml"):
        edit(file, "ttft_ms: 2000, tpot_ms: 50", "ttft_ms: 1.5, tpot_ms: 0.05")
    said = has(*command, "--quiet")
    assert "slo.ttft_ms 1.5 is 1.5 milliseconds; if seconds were meant: 1500" in said.err
    assert "slo.tpot_ms 0.05 is 0.05 milliseconds; if seconds were meant: 50" in said.err


def test_simulate_says_and_shows_what_deploy_would_do(has, inputs) -> None:  # type: ignore[no-untyped-def]
    simulate = ("simulate", "d.yaml", *FILES, "--requests", "300", "--rate", "0.5")
    edit("d.yaml", "encode_batch: 4", "encode_batch: 8")
    said = has(*simulate, "--json")
    words = " ".join(said.err.split())
    assert "max_wait_ms none has deploy would take 500 (--as-deployed simulates that)" in words
    assert "max_queue none has deploy would take 256" in words
    assert "rate_estimate known has deploy would take online" in words
    served = has(*simulate, "--as-deployed", "--json")
    assert "max_wait_ms 500 as has deploy would" in " ".join(served.err.split())
    waits = [s.json["stages"]["encode"]["wait_ms"]["max"] for s in (said, served)]
    assert waits[0] > 1000 > 520 > waits[1]  # without an age cap a request waits for the gap of 0.25 media/s

    edit(
        "d.yaml",
        "encode_batch: 8",
        "encode_batch: 8\nmax_wait_ms: 500\nmax_queue: 256\nrate_estimate: online",
    )
    written = has(*simulate, "--json")
    assert written.json == served.json
    assert "has deploy would" not in written.err

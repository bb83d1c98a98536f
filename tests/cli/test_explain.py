"""`has explain`: the words follow the figures."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

EXPLAIN = ("explain", "d.yaml", "--profile", "p.csv", "--workload", "w.yaml")


def test_the_words_hold_what_the_data_says(has, inputs) -> None:  # type: ignore[no-untyped-def]
    told = has(*EXPLAIN, "--json").json
    words = has(*EXPLAIN).out
    # B = 4, p = 0.6, λ = 6/2 media requests/s at each of two encoders
    kappa = -math.log(1 - 0.6 ** (1 / 3))
    assert told["batching"]["kappa"] == pytest.approx(kappa)
    assert told["batching"]["gap_s"] == pytest.approx(kappa / 3)
    assert f"{kappa:.4g}" in words
    assert f"{kappa / 3:.4g} s" in words
    assert "decode" in words
    assert told["capacities"]["binding"] in words.replace("local prefill", "prefill_local")
    for change in (
        "+1 GPU encode",
        "-1 GPU decode",
        "B = 6",
        "B = 2",
        "s = 0.6",
        "s = 0.4",
        "+10 % load",
        "-10 % load",
    ):
        assert change in words


def test_the_binding_stage_is_the_slow_one(has, inputs) -> None:  # type: ignore[no-untyped-def]
    rows = Path("p.csv").read_text().replace("encode,100,1,64,0.05", "encode,100,1,64,3.0")
    Path("p.csv").write_text(rows)
    assert "The binding stage is encode" in has(*EXPLAIN).out


def test_cpu_preprocessing_that_binds_is_said_to_be_no_matter_of_gpus(has, inputs) -> None:  # type: ignore[no-untyped-def]
    Path("p.csv").write_text(Path("p.csv").read_text() + "preprocess,100,1,64,9.0\n")
    words = " ".join(has(*EXPLAIN).out.split())
    assert "The binding stage is preprocessing on the CPU" in words
    assert "more GPUs gain nothing" in words


def test_a_deployment_without_evidence_is_explained_too(has, inputs) -> None:  # type: ignore[no-untyped-def]
    assert "Against" not in has(*EXPLAIN).out
    assert has(*EXPLAIN, "--json").json["baselines"] == {}


@pytest.mark.parametrize(
    "text",
    [
        "topology: e_pd\ngpus: 8\nalloc: {encode: 2, prefill_decode: 6}\nencode_batch: 4\n",
        "topology: monolithic\ngpus: 8\nalloc: {all: 8}\n",
    ],
    ids=["e_pd", "monolithic"],
)
def test_the_other_topologies_are_explained(text, has, inputs) -> None:  # type: ignore[no-untyped-def]
    Path("d.yaml").write_text(f"version: 1\nmodel: tiny-image\n{text}slo: {{ttft_ms: 2000, tpot_ms: 50}}\n")
    said = has(*EXPLAIN)
    assert said.status == 0, said.err
    assert "The binding stage is" in said.out


@pytest.mark.parametrize("worst", ["light", "heavy"])
def test_of_a_run_s_workloads_the_one_served_worst_is_explained(worst, has, inputs) -> None:  # type: ignore[no-untyped-def]
    """Wherever it stands among them."""
    run = inputs / "results" / "a-run"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    text = Path("w.yaml").read_text()
    hard = text.replace("ttft_ms: 2000", "ttft_ms: 150").replace("name: w", f"name: {worst}")
    (run / "workload.yaml").write_text(text if worst == "heavy" else hard)
    (run / "workload-2.yaml").write_text(hard if worst == "heavy" else text)
    with Path("d.yaml").open("a") as file:
        file.write("evidence: {run: results/a-run}\n")
    asked = ("explain", "d.yaml", "--profile", "p.csv")
    told = has(*asked, "--json").json
    assert told["workload"] == worst
    assert told["slo"]["ttft_ms"] == 150
    attained = {of["workload"]: of["attainment"] for of in told["attainments"]}
    assert told["figures"]["attainment"] == attained[worst] < attained["w"]
    said = has(*asked)
    assert f"Of 2 workloads {worst} is served worst, and decides" in " ".join(said.out.split())
    assert "and 1 more: all that its run kept count" in said.err
    alone = has(*asked, "--workload", "w.yaml")
    assert "served worst" not in alone.out
    assert "the first of 2 that its run kept" in has("simulate", "d.yaml", "--profile", "p.csv").err

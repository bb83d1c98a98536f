"""The committed fidelity set, and what its tables say of runs that are off."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fidelity_plot import plot
from benchmarks.fidelity_tables import Comparison, document, repeat_noise, tau_beyond
from has.core.deployment import Deployment
from has.files.yaml import load_yaml

SET = load_yaml(Path(__file__).parents[2] / "benchmarks" / "fidelity.yaml")
FIRST_SIX = ["4E0P4D B2 s0", "3E1P4D B2 s0.5", "3E2P3D B4 s1", "4E1P3D B1 s0.3", "4E4PD B2", "8M"]


def test_twelve_deployments_of_eight_gpus_of_which_the_first_six_stay() -> None:
    common = {"version": 1, "model": SET["model"], "slo": SET["slo"], "gpus": 8}
    plans = [Deployment.model_validate({**common, **fields}) for fields in SET["deployments"].values()]
    assert [plan.label for plan in plans[:6]] == FIRST_SIX
    assert len(plans) >= 12
    assert SET["requests"] >= 200
    assert SET["loads"] == ["saturated", 0.85, 0.6]


def run(name: str, load: str, factor: float = 1.0, draws: tuple[float, ...] = ()) -> Comparison:
    base = {
        "throughput_rps": 8.0 + len(name),
        "goodput_rps": 6.0 + len(name),
        "ttft_ms": 1000.0,
        "ttft_p90_ms": 1500.0,
        "tpot_ms": 30.0,
        "attainment": 0.9,
    }
    live = {figure: value * (factor if figure != "attainment" else 1.0) for figure, value in base.items()}
    drawn = [{figure: value * draw for figure, value in base.items()} for draw in draws]
    alone = {figure: value * 1.2 for figure, value in base.items()}
    return Comparison(name, "8M", load, live, base, alone, drawn)


def test_what_agrees_is_said_to_agree() -> None:
    text = document([run("a", "saturated"), run("bc", "saturated", 1.01), run("a", "0.85")], [], 200)
    assert "No single run is beyond them." in text
    assert "| saturated | throughput | 0.5 % | 2 %, worst 5 % | +1.0 % | bc |" in text
    assert "| saturated (2) | 1.00 | 1.00 | 1.00 |  |" in text


def test_pairs_that_a_repeat_may_turn_round_do_not_count_against_the_ranking() -> None:
    live, there = [1.0, 1.1, 3.0, 5.0], [1.2, 1.0, 5.0, 3.0]
    assert tau_beyond(live, there, 0.0) == (pytest.approx(1 / 3), 6)
    assert tau_beyond(live, there, 0.2) == (pytest.approx(3 / 5), 5)
    assert tau_beyond(live, there, 2.5)[1] == 2
    repeated = [
        replace(run(name, "saturated"), again={"goodput_rps": 6.0 + len(name) + 0.1}) for name in ("a", "bc")
    ]
    assert repeat_noise(repeated, "goodput_rps") == pytest.approx(0.196)
    assert repeat_noise([run("a", "saturated")], "goodput_rps") is None
    text = document(repeated, [], 200)
    assert "| saturated (2) | 1.00 | 1.00 | 1.00 | 1.00 (2) | 0.20 req/s | 1.00 | 1 of 1 |" in text


def test_a_miss_is_named_with_what_chance_makes_of_it() -> None:
    off = run("drawn", "saturated", 0.9, draws=(0.9, 1.0, 1.1))
    refused = [{"deployment": "x", "load": "0.6", "reason": "host too busy"}]
    text = document([off, run("a", "saturated")], refused, 200)
    assert (
        "- drawn at saturated: throughput -10.0 (its standard deviation over draws of dispatch: 10.0)" in text
    )
    assert "- x at 0.6: host too busy" in text
    assert "| drawn | saturated | -10.0 % | 10.0 % |" in text


def test_the_picture_is_an_image() -> None:
    root = ET.fromstring(plot([run("a", "saturated", 1.02), run("b", "0.6")]))
    dots = root.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(dots) == 3 + 2 * 2 * 4

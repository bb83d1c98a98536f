"""What a figure rests on is said: simulated or measured, estimated, under the target elsewhere, on few requests."""

from __future__ import annotations

from typing import Any

import pytest

from has.core.deployment import Deployment
from has.files.validate import validate
from has.report.answer import answer_lines, baseline_table
from has.report.provenance import few_requests_words, half_width, source_words


def best(**evidence: Any) -> Deployment:
    found = {
        "objective": {"name": "max-rate", "value": 10.0, "unit": "req/s", "rates": []},
        "executor": "LocalExecutor",
        "measured": {"rate": 12.0, "requests": 900, "attainment": 0.95, "ttft_ms": {"p99": 800.0}},
        "baselines": {
            "e_pd": {
                "deployment": "2E2PD B4",
                "objective": 8.0,
                "rate": 9.0,
                "attainment": 0.9,
                "ttft_p99_ms": 500.0,
            }
        },
        "profile": {"source": "measured", "error": 0.05},
        **evidence,
    }
    return validate(
        Deployment,
        {
            "version": 1,
            "model": "m",
            "topology": "monolithic",
            "gpus": 4,
            "alloc": {"all": 4},
            "rate": 10.0,
            "slo": {"ttft_ms": 1000, "tpot_ms": 50, "attainment": 0.9},
            "evidence": found,
        },
    )


def confirmation(rate: float, attainment: float, requests: int = 3000, name: str = "4M") -> dict[str, Any]:
    return {"deployment": name, "rate": rate, "attainment": attainment, "requests": requests, "seed": 1}


def test_the_baseline_table_says_at_which_rate_each_figure_was_seen() -> None:
    table = baseline_table(best())
    assert table is not None
    columns = list(table.columns)
    at, held = columns.index("tried at req/s"), columns.index("largest req/s")
    assert [(row[held], row[at]) for row in table.rows] == [(10.0, 12.0), (8.0, 9.0)]
    assert "attainment there" in columns
    assert "TTFT p99 ms there" in columns


@pytest.mark.parametrize(
    ("executor", "word"), [("LocalExecutor", "measured"), ("SimulatedExecutor", "simulated")]
)
def test_what_was_simulated_is_not_called_measured(executor: str, word: str) -> None:
    worse = {"e_pd": {"deployment": "2E2PD B4", "objective": 11.0, "objective_source": "measured"}}
    said = "\n".join(answer_lines(best(executor=executor, baselines=worse)))
    assert f"on the same GPUs, {word} 10.0 % better" in said
    other = {"measured": "simulated", "simulated": "measured"}[word]
    assert other not in said


def test_an_estimate_is_said_with_its_error() -> None:
    said = answer_lines(best(profile={"source": "roofline", "error": 0.25}))
    assert any(line.startswith("ESTIMATE, stated error 25 %") for line in said)
    assert not any("ESTIMATE" in line for line in answer_lines(best()))
    assert source_words("measured", 0.1) == ""


def test_a_confirmation_under_the_target_is_said() -> None:
    runs = [confirmation(8.5, 0.97), confirmation(11.5, 0.71), confirmation(11.5, 0.1, name="other")]
    (line,) = [line for line in answer_lines(best(confirmations=runs)) if "other arrivals" in line]
    assert line == (
        "SLO met under other arrivals: 97.0 % at 85 % of the rate (8.5/s),"
        " 71.0 % at 115 % of the rate (11.5/s): BELOW the target of 90 %"
    )


def test_a_confirmation_that_failed_is_said_with_its_reason() -> None:
    failed = {**confirmation(11.5, 0.0), "attainment": None, "reason": "the host was busy"}
    said = answer_lines(best(confirmations=[confirmation(8.5, 0.97), failed]))
    assert "1 of 2 runs under other arrivals failed: the host was busy" in said
    alone = answer_lines(best(confirmations=[failed]))
    assert "1 of 1 run under other arrivals failed: the host was busy" in alone


def test_a_miss_below_the_rate_it_was_chosen_for_is_said_apart() -> None:
    said = answer_lines(best(confirmations=[confirmation(8.5, 0.84), confirmation(11.5, 0.95)]))
    assert said[2] == (
        "under other arrivals it missed the target at no more than the rate it was chosen for (84.0 % at 8.5/s): plan for less"
    )
    held = answer_lines(best(confirmations=[confirmation(8.5, 0.97), confirmation(11.5, 0.71)]))
    assert not any("plan for less" in line for line in held)


def test_few_requests_are_said_with_how_sure_they_make_it() -> None:
    # by hand: sqrt(.9143·.0857/35 + 1.96²/(4·35²)) = .05498, times 1.96/(1 + 1.96²/35) = 1.7662
    assert half_width(32 / 35, 35) == pytest.approx(0.0971, abs=5e-5)
    assert "seen on 35, so it is known to ±10 points" in few_requests_words(
        "the trial's attainment", 32 / 35, 35
    )
    assert few_requests_words("", 0.9, 900) == few_requests_words("", None, 35) == ""
    said = answer_lines(best(confirmations=[confirmation(8.5, 0.97, 35)]))
    assert any(line.startswith("few requests") and "35" in line for line in said)

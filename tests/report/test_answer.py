"""Gains: what they are a share of, which baseline counts, and what is said where there is nothing to compare."""

from __future__ import annotations

from typing import Any

import pytest

from has.core.deployment import Deployment
from has.report.answer import answer_lines, baseline_table, best_gain_words, gain


def best(**evidence: Any) -> Deployment:
    return Deployment.model_validate(
        {
            "version": 1,
            "model": "tiny-image",
            "topology": "monolithic",
            "gpus": 4,
            "alloc": {"all": 4},
            "slo": {"ttft_ms": 2000, "tpot_ms": 50},
            "evidence": evidence,
        }
    )


def objective(name: str, value: float) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": "req/s", "rates": [4.0]}


@pytest.mark.parametrize(
    ("mine", "other", "name", "share"),
    [(6.0, 5.0, "max-rate", 0.2), (4.0, 5.0, "goodput", -0.2), (4.0, 5.0, "cost", 0.25)],
)
def test_more_is_better_and_for_cost_less(mine: float, other: float, name: str, share: float) -> None:
    assert gain(mine, other, name) == pytest.approx(share)


def test_what_cannot_be_compared_is_no_gain() -> None:
    assert gain(1.0, None, "goodput") is None
    assert gain(None, 1.0, "goodput") is None
    assert gain(1.0, 0.0, "goodput") is None


def test_the_gain_is_told_over_the_strongest_baseline() -> None:
    evidence = {
        "objective": objective("goodput", 6.0),
        "baselines": {
            "monolithic": {"objective": 3.0},
            "e_pd": {"objective": 5.0},
            "x.yaml": {"objective": None},
        },
    }
    assert (
        best_gain_words(evidence)
        == "+20.0 % over the strongest baseline, E+PD (encode apart), on the same GPUs"
    )


def test_a_baseline_that_wins_is_not_hidden() -> None:
    evidence = {"objective": objective("goodput", 4.0), "baselines": {"monolithic": {"objective": 5.0}}}
    assert "25.0 % better" in best_gain_words(evidence)
    evidence["objective"] = objective("goodput", 5.0)
    assert best_gain_words(evidence).startswith("as good as")


def test_an_answer_that_misses_the_slo_begins_with_that() -> None:
    lines = answer_lines(best(meets_slo=False, objective=objective("max-rate", 0.0)))
    assert lines[0] == "Nothing meets the SLO; this is the least bad."
    assert lines[1] == "4M: 0 req/s"
    assert not any("largest rate" in line or "with probability" in line for line in lines)
    assert "Nothing" not in answer_lines(best(meets_slo=True, objective=objective("max-rate", 1.0)))[0]


@pytest.mark.parametrize(
    ("probability", "words"), [(0.998, "above 0.99"), (0.463, "0.46"), (0.001, "below 0.01"), (0.99, "0.99")]
)
def test_no_probability_is_shown_as_certain(probability: float, words: str) -> None:
    told = answer_lines(best(confidence={"within_percent": 3, "probability": probability}))
    assert f"within 3 % of the best there is with probability {words}" in told


def test_a_baseline_that_could_not_run_says_why() -> None:
    table = baseline_table(
        best(
            objective=objective("goodput", 6.0),
            baselines={"monolithic": {"objective": None, "reason": "memory admits no such deployment"}},
        )
    )
    assert table is not None
    assert table.rows[1][-1] == "memory admits no such deployment"
    assert baseline_table(best()) is None

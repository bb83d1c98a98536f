"""The benchmark of searches runs, goes on where it was, and its arithmetic is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.search.__main__ import main
from benchmarks.search.problems import LEAST, Cell, World
from benchmarks.search.strategies import closed_form
from benchmarks.search.summary import SURE_AFTER, calibration, per_run, platt
from has.search.confidence import corrected


def test_quick_runs_and_then_has_nothing_left_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--quick", "--out", str(tmp_path), "--only", "auto,grid,closed-form,random-all,optuna-tpe"]
    main(asked)
    said = capsys.readouterr()
    assert said.err.count("block 0") == 5
    table = pd.read_parquet(tmp_path / "search-runs.parquet").set_index("strategy")
    assert set(table.index) == {"auto", "grid", "closed-form", "random-all", "optuna-tpe"}
    regrets = table[["regret_1", "regret_3", "regret_8"]]
    assert regrets.min().min() >= 0
    assert regrets.max().max() <= 1 - LEAST
    assert "| auto | 1 |" in said.out
    assert (tmp_path / "search-regret.svg").read_text().count("<polyline") == 5
    main(asked)
    assert capsys.readouterr().err == ""


def test_closed_form_knows_neither_offload_nor_large_batches(tmp_path: Path) -> None:
    ranked = closed_form(World(Cell("image", 4, 0), tmp_path))
    assert {c.share for c in ranked} == {1.0}
    assert {c.topology for c in ranked} == {"disaggregated"}


def test_trials_until_within_some_percent_and_regret_after_some_trials() -> None:
    steps = pd.DataFrame(
        {
            "cell": "c",
            "modality": "image",
            "gpus": 8,
            "bias": 0,
            "strategy": "s",
            "seed": 0,
            "cpu_s": 1.0,
            "trial": [1, 2, 3, 4],
            "tried_regret": [0.2, 0.04, 0.5, 0.02],
            "recommended_regret": [0.2, 0.04, 0.04, 0.04],
        }
    )
    row = per_run(steps).iloc[0]
    assert (row["within_5"], row["within_3"], row["within_1"]) == (2, 4, np.inf)
    assert row["regret_1"] == 0.2
    assert row["regret_40"] == 0.04


@pytest.mark.parametrize(("offset", "slope"), [(0.7, 0.5), (2.0, 0.2)])
@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_a_belief_that_is_too_narrow_is_found_out(offset: float, slope: float, spread: float) -> None:
    """Right in the share q where it said p, logit q = offset + slope logit p: the fit finds both again."""
    rng = np.random.default_rng(0)
    said = rng.beta(spread, spread, 40_000).clip(1e-3, 1 - 1e-3)
    logit = offset + slope * np.log(said / (1 - said))
    was = rng.random(len(said)) < 1 / (1 + np.exp(-logit))
    assert platt(said, was) == pytest.approx((offset, slope), abs=0.06)
    assert np.isfinite(platt(said[:100], was[:100])).all()


def test_what_a_search_says_of_itself_keeps_the_order_and_is_never_certain() -> None:
    said = [corrected(p, 4000) for p in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)]
    assert said == sorted(said)
    assert len(set(said)) == len(said)
    assert said[0] > 0
    assert said[-1] < 1


def test_how_sure_a_search_was_is_told_beside_strategies_that_say_nothing() -> None:
    """Their tables have no numbers in that column, which makes it one of objects."""
    rows = [
        {
            "strategy": strategy,
            "bias": bias,
            "trial": trial,
            "sure": 0.5 + 0.4 * (trial % 2) if strategy == "auto" else None,
            "recommended_regret": 0.02 * (trial % 3),
        }
        for strategy in ("auto", "random")
        for bias in range(10)
        for trial in SURE_AFTER
        for _ in range(40)
    ]
    runs = pd.DataFrame(rows).astype({"sure": object})
    for tuned in (True, False):
        assert "said to be within 3 %" in calibration(runs, tuned=tuned)
    assert "these runs alone give" in calibration(runs, tuned=True)

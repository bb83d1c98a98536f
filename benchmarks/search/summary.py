"""Tables and plots of a benchmark's runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.search.plot import curves

BUDGETS = (1, 2, 3, 5, 8, 10, 15, 20, 30, 40)
WITHIN = (1, 3, 5)


def write_summary(runs: pd.DataFrame, folder: Path) -> None:
    """`search.md`, `search-runs.parquet` (one row a run) and two SVG plots."""
    folder.mkdir(parents=True, exist_ok=True)
    each = per_run(runs)
    (folder / "search.md").write_text(_markdown(runs, each))
    each.to_parquet(folder / "search-runs.parquet")
    (folder / "search-regret.svg").write_text(_regrets(runs))
    (folder / "search-hits.svg").write_text(_hits(runs, each))
    print(_markdown(runs, each))


def per_run(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a run: trials until within 1, 3 and 5 %, regret of the recommendation after n trials."""
    keys = ["cell", "modality", "gpus", "bias", "strategy", "seed"]
    rows = []
    for values, steps in runs.sort_values("trial").groupby(keys, sort=False):
        row = dict(zip(keys, values, strict=True))
        tried = np.minimum.accumulate(steps["tried_regret"].to_numpy())
        for percent in WITHIN:
            hit = np.flatnonzero(tried <= percent / 100 + 1e-12)
            row[f"within_{percent}"] = float(steps["trial"].to_numpy()[hit[0]]) if len(hit) else np.inf
        recommended = steps["recommended_regret"].to_numpy()
        for budget in BUDGETS:
            row[f"regret_{budget}"] = recommended[min(budget, len(recommended)) - 1]
        row["cpu_s"] = steps["cpu_s"].iloc[0]
        rows.append(row)
    return pd.DataFrame(rows)


def _markdown(runs: pd.DataFrame, each: pd.DataFrame) -> str:
    lines = [
        "| strategy | runs | within 1 %: median / p90 | 3 % | 5 % | regret after 10 | 20 | 40 | CPU s a run |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for strategy, group in sorted(each.groupby("strategy"), key=lambda pair: pair[1]["regret_10"].mean()):
        cells = [
            f"{_quantile(group[f'within_{p}'], 0.5)} / {_quantile(group[f'within_{p}'], 0.9)}" for p in WITHIN
        ]
        regrets = [f"{100 * group[f'regret_{n}'].mean():.2f} %" for n in (10, 20, 40)]
        row = [str(strategy), str(len(group)), *cells, *regrets, f"{group['cpu_s'].mean():.1f}"]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n\n" + calibration(runs)


def calibration(runs: pd.DataFrame) -> str:
    """How often `auto` was within 3 % where it said how sure it was."""
    said = runs[runs["sure"].notna()]
    lines = ["| said to be within 3 % with probability | times | was |", "|---|---|---|"]
    for low, high in ((0.0, 0.5), (0.5, 0.8), (0.8, 0.95), (0.95, 1.01)):
        group = said[(said["sure"] >= low) & (said["sure"] < high)]
        if len(group):
            was = np.mean(group["recommended_regret"] <= 0.03)
            lines.append(f"| {low:.2f} to {min(high, 1):.2f} | {len(group)} | {was:.2f} |")
    return "\n".join(lines) + "\n"


def _regrets(runs: pd.DataFrame) -> str:
    lines = {}
    for strategy, group in runs.groupby("strategy"):
        mean = 100 * group.groupby("trial")["recommended_regret"].mean()
        lines[str(strategy)] = (mean.index.to_list(), mean.to_list())
    return curves("Mean regret of the recommended deployment", "trials", "% below the best", lines)


def _hits(runs: pd.DataFrame, each: pd.DataFrame) -> str:
    trials = list(range(1, int(runs["trial"].max()) + 1))
    lines = {
        str(strategy): (trials, [100 * float(np.mean(group["within_3"] <= n)) for n in trials])
        for strategy, group in each.groupby("strategy")
    }
    return curves("Runs that had tried a point within 3 % of the best", "trials", "% of runs", lines)


def _quantile(trials: pd.Series, q: float) -> str:
    ordered = np.sort(trials.to_numpy())
    value = ordered[min(len(ordered) - 1, int(np.ceil(q * len(ordered))) - 1)]
    return ">40" if np.isinf(value) else f"{value:g}"

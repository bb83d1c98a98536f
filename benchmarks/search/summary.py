"""Tables and plots of a benchmark's runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from benchmarks.search.plot import curves
from benchmarks.search.strategies import ARMS, SURE_AFTER
from has.search.confidence import DRAWS, OFFSET, SLOPE, corrected

BUDGETS = (1, 2, 3, 5, 8, 10, 15, 20, 30, 40)
SHOWN = (5, 10, 20, 40)
WITHIN = (1, 3, 5)
TUNED = range(5)
"""Biases whose worlds the search was developed on; the others are for judging it."""
LEAST_FITTED = 100
"""Statements about whose truth a fit says something."""
RUN = ["cell", "modality", "gpus", "bias", "strategy", "seed"]


def write_summary(runs: pd.DataFrame, folder: Path) -> None:
    """`search.md`, `search-runs.parquet` (one row a run) and two SVG plots, of runs that all made."""
    folder.mkdir(parents=True, exist_ok=True)
    each = per_run(runs)
    text = _markdown(runs, each)
    (folder / "search.md").write_text(text)
    each.to_parquet(folder / "search-runs.parquet")
    rivals = runs[~runs["strategy"].isin(ARMS)]
    shared = paired(rivals)
    (folder / "search-regret.svg").write_text(_regrets(shared))
    (folder / "search-hits.svg").write_text(_hits(shared))
    print(text)


def per_run(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a run: trials until within 1, 3 and 5 %, regret of the recommendation after n trials, and
    (of `auto`) where its stop rule would have ended it."""
    rows = []
    for values, steps in runs.sort_values("trial").groupby(RUN, sort=False):
        row = dict(zip(RUN, values, strict=True))
        tried = np.minimum.accumulate(steps["tried_regret"].to_numpy())
        for percent in WITHIN:
            hit = np.flatnonzero(tried <= percent / 100 + 1e-12)
            row[f"within_{percent}"] = float(steps["trial"].to_numpy()[hit[0]]) if len(hit) else np.inf
        recommended = steps["recommended_regret"].to_numpy()
        for budget in BUDGETS:
            row[f"regret_{budget}"] = recommended[min(budget, len(recommended)) - 1]
        row["cpu_s"] = steps["cpu_s"].iloc[0]
        if "stopped" in steps:
            stops = np.flatnonzero(steps["stopped"].fillna(False).to_numpy(bool))
            last = int(stops[0]) if len(stops) else len(steps)
            row["stopped_after"], row["regret_stopped"] = last, recommended[last - 1]
        rows.append(row)
    return pd.DataFrame(rows)


def paired(runs: pd.DataFrame) -> pd.DataFrame:
    """Those of (cell, seed) that every strategy in the table ran."""
    count = runs.groupby(["cell", "seed"])["strategy"].nunique()
    every = count[count == runs["strategy"].nunique()].index
    at = pd.MultiIndex.from_frame(runs[["cell", "seed"]])
    return runs[at.isin(every)]


def _markdown(runs: pd.DataFrame, each: pd.DataFrame) -> str:
    rivals = each[~each["strategy"].isin(ARMS)]
    held, tuned = ~rivals["bias"].isin(TUNED), rivals["bias"].isin(TUNED)
    parts = [
        ("Worlds that the search was not tuned on", _table(rivals[held])),
        ("Worlds that it was tuned on", _table(rivals[tuned])),
        ("Runs that every strategy made, in all worlds", _table(paired(rivals))),
        ("Parts of `auto`, in runs that all of them made", _parts(each)),
        ("How sure `auto` was, in worlds that it was not tuned on", calibration(runs, tuned=False)),
        ("How sure `auto` was, in worlds that it was tuned on", calibration(runs, tuned=True)),
        ("Where the stop rule would have ended `auto`", _stops(each)),
    ]
    return "\n".join(f"## {title}\n\n{table}" for title, table in parts if table)


def _table(each: pd.DataFrame) -> str:
    if each.empty:
        return ""
    regrets = [f"regret after {n}" if n == SHOWN[0] else str(n) for n in SHOWN]
    head = ["strategy", "runs", "within 1 %: median / p90", "3 %", "5 %", *regrets, "CPU s a run"]
    lines = [_row(head), _row(["---"] * len(head))]
    for strategy, group in sorted(each.groupby("strategy"), key=lambda pair: pair[1]["regret_10"].mean()):
        hits = [
            f"{_quantile(group[f'within_{p}'], 0.5)} / {_quantile(group[f'within_{p}'], 0.9)}" for p in WITHIN
        ]
        regrets = [f"{100 * group[f'regret_{n}'].mean():.2f} %" for n in SHOWN]
        lines.append(_row([str(strategy), str(len(group)), *hits, *regrets, f"{group['cpu_s'].mean():.1f}"]))
    return "\n".join(lines) + "\n"


def _parts(each: pd.DataFrame) -> str:
    parts = each[each["strategy"].isin(ARMS)]["strategy"].unique()
    if len(parts) == 0:
        return ""
    return _table(paired(each[each["strategy"].isin([*parts, "auto"])]))


def calibration(runs: pd.DataFrame, *, tuned: bool) -> str:
    """How often `auto` was within 3 % where it said how sure it was, after `SURE_AFTER` trials."""
    said = _sure(runs, tuned=tuned)
    if said.empty:
        return ""
    lines = [
        "| said to be within 3 % with probability | times | said in the mean | was | the belief's own |",
        "|---|---|---|---|---|",
    ]
    said = said.assign(said=[corrected(p, DRAWS) for p in said["sure"]])
    for low, high in ((0.0, 0.6), (0.6, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1.01)):
        group = said[(said["said"] >= low) & (said["said"] < high)]
        if len(group):
            right = np.mean(group["recommended_regret"] <= 0.03)
            own, mean = group["sure"].mean(), group["said"].mean()
            lines.append(
                f"| {low:.2f} to {min(high, 1):.2f} | {len(group)} | {mean:.2f} | {right:.2f} | {own:.2f} |"
            )
    was = said["recommended_regret"].to_numpy() <= 0.03
    if tuned and len(was) >= LEAST_FITTED and was.any() and not was.all():
        offset, slope = platt(said["sure"].to_numpy(), was)
        in_use = f"{OFFSET:.2f} + {SLOPE:.2f} · logit p (has/search/confidence.py)"
        lines += ["", f"Said is logit q = {in_use}; these runs alone give {offset:.2f} + {slope:.2f}."]
    return "\n".join(lines) + "\n"


def _sure(runs: pd.DataFrame, *, tuned: bool) -> pd.DataFrame:
    of_auto = (runs["strategy"] == "auto") & (runs["bias"].isin(TUNED) == tuned)
    told = runs[of_auto & runs["sure"].notna() & runs["trial"].isin(SURE_AFTER)]
    return told.astype({"sure": float})  # an object where others, which say nothing, come beside


def platt(said: np.ndarray, was: np.ndarray) -> tuple[float, float]:
    """(offset, slope) of the logistic regression of `was` on logit `said`, by maximum likelihood."""
    held = np.clip(said, 0.5 / DRAWS, 1 - 0.5 / DRAWS)
    logit = np.log(held / (1 - held))
    sign = np.where(was, 1.0, -1.0)
    found = minimize(lambda x: np.logaddexp(0.0, -sign * (x[0] + x[1] * logit)).mean(), (0.0, 1.0))
    return float(found.x[0]), float(found.x[1])


def _stops(each: pd.DataFrame) -> str:
    own = each[each["strategy"] == "auto"]
    if own.empty or "stopped_after" not in own:
        return ""
    lines = ["| worlds | runs | trials: median / p90 | mean regret there |", "|---|---|---|---|"]
    for name, group in (
        ("not tuned on", own[~own["bias"].isin(TUNED)]),
        ("tuned on", own[own["bias"].isin(TUNED)]),
    ):
        if len(group):
            trials = [_quantile(group["stopped_after"], q) for q in (0.5, 0.9)]
            regret = f"{100 * group['regret_stopped'].mean():.2f} %"
            lines.append(_row([name, str(len(group)), " / ".join(trials), regret]))
    return "\n".join(lines) + "\n"


def _regrets(runs: pd.DataFrame) -> str:
    lines = {}
    for strategy, group in runs.groupby("strategy"):
        mean = 100 * group.groupby("trial")["recommended_regret"].mean()
        lines[str(strategy)] = (mean.index.to_list(), mean.to_list())
    return curves("Mean regret of the recommended deployment", "trials", "% below the best", lines)


def _hits(runs: pd.DataFrame) -> str:
    trials = list(range(1, int(runs["trial"].max()) + 1))
    lines = {
        str(strategy): (trials, [100 * float(np.mean(group["within_3"] <= n)) for n in trials])
        for strategy, group in per_run(runs).groupby("strategy")
    }
    return curves("Runs that had tried a point within 3 % of the best", "trials", "% of runs", lines)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _quantile(trials: pd.Series, q: float) -> str:
    ordered = np.sort(trials.to_numpy())
    value = ordered[min(len(ordered) - 1, int(np.ceil(q * len(ordered))) - 1)]
    return ">40" if np.isinf(value) else f"{value:g}"

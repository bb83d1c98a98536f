"""`python -m benchmarks.search [--quick] [--out DIR]`: run what is missing, then tables and plots.

Every finished block of runs is a parquet file in DIR, so that the benchmark is interrupted and continued
at will; with `--only` and `--seeds` a part of it is run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from benchmarks.search.problems import PROFILES, Cell, World
from benchmarks.search.strategies import ARMS, SLOW, STRATEGIES, Plan, run
from benchmarks.search.summary import write_summary

GPUS = (8, 16)
BUDGET, BIASES, SEEDS, BLOCK = 40, 10, 20, 2
"""Trials of a run; worlds of each (modality, GPUs); runs in each world; runs kept together in a file.

The slow strategies take one block of each world: 120 paired runs.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/search-benchmark"))
    parser.add_argument("--quick", action="store_true", help="one small world, a few trials: does it run?")
    parser.add_argument(
        "--only", default=",".join((*STRATEGIES, *ARMS)), help="strategies, separated by commas"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--biases", type=int, default=BIASES)
    parser.add_argument("--cells", default="", help="only cells whose name begins with this")
    parser.add_argument(
        "--for-s", type=float, default=1e9, help="begin no block of runs after so many seconds"
    )
    parser.add_argument(
        "--tables", type=Path, help="also write the tables and plots kept in docs to this folder"
    )
    asked = parser.parse_args(arguments)
    cells = [
        Cell(modality, gpus, bias) for bias in range(asked.biases) for gpus in GPUS for modality in PROFILES
    ]
    budget, seeds = BUDGET, asked.seeds
    if asked.quick:
        cells, budget, seeds = [Cell("image", 4, 0)], 8, 1
    cells = [cell for cell in cells if cell.name.startswith(asked.cells)]
    begin = time.monotonic()
    for cell, strategy, block in _missing(cells, asked.only.split(","), seeds, asked.out):
        if time.monotonic() - begin > asked.for_s:
            sys.exit(75)  # as sysexits.h has it: not finished, to be asked again
        _run_block(cell, strategy, block, min(BLOCK, seeds), budget, asked.out)
    runs = _collected(asked.out)
    write_summary(runs, asked.tables or asked.out)


def _missing(
    cells: Sequence[Cell], strategies: Sequence[str], seeds: int, out: Path
) -> Iterator[tuple[Cell, str, int]]:
    for block in range(-(-seeds // BLOCK)):
        for cell in cells:
            for strategy in strategies:
                if (block == 0 or strategy not in (*SLOW, *ARMS)) and not _path(
                    out, cell, strategy, block
                ).exists():
                    yield cell, strategy, block


def _path(out: Path, cell: Cell, strategy: str, block: int) -> Path:
    return out / "runs" / f"{cell.name}.{strategy}.{block:02d}.parquet"


_plans: dict[Cell, Plan] = {}


def _run_block(cell: Cell, strategy: str, block: int, size: int, budget: int, out: Path) -> None:
    if cell not in _plans:
        _plans.clear()  # one at a time: a plan keeps a simulator
        _plans[cell] = Plan(World(cell, out))
    rows = []
    for seed in range(block * BLOCK, block * BLOCK + size):
        begin = time.process_time()
        steps = run(strategy, _plans[cell], seed, budget)
        cpu_s = time.process_time() - begin
        where = {"cell": cell.name, "modality": cell.modality, "gpus": cell.gpus, "bias": cell.bias}
        rows += [
            {**where, "strategy": strategy, "seed": seed, "cpu_s": cpu_s, **asdict(step)} for step in steps
        ]
    path = _path(out, cell, strategy, block)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    pd.DataFrame(rows).to_parquet(partial)
    partial.replace(path)
    print(f"{cell.name} {strategy} block {block}: {cpu_s:.1f} s a run", file=sys.stderr, flush=True)


def _collected(out: Path) -> pd.DataFrame:
    tables = [pd.read_parquet(path) for path in sorted((out / "runs").glob("*.parquet"))]
    return pd.concat(tables, ignore_index=True)


if __name__ == "__main__":
    main()

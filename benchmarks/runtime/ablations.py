"""What each mechanism is worth, live on the CPU device under the same load.

    python benchmarks/runtime/ablations.py partition --profile P.parquet --out DIR    about 2 minutes each, on a quiet machine
    python benchmarks/runtime/ablations.py batching  --profile P.parquet --out DIR
    python benchmarks/runtime/ablations.py routing   --profile P.parquet --out DIR
    python benchmarks/runtime/ablations.py table     --profile P.parquet --out DIR [--docs]

partition  encode and local prefill on one GPU: no partition (both on all SMs), always 50/50, or the split that
           follows the batch (from the profile)
batching   when an encode batch that is not full is launched: 10 or 50 ms after its first request, or by the
           Poisson gap (whose batches may wait a quarter of the TTFT bound at most), at three loads
routing    which prefills go remote: by the deficit counter, or by tossing a coin as often

Every run is a line of DIR/ablations.jsonl and is not repeated. Loads are shares of the simulated throughput of a
burst on the last variant of each set. Beside every live figure stands the simulated one (none for the coin, which
is no setting).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import has.gateway.scheduler as scheduler_module
from has.core.deployment import Deployment
from has.core.figures import figures
from has.core.profile import Profile
from has.core.records import NEVER, Records
from has.core.requests import Requests
from has.core.slo import Slo
from has.core.trial import TrialPlan
from has.core.workload import Workload
from has.files.jsonl import append_line, read_lines
from has.files.profile import load_profile
from has.runtime.serve import sm_table_of
from has.sim.draw import draw_requests
from has.sim.simulator import Simulator
from has.trial.local import LocalExecutor

MODEL = "tiny-image"
SEED = 11
DOCS = Path(__file__).parents[2] / "docs"
SLO = {"ttft_ms": 2000, "tpot_ms": 150}
WORKLOAD = {
    "version": 1,
    "name": "ablations",
    "arrivals": {"process": "poisson", "rate": 4.0},
    "requests": [
        {
            "modality": "image",
            "items": {"choice": {1: 0.7, 2: 0.3}},
            "media_tokens": 64,
            "prompt_tokens": {"uniform": [8, 40]},
            "output_tokens": {"uniform": [8, 24]},
        }
    ],
}


@dataclass(frozen=True)
class Variant:
    """A row of the table. `coin`: prefills go remote by chance, with the deployment's share."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    coin: bool = False


@dataclass(frozen=True)
class Ablation:
    deployment: dict[str, Any]
    variants: tuple[Variant, ...]
    loads: tuple[float, ...]
    requests: tuple[int, ...]
    """One count a load: short runs at low load would last longest."""


ABLATIONS = {
    "partition": Ablation(
        {"alloc": {"encode": 4, "prefill": 1, "decode": 3}, "encode_batch": 4, "prefill_offload": 0.2},
        (
            Variant("no partition", {"sm_table": "streams"}),
            Variant("static 50/50", {"sm_table": [{"batch": 1, "encode_sm": 50}]}),
            Variant("follows the batch"),
        ),
        (1.0, 0.8),
        (140, 140),
    ),
    "batching": Ablation(
        {"alloc": {"encode": 2, "prefill": 3, "decode": 3}, "encode_batch": 4, "prefill_offload": 1.0},
        (
            Variant("timeout 10 ms", {"fill_probability": 1.0, "max_wait_ms": 10}),
            Variant("timeout 50 ms", {"fill_probability": 1.0, "max_wait_ms": 50}),
            Variant("Poisson gap", {"max_wait_ms": 500}),
        ),
        (0.9, 0.6, 0.3),
        (120, 90, 60),
    ),
    "routing": Ablation(
        {
            "alloc": {"encode": 3, "prefill": 2, "decode": 3},
            "encode_batch": 2,
            "prefill_offload": 0.5,
            "dispatch": "round_robin",
        },
        (Variant("coin toss", coin=True), Variant("deficit counter")),
        (0.9, 0.7),
        (150, 150),
    ),
}


class Coin:
    """A `DeficitRouter` by chance."""

    def __init__(self, share: Any, *, unit: str) -> None:
        del unit
        self._share = float(share)
        self._rng = random.Random(SEED)
        self.remote = self.total = 0

    @property
    def deviation(self) -> float:
        return self.remote - self._share * self.total

    def route(self, *, cost: int) -> str:
        del cost
        self.total += 1
        remote = self._rng.random() < self._share
        self.remote += remote
        return "remote" if remote else "local"


@contextmanager
def tossing(coin: bool) -> Iterator[None]:
    """Let schedulers made meanwhile route by chance."""
    kept = scheduler_module.DeficitRouter
    if coin:
        scheduler_module.DeficitRouter = Coin  # type: ignore[misc,assignment]  # an experiment, not a setting
    try:
        yield
    finally:
        scheduler_module.DeficitRouter = kept  # type: ignore[misc]  # likewise


def queue_variance(records: Records) -> dict[str, float]:
    """Variance over time of the prefills that wait or run, remote and local, from first arrival to last."""
    first, last = records.requests.arrival_ns.min(), records.requests.arrival_ns.max()
    found = {}
    for route, name in ((1, "remote"), (0, "local")):
        mine = (
            (records.route == route) & (records.prefill_ready_ns != NEVER) & (records.first_token_ns != NEVER)
        )
        instants = np.concatenate([records.prefill_ready_ns[mine], records.first_token_ns[mine]])
        steps = np.concatenate([np.ones(mine.sum()), -np.ones(mine.sum())])
        order = np.argsort(instants, kind="stable")
        at = np.clip(np.concatenate([[first], instants[order], [last]]), first, last)
        length = np.concatenate([[0.0], np.cumsum(steps[order])])
        weight = np.diff(at) / max(1, last - first)
        mean = float((weight * length).sum())
        found[name] = float((weight * (length - mean) ** 2).sum())
    return found


def brief(records: Records, slo: Slo) -> dict[str, Any]:
    shown = figures(records, slo)
    return {
        "throughput_rps": shown["throughput_rps"],
        "goodput_rps": shown["goodput_rps"],
        "attainment": shown["attainment"],
        "ttft_ms": shown["ttft_ms"]["mean"],
        "ttft_p90_ms": shown["ttft_ms"]["p90"],
        "mean_batch": shown["stages"]["encode"]["mean_batch"],
        "variance": queue_variance(records),
    }


class Bench:
    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.slo = Slo(**SLO)
        self.workload = Workload.model_validate(WORKLOAD)

    @cached_property
    def simulator(self) -> Simulator:
        return Simulator(self.profile)

    def deployment(self, ablation: Ablation, variant: Variant) -> Deployment:
        common = {"version": 1, "model": MODEL, "topology": "disaggregated", "gpus": 8, "slo": SLO}
        made = Deployment.model_validate({**common, **ablation.deployment, **variant.fields})
        return made.model_copy(update={"sm_table": sm_table_of(made, self.profile)})

    def sent(self, ablation: Ablation, load: float) -> tuple[Requests, float]:
        """The arrivals at a load, the same for every variant, and their rate."""
        count = ablation.requests[ablation.loads.index(load)]
        drawn = draw_requests(self.workload, requests=count, seed=SEED)
        burst = replace(drawn, arrival_ns=np.zeros_like(drawn.arrival_ns))
        last = self.deployment(ablation, ablation.variants[-1])
        full = self.simulated(last, burst, 1e3)["throughput_rps"]
        return draw_requests(self.workload, rate=load * full, requests=count, seed=SEED), load * full

    def simulated(
        self, deployment: Deployment, sent: Requests, rate: float, seed: int = SEED
    ) -> dict[str, Any]:
        records = self.simulator.run(deployment, self.simulator.prepare(sent, seed), rate=rate)
        return brief(records, self.slo)


def rows(out: Path) -> list[dict[str, Any]]:
    path = out / "ablations.jsonl"
    return list(read_lines(path)) if path.exists() else []


def measure(bench: Bench, name: str, out: Path, load: float | None) -> None:
    ablation = ABLATIONS[name]
    done = {(row["ablation"], row["variant"], row["load"]) for row in rows(out)}
    share = bench.profile.metadata.model_extra["cpu_share"]
    executor: LocalExecutor | None = None
    try:
        for level in ablation.loads:
            sent, rate = bench.sent(ablation, level)
            for variant in ablation.variants:
                if (name, variant.name, level) in done or load not in (None, level):
                    continue
                executor = executor or LocalExecutor(MODEL, 8, profile=bench.profile, total_share=share)
                deployment = bench.deployment(ablation, variant)
                with tossing(variant.coin):
                    outcome = executor.run(TrialPlan(deployment, sent, rate, bench.slo, seed=SEED))
                row = {"ablation": name, "variant": variant.name, "load": level, "rate": rate}
                if outcome.figures is None:
                    print(f"{name}, {variant.name} at {level}: {outcome.reason}", file=sys.stderr)
                    continue
                assert outcome.records is not None
                row |= {"label": deployment.label, "live": brief(outcome.records, bench.slo)}
                print(json.dumps(row), file=sys.stderr, flush=True)
                append_line(out / "ablations.jsonl", row)
    finally:
        if executor is not None:
            executor.close()


def table(bench: Bench, found: list[dict[str, Any]]) -> str:
    lines = [
        "# Ablations, live\n",
        "`python benchmarks/runtime/ablations.py`: tiny-image on eight virtual GPUs, the same arrivals for all variants of a load."
        " Cells are live / simulated; a load is a share of the simulated throughput of a burst on the last variant.",
    ]
    for name, ablation in ABLATIONS.items():
        mine = [row for row in found if row["ablation"] == name]
        if not mine:
            continue
        order = [variant.name for variant in ablation.variants]
        mine.sort(key=lambda row: (-row["load"], order.index(row["variant"])))
        variance = name == "routing"
        heads = [
            "load",
            "variant",
            "goodput, req/s",
            "attainment",
            "TTFT mean, ms",
            "TTFT p90, ms",
            "mean encode batch",
        ]
        if variance:
            heads += ["variance of prefills at remote pool", "at encode workers"]
        lines += [f"\n## {name.capitalize()}: {mine[0]['label']}\n", _line(heads), "|" + "---|" * len(heads)]
        lines += [_line(_cells(bench, ablation, row, variance)) for row in mine]
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(bench: Bench, ablation: Ablation, row: dict[str, Any], variance: bool) -> list[str]:
    variant = next(v for v in ablation.variants if v.name == row["variant"])
    sent, rate = bench.sent(ablation, row["load"])
    live = row["live"]
    there = None if variant.coin else bench.simulated(bench.deployment(ablation, variant), sent, rate)
    cells = [f"{row['load']:g}", row["variant"]]
    for figure, digits in (
        ("goodput_rps", 2),
        ("attainment", 2),
        ("ttft_ms", 0),
        ("ttft_p90_ms", 0),
        ("mean_batch", 2),
    ):
        simulated = "–" if there is None else f"{there[figure]:.{digits}f}"
        cells.append(f"{live[figure]:.{digits}f} / {simulated}")
    if variance:
        for route in ("remote", "local"):
            simulated = "–" if there is None else f"{there['variance'][route]:.2f}"
            cells.append(f"{live['variance'][route]:.2f} / {simulated}")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=(*ABLATIONS, "table"))
    parser.add_argument("--profile", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--load", type=float, help="one load")
    parser.add_argument("--docs", action="store_true", help="write docs/ablations.md")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(load_profile(arguments.profile))
    if arguments.what != "table":
        measure(bench, arguments.what, arguments.out, arguments.load)
    text = table(bench, rows(arguments.out))
    if arguments.docs:
        (DOCS / "ablations.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

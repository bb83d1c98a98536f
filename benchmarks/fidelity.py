"""Simulated against live: the same arrivals through the simulator and through virtual GPUs.

    python benchmarks/fidelity.py --profile P.parquet --out DIR [--only NAME] [--load L]   measure, one line a run
    python benchmarks/fidelity.py --out DIR --table                                        the table, as Markdown

The profile must have been measured on this machine under the nominal table in force (`has profile`).
Runs already in DIR are not repeated. A run counts only if its validity gate passed; of a run that
did not, the reason is shown.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from has.core.deployment import Deployment
from has.core.figures import figures
from has.core.profile import Profile
from has.core.requests import Requests
from has.core.slo import Slo
from has.core.trial import TrialPlan
from has.core.workload import Workload
from has.files.jsonl import append_line, read_lines
from has.files.profile import load_profile
from has.files.validate import validate
from has.files.yaml import load_yaml
from has.sim.draw import draw_requests
from has.sim.simulator import Simulator
from has.trial.live_load import fitted
from has.trial.local import LocalExecutor

CONFIGURATIONS = Path(__file__).with_name("fidelity.yaml")
WITHIN = {"throughput": 0.05, "ttft": 0.05, "tpot": 0.05, "attainment": 7.0}


def deployments(config: dict[str, Any]) -> dict[str, Deployment]:
    common = {"version": 1, "model": config["model"], "slo": config["slo"]}
    return {
        name: validate(
            Deployment, {**common, "gpus": sum(fields["alloc"].values()), **fields}, str(CONFIGURATIONS)
        )
        for name, fields in config["deployments"].items()
    }


def simulated(
    simulator: Simulator, deployment: Deployment, requests: Requests, rate: float, seed: int, slo: Slo
) -> dict[str, Any]:
    records = simulator.run(deployment, simulator.prepare(requests, seed), rate=rate)
    return figures(records, slo)


SATURATION = 2.0
"""Times the throughput of a burst. A burst itself would not do: whoever is preprocessed first is dispatched first, and
of a hundred that come at once that order is chance, in life."""


def arrivals(requests: Requests, load: str, saturated_rps: float) -> tuple[Requests, float]:
    """The list at a load, Poisson at a multiple of the simulated saturated throughput, and the rate it comes at."""
    rate = saturated_rps * (SATURATION if load == "saturated" else float(load))
    mean = requests.mean_rate
    assert mean is not None
    first = requests.arrival_ns[0]
    stretched = np.rint((requests.arrival_ns - first) * (mean / rate)).astype(np.int64)
    return replace(requests, arrival_ns=stretched), rate


def brief(shown: dict[str, Any]) -> dict[str, float]:
    return {
        "throughput_rps": shown["throughput_rps"],
        "ttft_ms": shown["ttft_ms"]["mean"],
        "ttft_p90_ms": shown["ttft_ms"]["p90"],
        "tpot_ms": shown["tpot_ms"]["mean"],
        "attainment": shown["attainment"],
    }


def measure(config: dict[str, Any], profile: Profile, out: Path, only: str | None, load: str | None) -> None:
    slo = validate(Slo, config["slo"], str(CONFIGURATIONS))
    workload = validate(Workload, config["workload"], str(CONFIGURATIONS))
    seed = config["seed"]
    requests = fitted(draw_requests(workload, requests=config["requests"], seed=seed), config["model"])
    simulator = Simulator(profile)
    done = {(row["deployment"], row["load"]) for row in rows(out)}
    executor = None
    try:
        for name, deployment in deployments(config).items():
            burst = replace(requests, arrival_ns=np.zeros_like(requests.arrival_ns))
            rate = simulated(simulator, deployment, burst, 1e3, seed, slo)["throughput_rps"]
            for level in map(str, config["loads"]):
                if (name, level) in done or only not in (None, name) or load not in (None, level):
                    continue
                sent, in_force = arrivals(requests, level, rate)
                expected = simulated(simulator, deployment, sent, in_force, seed, slo)
                executor = executor or LocalExecutor(
                    config["model"], 8, profile=profile, total_share=profile.metadata.model_extra["cpu_share"]
                )
                outcome = executor.run(TrialPlan(deployment, sent, in_force, slo, seed=seed))
                row = {
                    "deployment": name,
                    "label": deployment.label,
                    "load": level,
                    "rate": in_force,
                    "state": outcome.state,
                    "reason": outcome.reason,
                    "simulated": brief(expected),
                    "live": None if outcome.figures is None else brief(dict(outcome.figures)),
                    "gate": outcome.telemetry.get("gate"),
                    "cores_used": outcome.telemetry.get("cores_used"),
                    "stages": outcome.telemetry.get("stages"),
                }
                print(json.dumps(row), file=sys.stderr, flush=True)
                if outcome.figures is not None:
                    append_line(out / "fidelity.jsonl", row)
    finally:
        if executor is not None:
            executor.close()


def rows(out: Path) -> list[dict[str, Any]]:
    path = out / "fidelity.jsonl"
    return list(read_lines(path)) if path.exists() else []


def table(found: list[dict[str, Any]]) -> str:
    lines = [
        "| deployment | load | throughput, req/s | TTFT mean, ms | TTFT p90, ms | TPOT mean, ms | attainment |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found:
        there, here = row["simulated"], row["live"]

        def cell(
            name: str, digits: int, there: dict[str, float] = there, here: dict[str, float] = here
        ) -> str:
            off = 100 * (here[name] / there[name] - 1)
            return f"{here[name]:.{digits}f} / {there[name]:.{digits}f} ({off:+.1f} %)"

        off = 100 * (here["attainment"] - there["attainment"])
        share = f"{here['attainment']:.2f} / {there['attainment']:.2f} ({off:+.0f})"
        cells = [
            f"{row['deployment']} ({row['label']})",
            row["load"],
            cell("throughput_rps", 3),
            cell("ttft_ms", 0),
            cell("ttft_p90_ms", 0),
            cell("tpot_ms", 1),
            share,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *misses(found)])


def misses(found: list[dict[str, Any]]) -> list[str]:
    said = []
    for row in found:
        there, here = row["simulated"], row["live"]
        checks = {"throughput_rps": WITHIN["throughput"]}
        if row["load"] != "saturated":
            checks = {"ttft_ms": WITHIN["ttft"], "tpot_ms": WITHIN["tpot"]}
            off = 100 * abs(here["attainment"] - there["attainment"])
            if off > WITHIN["attainment"]:
                said.append(f"- {row['deployment']} at {row['load']}: attainment is {off:.1f} points off")
        for name, bound in checks.items():
            off = here[name] / there[name] - 1
            if abs(off) > bound:
                said.append(f"- {row['deployment']} at {row['load']}: {name} is {100 * off:+.1f} % off")
    return said or ["Every figure is within its bound."]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only")
    parser.add_argument("--load")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(rows(arguments.out)))
        return
    config = load_yaml(CONFIGURATIONS)
    arguments.out.mkdir(parents=True, exist_ok=True)
    measure(config, load_profile(arguments.profile), arguments.out, arguments.only, arguments.load)


if __name__ == "__main__":
    main()

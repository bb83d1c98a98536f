"""Simulated against live: the same arrivals through the simulator and through virtual GPUs.

    python benchmarks/fidelity.py --out DIR                     all of it, about 17 minutes on a quiet machine
    python benchmarks/fidelity.py --out DIR --only NAME         one configuration (again and again: what is done is kept)
    python benchmarks/fidelity.py --out DIR --again             the same runs once more: what chance makes of a ranking
    python benchmarks/fidelity.py --out DIR --table             the tables and the plot of what is there
    python benchmarks/fidelity.py --out DIR --table --docs      into docs/fidelity.md and docs/fidelity.svg

DIR/profile.parquet is measured first if it is not there (`has profile --quick`, at .8 of the cores unless HAS_CPU_SHARE says
otherwise); it must be of this machine. Every live run is a line of DIR/fidelity.jsonl, with its records beside it; runs already there are not
repeated. A run counts only if its validity gate passed; one that did not is shown with the reason, and tried anew by
the next call.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fidelity_dispatch import as_dispatched
from fidelity_plot import plot
from fidelity_tables import Comparison, document

from has.core.deployment import Deployment
from has.core.figures import figures
from has.core.profile import Profile
from has.core.records import COLUMNS, NEVER, Records
from has.core.requests import Requests
from has.core.slo import Slo
from has.core.stage import Beside
from has.core.trial import TrialPlan
from has.core.workload import Workload
from has.files.jsonl import append_line, read_lines
from has.files.profile import load_profile
from has.files.records import save_records
from has.files.validate import validate
from has.files.yaml import load_yaml
from has.runtime.serve import sm_table_of
from has.sim.draw import draw_requests
from has.sim.simulator import Simulator
from has.trial.live_load import fitted
from has.trial.local import LocalExecutor

CONFIGURATIONS = Path(__file__).with_name("fidelity.yaml")
DOCS = Path(__file__).parents[1] / "docs"
SATURATION = 2.0
"""Times the throughput of a burst. A burst itself would not do: whoever is preprocessed first is dispatched first, and
of a hundred that come at once that order is chance, in life."""
DISPATCH_SEEDS = 100


def brief(shown: dict[str, Any]) -> dict[str, float]:
    return {
        "throughput_rps": shown["throughput_rps"],
        "goodput_rps": shown["goodput_rps"],
        "ttft_ms": shown["ttft_ms"]["mean"],
        "ttft_p90_ms": shown["ttft_ms"]["p90"],
        "tpot_ms": shown["tpot_ms"]["mean"],
        "attainment": shown["attainment"],
    }


class Plan:
    """The committed configurations under one profile: who is sent what."""

    def __init__(self, profile: Profile, requests: int | None = None) -> None:
        config = load_yaml(CONFIGURATIONS)
        where = str(CONFIGURATIONS)
        self.profile = profile
        self.model: str = config["model"]
        self.seed: int = config["seed"]
        self.loads = [str(load) for load in config["loads"]]
        self.slo = validate(Slo, config["slo"], where)
        workload = validate(Workload, config["workload"], where)
        drawn = draw_requests(workload, requests=requests or config["requests"], seed=self.seed)
        self.requests = fitted(drawn, self.model)
        common = {"version": 1, "model": self.model, "slo": config["slo"]}
        self.deployments: dict[str, Deployment] = {}
        for name, fields in config["deployments"].items():
            gpus = sum(fields["alloc"].values())
            deployment = validate(Deployment, {**common, "gpus": gpus, **fields}, where)
            if deployment.topology == "disaggregated":
                # Named, so that a profile without beside rows is asked about the same deployment.
                deployment = deployment.model_copy(update={"sm_table": sm_table_of(deployment, profile)})
            self.deployments[name] = deployment

    @cached_property
    def simulator(self) -> Simulator:
        return Simulator(self.profile)

    @cached_property
    def simulator_alone(self) -> Simulator:
        """Of a planner whose profile knows every stage alone only."""
        rows = tuple(row for row in self.profile.rows if row.beside == Beside.NONE)
        return Simulator(self.profile.model_copy(update={"rows": rows}))

    def rate(self, name: str, load: str) -> float:
        """Requests per second offered: a multiple of the simulated throughput of a burst."""
        burst = replace(self.requests, arrival_ns=np.zeros_like(self.requests.arrival_ns))
        full = self.simulated(self.simulator, name, burst, 1e3)["throughput_rps"]
        return full * (SATURATION if load == "saturated" else float(load))

    def at(self, rate: float) -> Requests:
        """The list, stretched to `rate`."""
        mean = self.requests.mean_rate
        assert mean is not None
        arrivals = self.requests.arrival_ns
        return replace(
            self.requests, arrival_ns=np.rint((arrivals - arrivals[0]) * (mean / rate)).astype(np.int64)
        )

    def simulated(
        self, simulator: Simulator, name: str, requests: Requests, rate: float, seed: int | None = None
    ) -> dict[str, float]:
        prepared = simulator.prepare(requests, self.seed if seed is None else seed)
        return brief(figures(simulator.run(self.deployments[name], prepared, rate=rate), self.slo))

    def as_dispatched(
        self, name: str, requests: Requests, rate: float, live: Records
    ) -> dict[str, float] | None:
        """Simulated with the workers that `live` drew; None where nothing is drawn, or not so."""
        deployment = self.deployments[name]
        if deployment.dispatch != "random":
            return None
        prepared = self.simulator.prepare(requests, self.seed)
        records = as_dispatched(self.simulator, deployment, prepared, live, rate)
        return None if records is None else brief(figures(records, self.slo))


FIRST, AGAIN = "fidelity.jsonl", "again.jsonl"


def measure(plan: Plan, out: Path, only: str | None, load: str | None, runs: str = FIRST) -> None:
    done = {(row["deployment"], row["load"]) for row in rows(out, runs)}
    executor: LocalExecutor | None = None
    try:
        for name, deployment in plan.deployments.items():
            for level in plan.loads:
                if (name, level) in done or only not in (None, name) or load not in (None, level):
                    continue
                rate = plan.rate(name, level)
                executor = executor or LocalExecutor(
                    plan.model,
                    8,
                    profile=plan.profile,
                    total_share=plan.profile.metadata.model_extra["cpu_share"],
                )
                outcome = executor.run(TrialPlan(deployment, plan.at(rate), rate, plan.slo, seed=plan.seed))
                row = {
                    "deployment": name,
                    "label": deployment.label,
                    "load": level,
                    "rate": rate,
                    "requests": len(plan.requests),
                    "state": outcome.state,
                    "reason": outcome.reason,
                    "live": None if outcome.figures is None else brief(dict(outcome.figures)),
                    "gate": outcome.telemetry.get("gate"),
                    "cores_used": outcome.telemetry.get("cores_used"),
                    "stages": outcome.telemetry.get("stages"),
                }
                print(json.dumps(row), file=sys.stderr, flush=True)
                if outcome.figures is None:
                    append_line(out / "refused.jsonl", row)
                    continue
                assert outcome.records is not None
                if runs == FIRST:
                    save_records(outcome.records, out / f"{name}-{level}.parquet")
                append_line(out / runs, row)
    finally:
        if executor is not None:
            executor.close()


def rows(out: Path, name: str = FIRST) -> list[dict[str, Any]]:
    path = out / name
    return list(read_lines(path)) if path.exists() else []


def live_records(out: Path, row: dict[str, Any], requests: Requests) -> Records:
    table = pd.read_parquet(out / f"{row['deployment']}-{row['load']}.parquet")
    records = Records.empty(requests)
    for column in COLUMNS:
        if column == "route":  # nobody draws it
            continue
        instant = column.endswith("_ns")
        values = table[column.replace("_ns", "_s")].astype("float64") * (1e9 if instant else 1)
        setattr(records, column, np.rint(values.fillna(NEVER)).to_numpy(np.int64))
    return records


def compare(
    plan: Plan, out: Path, found: list[dict[str, Any]], again: list[dict[str, Any]]
) -> list[Comparison]:
    """Each live run beside what the simulator says of the same arrivals, in the order of the file."""
    compared = []
    repeated = {(row["deployment"], row["load"]): row["live"] for row in again}
    order = list(plan.deployments)
    for row in sorted(found, key=lambda r: (order.index(r["deployment"]), plan.loads.index(r["load"]))):
        name, rate = row["deployment"], row["rate"]
        sent = plan.at(rate)
        seeds = range(DISPATCH_SEEDS) if plan.deployments[name].dispatch == "random" else ()
        compared.append(
            Comparison(
                name=name,
                label=row["label"],
                load=row["load"],
                live=row["live"],
                simulated=plan.simulated(plan.simulator, name, sent, rate),
                alone=plan.simulated(plan.simulator_alone, name, sent, rate),
                dispatched=[plan.simulated(plan.simulator, name, sent, rate, seed) for seed in seeds],
                again=repeated.get((name, row["load"])),
                drawn=plan.as_dispatched(name, sent, rate, live_records(out, row, sent)),
            )
        )
    return compared


def profile_of(out: Path) -> Profile:
    path = out / "profile.parquet"
    if not path.exists():
        model = load_yaml(CONFIGURATIONS)["model"]
        command = ["profile", "--device", "cpu", "--model", model, "--quick", "--out", str(path)]
        environment = {"HAS_CPU_SHARE": "0.8", **os.environ}
        subprocess.run([sys.executable, "-m", "has", *command], check=True, env=environment)
    return load_profile(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", help="one configuration")
    parser.add_argument("--load", help="one load")
    parser.add_argument("--requests", type=int, help="for a short look: fewer requests a run")
    parser.add_argument("--again", action="store_true", help="run what was run once more")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--docs", action="store_true", help="write table and plot into docs/")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    plan = Plan(profile_of(arguments.out), arguments.requests)
    if not arguments.table:
        measure(plan, arguments.out, arguments.only, arguments.load, AGAIN if arguments.again else FIRST)
    compared = compare(plan, arguments.out, rows(arguments.out), rows(arguments.out, AGAIN))
    done = {(c.name, c.load) for c in compared}
    refused = [r for r in rows(arguments.out, "refused.jsonl") if (r["deployment"], r["load"]) not in done]
    text, picture = document(compared, refused, len(plan.requests)), plot(compared)
    folder = DOCS if arguments.docs else arguments.out
    (folder / "fidelity.md").write_text(text)
    (folder / "fidelity.svg").write_text(picture)
    print(text)


if __name__ == "__main__":
    main()

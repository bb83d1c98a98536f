"""From a deployment to the artefacts of an engine, and the score of what is really emitted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.workload import Workload
from has.engine.artefacts import dynamo, llmd, sglang, vllm
from has.engine.artefacts.artefact import Artefact
from has.engine.express import NAMES
from has.engine.place import make_plan
from has.engine.plan import EngineName, Plan
from has.engine.sizes import sizes
from has.files.atomic import write_atomic
from has.files.folders import make_folder
from has.latency.lookup import LatencyModel
from has.policy import SmPartitioner
from has.sim.run import simulate_run

RENDERERS: dict[EngineName, Callable[[Plan], list[Artefact]]] = {
    "vllm": vllm.render,
    "sglang": sglang.render,
    "dynamo": dynamo.render,
    "llm-d": llmd.render,
}
REQUESTS, MOST_REQUESTS = 3000, 60_000
TTFT_BOUNDS = 10
"""Traffic lasts so many at the least: a queue that only grows shows in none that is shorter."""


@dataclass(frozen=True, slots=True)
class Score:
    """Figures of the deployment as recommended and as emitted, under the same requests.

    rate        requests per second in force
    calibrated  the profile was measured on this very engine
    """

    asked: dict[str, Any]
    emitted: dict[str, Any]
    rate: float | None
    engine_of_profile: str
    calibrated: bool
    warnings: tuple[str, ...]


def plan_export(
    deployment: Deployment,
    engine: EngineName,
    workload: Workload,
    *,
    profile: Profile | None = None,
    sm_split: bool = False,
    front_port: int = 8000,
) -> Plan:
    """The plan of `deployment` on `engine`. `profile`, of the encode pool, gives the SM table where the deployment has none."""
    table = None
    if sm_split and deployment.sm_table is None and profile is not None and deployment.encode_batch:
        table = SmPartitioner.from_profile(
            profile, deployment.encode_slowdown_budget, deployment.encode_batch
        ).sm_table
    return make_plan(
        deployment,
        engine,
        sizes(workload, deployment.model),
        sm_split=sm_split,
        sm_table=table,
        front_port=front_port,
    )


def render(plan: Plan) -> list[Artefact]:
    """The files. Raises RunError where a command has a flag that its engine does not know."""
    return RENDERERS[plan.engine](plan)


def score(
    plan: Plan,
    profile: Profile | LatencyModel,
    workload: Workload,
    *,
    rate: float | None = None,
    seed: int = 0,
) -> Score:
    """Both deployments in the simulator, at what the deployment was recommended for.

    rate  requests per second; else the deployment's, else the workload's. A trace keeps its times unless it is given.
    """
    trace = workload.arrivals.process == "trace"
    if rate is None and not trace:
        rate = plan.asked.rate or workload.arrivals.rate
    lasting = math.ceil(TTFT_BOUNDS * plan.asked.slo.ttft_s * (rate or 0.0))
    requests = None if trace else min(max(REQUESTS, lasting), MOST_REQUESTS)
    runs = [
        simulate_run(d, profile, workload, rate=rate, requests=requests, seed=seed, slo=plan.asked.slo)
        for d in (plan.asked, plan.emitted)
    ]
    said = dict.fromkeys(warning for run in runs for warning in run.warnings)
    engine = profile.metadata.engine or "has"
    asked, emitted = (run.figures for run in runs)
    return Score(asked, emitted, runs[0].rate, engine, engine == plan.engine, tuple(said))


def write(artefacts: list[Artefact], folder: Path) -> list[Path]:
    """Write all into `folder`, each at once or not at all; scripts become executable. InputError where that is no folder."""
    make_folder(folder, "--out")
    written = []
    for artefact in artefacts:
        path = folder / artefact.name
        write_atomic(path, artefact.text)
        if artefact.executable:
            path.chmod(path.stat().st_mode | 0o111)
        written.append(path)
    return written


def status_of(plan: Plan) -> str:
    """One sentence on what is promised for the artefacts of this engine."""
    statuses = {
        "vllm": vllm.STATUS,
        "sglang": sglang.STATUS,
        "dynamo": dynamo.STATUS,
        "llm-d": llmd.STATUS.format(vllm="0.33.0"),
    }
    return f"{NAMES[plan.engine]} {plan.version}: {statuses[plan.engine]}"

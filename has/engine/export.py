"""From a deployment to the artefacts of an engine, and the score of what is really emitted."""

from __future__ import annotations

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
from has.policy import SmPartitioner
from has.sim.run import simulate

RENDERERS: dict[EngineName, Callable[[Plan], list[Artefact]]] = {
    "vllm": vllm.render,
    "sglang": sglang.render,
    "dynamo": dynamo.render,
    "llm-d": llmd.render,
}
REQUESTS = 3000


@dataclass(frozen=True, slots=True)
class Score:
    """Figures of the deployment as recommended and as emitted, under the same requests. `calibrated`: the
    profile was measured on this very engine."""

    asked: dict[str, Any]
    emitted: dict[str, Any]
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
    """The plan of `deployment` on `engine`. `profile` gives the SM table where the deployment has none."""
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


def score(plan: Plan, profile: Profile, workload: Workload, *, seed: int = 0) -> Score:
    """Both deployments in the simulator, at the rate and SLO in force."""
    slo = workload.slo or plan.asked.slo
    said: list[str] = []
    requests = None if workload.arrivals.process == "trace" else REQUESTS
    figures = [
        simulate(d, profile, workload, requests=requests, seed=seed, slo=slo, warnings=said)
        for d in (plan.asked, plan.emitted)
    ]
    engine = profile.metadata.engine or "has"
    return Score(figures[0], figures[1], engine, engine == plan.engine, tuple(dict.fromkeys(said)))


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

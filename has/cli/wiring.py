"""The one place that chooses adapters: which device, which profiler, which executor, which server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from has.cli.defaults import Defaults
from has.errors import InputError, MissingError

if TYPE_CHECKING:
    from has.cli.search_plan import SearchPlan
    from has.core.deployment import Deployment
    from has.core.profile import Profile
    from has.core.trial import Executor


def device(asked: str | None, defaults: Defaults) -> str:
    """`cuda` or `cpu`: what was asked, if it is here; for auto what this machine has."""
    if asked not in (None, "auto", "cpu", "cuda"):
        raise InputError(
            "no such device", where="argument", field="--device", value=asked, allowed="auto, cuda, cpu"
        )
    if asked == "cpu":
        return "cpu"
    from has.device.detect import detect

    here = {info.kind for info in detect()}
    if asked == "cuda":
        if "cuda" not in here:
            raise MissingError(
                "no CUDA device can be used here", mend="has doctor says what is missing; or --device cpu"
            )
        return "cuda"
    # Workers and trials of this version run on cpu; a profile is measured on cuda where that is asked for.
    why = (
        "a CUDA GPU is here too: has profile --device cuda measures it, but this version serves on cpu"
        if "cuda" in here
        else "this machine's"
    )
    defaults.note("--device", "cpu", why)
    return "cpu"


def required_model(model: str | None) -> str:
    """On CUDA there is no default model."""
    if model is None:
        raise InputError(
            "on cuda a model must be named",
            where="argument",
            field="--model",
            mend="has profile --device cuda --model Qwen/Qwen2.5-VL-7B-Instruct --quick",
        )
    return model


def profile(model: str, place: str, *, virtual_gpus: int | None, **options: Any) -> Profile:
    """Measure a profile; `options` are those of `has.profiler.run.profile_device`."""
    from has.profiler.run import profile_device

    if virtual_gpus is not None:
        options["virtual_gpus"] = virtual_gpus
    return profile_device(model, place, **options)


def serve(plan: Deployment, *, profile: Path | None, **options: Any) -> None:
    """Serve until told to stop; `options` are those of `has.runtime.serve.serve`."""
    from has.files.profile import load_profile
    from has.runtime.serve import serve as serve_on_bundled_runtime

    serve_on_bundled_runtime(plan, profile=None if profile is None else load_profile(profile), **options)


def planned_workers(plan: Deployment) -> list[tuple[str, str, int, str]]:
    """(process, pool, index, role) of every worker a server would start. Raises what starting them would."""
    from has.runtime.pool import plan_roles, refuse_unserved

    refuse_unserved(plan.model, plan.gpus)
    roles = plan_roles(plan, plan.gpus)
    return [(key, pool, index, str(message["role"])) for key, ((pool, index), message) in roles.items()]


def can_measure() -> bool:
    """Whether the runtime, and so the cpu device, is installed."""
    from importlib.util import find_spec

    return find_spec("torch") is not None and find_spec("transformers") is not None


def why_not_live(model: str, place: str, gpus: int) -> str:
    """Why live trials cannot run here, or nothing where they can."""
    from has.device.host import MAX_VIRTUAL_GPUS
    from has.models.names import is_bundled

    if place != "cpu":
        return "the profile is of a device that is not here"
    if not is_bundled(model):
        return f"{model} is none of the bundled models"
    if gpus > MAX_VIRTUAL_GPUS:
        return f"the cpu device has {MAX_VIRTUAL_GPUS} virtual GPUs"
    if not can_measure():
        return "the runtime is not installed: pip install 'has-epd[runtime]'"
    return ""


def executor(plan: SearchPlan) -> Executor:
    """What runs the trials of a search: workers on this machine, or the simulator."""
    from has.cli.console import complain

    if plan.engine == "vllm":
        from has.cli import engine

        asked = plan.arguments["workload"]
        workloads = list(asked) if isinstance(asked, list | tuple) else [asked]
        return engine.executor(
            plan.arguments["model"], plan.arguments["gpus"], workloads, plan.profile, complain
        )
    if plan.live:
        from has.trial.local import LocalExecutor

        return LocalExecutor(
            plan.arguments["model"], plan.arguments["gpus"], profile=plan.profile, say=complain
        )
    from has.files.profile import load_profile
    from has.search.pools import latency_of
    from has.trial.simulated import SimulatedExecutor

    own = None if plan.trial_profile is None else load_profile(plan.trial_profile)
    truth = latency_of(own or plan.profile, plan.arguments.get("pool_profiles") or {})
    return SimulatedExecutor(truth, noise=plan.trial_noise, seed=plan.arguments["seed"], trial_profile=own)

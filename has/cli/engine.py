"""What the commands do with engines: serve on them, search on them, profile them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from has.cli import options
from has.cli.console import Talk
from has.cli.defaults import Defaults
from has.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from has.core.deployment import Deployment
    from has.core.profile import Profile
    from has.core.space import SearchSpace
    from has.core.trial import Executor
    from has.core.workload import Workload
    from has.engine.sizes import Sizes

ENGINES = options.choice("local", "vllm")


def sizes_for(plan: Deployment, file: Path) -> Sizes | None:
    """What instances are made for: the workload of the run that made the deployment, or None."""
    from has.cli import inputs
    from has.engine.sizes import sizes
    from has.files.workload import load_workload

    run = inputs.run_of(plan, file)
    workload = None if run is None else run / "workload.yaml"
    return None if workload is None or not workload.is_file() else sizes(load_workload(workload), plan.model)


def serve(t: Talk, plan: Deployment, file: Path, *, attach: str | None, dry_run: bool, **rest: Any) -> None:
    """`has deploy --engine vllm`."""
    if (folder := rest["ec_dir"]) is not None and not folder.is_dir():
        raise InputError(
            "no such folder",
            where="argument",
            field="--ec-dir",
            value=str(folder),
            mend="the shared_storage_path of the instances' --ec-transfer-config, as it is seen from here",
        )
    if dry_run:
        _say_what_would_run(t, plan, file, attach)
        return
    from has.engine.vllm.serve import serve as serve_on_vllm

    serve_on_vllm(plan, attach=attach, sizes=sizes_for(plan, file), say=t.say, **rest)


def _say_what_would_run(t: Talk, plan: Deployment, file: Path, attach: str | None) -> None:
    """The commands, after the checks that starting them would make."""
    from has.engine.artefacts.artefact import shell_line
    from has.engine.vllm.commands import Site, command, environment
    from has.engine.vllm.fleet import live_plan
    from has.engine.vllm.serve import attached, default_sizes

    if attach is not None:
        urls = attached(attach, plan)
        rows = [(pool, index, url) for pool, index, url in urls.all()]
        t.result({"deployment": plan, "attached": rows}, "\n".join(f"{p} {i}: {u}" for p, i, u in rows))
        return
    sizes = sizes_for(plan, file) or default_sizes(plan.model)
    made = live_plan(plan, sizes)
    for change in made.changes:
        t.warn(str(change))
    site = Site(made.emitted.model, plan.model, "${EC_DIR}")
    lines = []
    for instance in made.instances:
        env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, instance.gpus))}
        env |= environment(instance, site, "127.0.0.1")
        words = ["env", *(f"{k}={v}" for k, v in env.items()), *command(instance, made, site, "127.0.0.1")]
        lines.append(shell_line(words))
    t.result({"deployment": plan, "commands": lines}, "\n".join(lines))


def space_for(asked: SearchSpace | None) -> SearchSpace:
    """What can be tried on vLLM: no prefill beside encode, so s = 1; the rest as asked."""
    from has.core.space import AllocRanges, OffloadRange, SearchSpace

    space = asked or SearchSpace(version=1)
    alloc = space.alloc
    if alloc.prefill is not None and alloc.prefill[1] < 1 and "disaggregated" in space.topologies:
        raise InputError(
            "vLLM needs prefill workers of its own", where="space", field="alloc.prefill", value=alloc.prefill
        )
    if not space.prefill_offload.min <= 1.0 <= space.prefill_offload.max:
        raise InputError(
            "on vLLM all prefill goes to its own pool",
            where="space",
            field="prefill_offload",
            allowed="a range that holds 1",
        )
    prefill = None if alloc.prefill is None else (max(1, alloc.prefill[0]), alloc.prefill[1])
    return space.model_copy(
        update={
            "prefill_offload": OffloadRange(min=1.0, max=1.0),
            "alloc": AllocRanges(encode=alloc.encode, prefill=prefill, decode=alloc.decode),
        }
    )


def named_model(model: str | None) -> str:
    """An engine has no default model."""
    if model is None:
        raise InputError(
            "a model must be named", where="argument", field="--model", mend="--model DIR, or its id"
        )
    return model


def refuse_with_vllm(trial_profile: object, trial_noise: object, pool_profile: object) -> None:
    """Options of simulated trials do not go with trials on engines."""
    given = {"--trial-profile": trial_profile, "--trial-noise": trial_noise, "--pool-profile": pool_profile}
    for name, value in given.items():
        if value is not None:
            raise InputError(
                "does not go with --on vllm", where="argument", field=name, mend="--on simulated"
            )


def profile_path(model: str) -> Path:
    """Where a profile of `model` on vLLM goes that was given no place."""
    return Path(f"profile-{Path(model).name}-vllm.parquet")


def profile_for_search(model: str, seed: int, t: Talk, defaults: Defaults) -> Profile:
    """The profile an earlier command measured here, else one that is measured now."""
    from has.files.profile import load_profile

    path = profile_path(model)
    if path.is_file():
        found = load_profile(path)
        if found.metadata.engine == "vllm" and found.metadata.model == model:
            defaults.note("--profile", path, "measured on vLLM before")
            return found
    defaults.note("--profile", path, f"none fits: has profile --engine vllm --model {model} runs first")
    defaults.tell(t)
    return profile(model, batch=None, tokens=None, seed=seed, out=path, progress=lambda _: None, say=t.say)


def warn_of_other(measured: Profile, t: Talk) -> None:
    """A score for another engine is uncalibrated."""
    if measured.metadata.engine != "vllm":
        name = measured.metadata.engine or "has"
        t.warn(
            f"the profile was made on {name}: predictions for vLLM are uncalibrated until trials correct them"
        )


def executor(
    model: str, gpus: int, workloads: list[Workload], profile: Profile, say: Callable[[str], None]
) -> Executor:
    """Trials on vLLM; instances hold the largest item of all workloads."""
    from has.engine.sizes import Sizes, sizes
    from has.trial.engine import EngineExecutor

    each = [sizes(workload, model) for workload in workloads]
    largest = Sizes(
        max(s.item_tokens for s in each),
        max(s.request_tokens for s in each),
        max(s.total_tokens for s in each),
        {kind: max(s.items.get(kind, 0) for s in each) for s in each for kind in s.items},
        all(s.bounded for s in each),
    )
    return EngineExecutor(model, gpus, largest, profile=profile, say=say)


def profile(
    model: str,
    *,
    batch: list[int] | None,
    tokens: list[int] | None,
    seed: int,
    out: Path,
    progress: Callable[[Any], None],
    say: Callable[[str], None],
) -> Profile:
    """Measure on running vLLM instances, and write."""
    from has.engine.vllm.install import installed
    from has.engine.vllm.profile import BATCHES, profile_engine
    from has.files.profile import save_profile

    measured = profile_engine(
        installed(), model, batches=batch or BATCHES, tokens=tokens, seed=seed, progress=progress, say=say
    )
    save_profile(measured, out)
    return measured

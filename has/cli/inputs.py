"""Where a command finds what it was not given: the model, a profile that fits, the example workload, a run's copies."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from has.cli.defaults import Defaults
from has.errors import HasError, InputError, MissingError

if TYPE_CHECKING:
    from has.core.deployment import Deployment
    from has.core.profile import Profile, ProfileMetadata
    from has.core.workload import Workload
    from has.latency.lookup import LatencyModel

EXAMPLE_MODEL, EXAMPLE_GPU = "qwen2.5-vl-7b", "h100"
CPU = "cpu (emulated)"
"""`device` of every profile that the cpu device made."""


def bundled_model(model: str | None, modality: str | None, defaults: Defaults) -> str:
    """The model to use on the cpu device: the one given, or the bundled one of the modality."""
    from has.models.names import BUNDLED

    if model is None:
        wanted = modality or "image"
        chosen = next(name for name, kind in BUNDLED.items() if kind == wanted)
        why = f"the bundled {wanted} model, as the device is cpu"
        return defaults.pick("--model", model, chosen, why)
    if modality is not None and BUNDLED.get(model, modality) != modality:
        raise InputError(
            f"{model} takes {BUNDLED[model]}",
            where="argument",
            field="--modality",
            value=modality,
            allowed=BUNDLED[model],
        )
    return model


def profile_path(model: str, device: str) -> Path:
    """Where a profile goes that was given no place."""
    return Path(f"profile-{model.replace('/', '--')}-{device}.parquet")


def fitting_profile(model: str, device: str, folder: Path = Path()) -> Path | None:
    """The newest profile in `folder`, its `profiles/` and its runs that fits model and device, or None.

    Fits means: made for this model on this device. For the cpu device that is this machine's CPU under
    the device model and the nominal table in force, for a profile of another machine, or from before the
    table was measured anew, foretells other times than live trials would show.
    """
    found = [
        (metadata.date or "", path.stat().st_mtime, str(path), path)
        for path, metadata in _here(folder)
        if metadata.model == model and fits(metadata, device)
    ]
    return max(found)[-1] if found else None


def _here(folder: Path) -> Iterator[tuple[Path, ProfileMetadata]]:
    """The profiles in a folder, its `profiles/` and its runs."""
    from has.files.profile import metadata_of

    for pattern in ("*.parquet", "profiles/*.parquet", "results/*/profile*.parquet"):
        for path in sorted(folder.glob(pattern)):
            with suppress(HasError):  # some other table
                yield path, metadata_of(path)


def fits(metadata: ProfileMetadata, device: str) -> bool:
    """Whether a profile is of this device: on cuda of a GPU as one that is here, on cpu of this very machine as it is paced now."""
    if device != "cpu":
        from has.device.detect import detect

        here = {info.name for info in detect() if info.kind == device}
        return metadata.source == "measured" and metadata.engine == "has" and metadata.device in here
    if metadata.device != CPU:
        return False
    from has.device import nominal
    from has.device.device_model import VIRTUAL_GPU

    extra = metadata.model_extra or {}
    table = nominal.kept(metadata.model)
    return (
        table is not None
        and extra.get("device_model_digest") == VIRTUAL_GPU.digest()
        and extra.get("nominal_digest") == table.digest()
    )


def shipped_profile(model: str) -> Path | None:
    """The measured profile of `model` that ships with HAS, or None."""
    return next((path for path, metadata in _shipped(model) if metadata.source == "measured"), None)


def shipped_estimates(model: str) -> dict[str, Path]:
    """GPU → the estimated profile of `model` (a name of the facts, part of one, or HF id) that ships for it."""
    from has.files import facts

    try:
        name = facts.find_model(model)["name"]
    except HasError:
        return {}
    return {metadata.device: path for path, metadata in _shipped(name) if metadata.source != "measured"}


def refuse_unmeasurable(model: str) -> None:
    """InputError for a model that the cpu device cannot measure, with a command that works in its place."""
    from has.files import facts
    from has.models.names import BUNDLED

    if model in BUNDLED:
        return
    try:
        name = facts.find_model(model)["name"]
        mend = f"estimate it: has profile --model {name} --gpu {EXAMPLE_GPU}"
    except HasError:
        mend = f"has profile --model {next(iter(BUNDLED))}"
    raise InputError(
        "the cpu device measures the bundled models alone",
        where="argument",
        field="--model",
        value=model,
        allowed=", ".join(BUNDLED),
        mend=mend,
    )


def how_to_get_a_profile(model: str) -> str:
    """What a person can do where no profile of `model` fits: take an estimate that ships, make one, measure."""
    from has.files import facts

    try:
        facts.find_model(model)
    except HasError:
        known = [*facts.similar_models(model), EXAMPLE_MODEL][0]
        return (
            "give --profile FILE, measured or computed elsewhere. Only models of the shipped facts can be estimated"
            f" here, for instance: has profile --model {known} --gpu {EXAMPLE_GPU}"
        )
    name = facts.find_model(model)["name"]
    found = {
        shlex.quote(str(path)): f"{told.device}, here" for path, told in _here(Path()) if told.model == name
    }
    found |= {path.stem: gpu for gpu, path in shipped_estimates(model).items()}
    if not found:
        return f"give --profile FILE, or estimate one: has profile --model {model} --gpu {EXAMPLE_GPU}"
    listed = "".join(f"\n    --profile {name}    {gpu}" for name, gpu in found.items())
    return (
        f"name the GPU by a profile that is here or ships (for another: has profile --model {model} --gpu NAME):"
        f"{listed}"
    )


def _shipped(model: str) -> Iterator[tuple[Path, ProfileMetadata]]:
    from has.files.profile import metadata_of
    from has.files.shipped import shipped

    try:
        paths = sorted(shipped("profiles").glob("*.parquet"))
    except MissingError:
        return
    for path in paths:
        metadata = metadata_of(path)
        if metadata.model == model:
            yield path, metadata


def example_workload(model: str) -> Path:
    """The shipped workload for a model: its own if it is bundled, else the one of its modality."""
    from has.files import facts
    from has.files.shipped import shipped
    from has.models.names import BUNDLED

    folder = shipped("workloads")
    if model in BUNDLED:
        return folder / f"{model}.yaml"
    try:
        modality = "audio" if facts.find_model(model)["encoder"].get("mel") else "image"
    except HasError:
        modality = "image"
    return folder / f"{modality}.yaml"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a deployment is judged with: a profile and a workload, and where they came from.

    `pools`: profiles of pools whose GPUs are of another type. `further`: the other workloads of its run, where no
    workload was given.
    """

    profile: Profile
    workload: Workload
    run: Path | None
    pools: dict[str, Profile] = field(default_factory=dict)
    further: tuple[Workload, ...] = ()

    @property
    def latency(self) -> LatencyModel:
        from has.search.pools import latency_of

        return latency_of(self.profile, self.pools)


def run_of(deployment: Deployment, file: Path) -> Path | None:
    """The run folder a deployment names in `evidence.run`, looked for from here and from beside the file."""
    run = (deployment.evidence or {}).get("run")
    if not isinstance(run, str) or not run:
        return None
    for place in (Path(run), file.resolve().parent / run, file.resolve().parent):
        with suppress(OSError):  # a name that no file can have is that of no run
            if (place / "manifest.json").is_file():
                return place
    return None


def profile_of(deployment: Deployment, file: Path) -> Path | None:
    """The profile to judge a deployment by: its run's copy, else the newest that fits, else a shipped one."""
    copy = _run_copy(run_of(deployment, file), "profile.parquet")
    return copy or fitting_profile(deployment.model, "cpu") or shipped_profile(deployment.model)


def evidence_for(
    deployment: Deployment,
    file: Path,
    profile: Path | None,
    workload: Path | None,
    defaults: Defaults,
    pools: Sequence[str] | None = None,
    *,
    all_workloads: bool = False,
) -> Evidence:
    """Profile and workload for a deployment: what was given, else its run's copies, else what fits and ships.

    A command takes one workload, the first of a run that was asked about several, unless it takes `all_workloads`.
    """
    from has.files.profile import load_profile
    from has.files.workload import load_workload
    from has.search.journal import further_workloads

    run = run_of(deployment, file)
    own = pool_profiles(pools)
    if profile is None and not own and run is not None:
        own = _kept_pool_profiles(run, defaults)
    if profile is None:
        profile = _run_copy(run, "profile.parquet")
        if profile is not None:
            defaults.note("--profile", profile, "the copy its run kept")
        else:
            profile = fitting_profile(deployment.model, "cpu") or shipped_profile(deployment.model)
            if profile is None:
                raise InputError(
                    f"no profile of {deployment.model} was named, and the deployment names no run that is here",
                    where=str(file),
                    field="evidence.run",
                    mend=how_to_get_a_profile(deployment.model),
                )
            defaults.note(
                "--profile", profile, "the newest that fits; the deployment names no run that is here"
            )
    others: list[Path] = []
    if workload is None:
        workload = _run_copy(run, "workload.yaml")
        if run is not None and workload is not None:
            others = further_workloads(run)
            count = 1 + len(others)
            if others and all_workloads:
                defaults.note("--workload", workload, f"and {len(others)} more: all that its run kept count")
            elif others:
                defaults.note("--workload", workload, f"the first of {count} that its run kept")
            else:
                defaults.note("--workload", workload, "the copy its run kept")
        else:
            workload = example_workload(deployment.model)
            defaults.note("--workload", workload, "the example for the model")
    further = tuple(map(load_workload, others)) if all_workloads else ()
    return Evidence(load_profile(profile), load_workload(workload), run, own, further)


def pool_profiles(given: Sequence[str] | None) -> dict[str, Profile]:
    """Pool → its profile, as `--pool-profile` names them."""
    from has.cli.options import as_pool_profile
    from has.files.profile import load_profile

    return {pool: load_profile(path) for pool, path in map(as_pool_profile, given or ())}


def _kept_pool_profiles(run: Path, defaults: Defaults) -> dict[str, Profile]:
    if not any(run.glob("profile-*.parquet")):
        return {}
    from has.search.journal import read_pool_profiles

    kept = read_pool_profiles(run)
    for pool in kept:
        defaults.note("--pool-profile", f"{pool}={run / f'profile-{pool}.parquet'}", "the copy its run kept")
    return kept


def _run_copy(run: Path | None, name: str) -> Path | None:
    return run / name if run is not None and (run / name).is_file() else None


def note_deployment_defaults(deployment: Deployment, defaults: Defaults, *, profile: bool = True) -> None:
    """Fields that change what happens and that the deployment file leaves open. `profile`: whether there is one."""
    from has.files.plain import short

    for name in ("fill_probability", "encode_slowdown_budget", "max_num_seqs", "dispatch", "first_token"):
        if name not in deployment.model_fields_set:
            defaults.note(name, short(getattr(deployment, name)), "the deployment file says nothing")
    if deployment.topology == "disaggregated" and deployment.sm_table is None:
        if profile:
            defaults.note("sm_table", "derived", "from the profile, within encode_slowdown_budget")
        else:
            defaults.note("sm_table", "streams", "there is no profile to derive one from")

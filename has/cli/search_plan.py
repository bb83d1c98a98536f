"""What a search is to do, once every default is taken: a new one from options, or an interrupted one from its folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from has.cli import engine, inputs, options, precedence, wiring
from has.cli.console import Talk
from has.cli.defaults import Defaults
from has.errors import InputError, MissingError

if TYPE_CHECKING:
    from has.core.deployment import Deployment
    from has.core.profile import Profile
    from has.core.space import SearchSpace
    from has.core.workload import Workload

RESULTS = Path("results")
BEST = Path("best.yaml")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `has search` as they were given; None is what was not."""

    gpus: int | None = None
    model: str | None = None
    device: str | None = None
    profile: Path | None = None
    pool_profile: list[str] | None = None
    workload: list[Path] | None = None
    space: Path | None = None
    rate: list[float] | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    attainment: float | None = None
    objective: str | None = None
    on: str | None = None
    trials: int | None = None
    sampler: str | None = None
    no_prune: bool | None = None
    baseline: list[Path] | None = None
    price: list[str] | None = None
    trial_profile: Path | None = None
    trial_noise: float | None = None
    requests: int | None = None
    run: Path | None = None
    resume: Path | None = None
    out: Path | None = None
    seed: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """From the command's parameters by name; an empty list and an unset flag are not given."""
        named = {name: given.get(name) for name in cls.__dataclass_fields__}
        return cls(
            **{name: None if value is False or value == [] else value for name, value in named.items()}
        )


MAY_CHANGE = ("trials", "baseline", "out")
"""Options that go with --resume; all else is in the run's folder. Baselines are added to those it has."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """`arguments` are those of `has.search.run.search`, less the executor and the callbacks."""

    arguments: Mapping[str, Any]
    live: bool
    run: Path
    out: Path
    trial_profile: Path | None = None
    trial_noise: float = 0.0
    trials: int | None = None
    """Asked for beside --resume: the run's manifest says so only once the search has begun."""
    engine: str = ""
    """Whose instances trials run on, where not on the bundled runtime's."""

    @property
    def profile(self) -> Profile:
        return self.arguments["profile"]  # type: ignore[no-any-return]  # put there by this module

    @property
    def budget(self) -> int:
        from has.search.run import TRIALS

        return self.arguments["trials"] or TRIALS[self.live]

    @property
    def resume_line(self) -> str:
        """The command line that goes on with this search."""
        words = ["has", "search", "--resume", str(self.run)]
        if self.trials is not None:
            words += ["--trials", str(self.trials)]
        if self.out != BEST:
            words += ["--out", str(self.out)]
        return shlex.join(words)


def resumed(given: Options, defaults: Defaults) -> SearchPlan:
    """Go on with the run in `given.resume`, asking what it was asked."""
    assert given.resume is not None
    for name in Options.__dataclass_fields__:
        if name not in (*MAY_CHANGE, "resume") and getattr(given, name) is not None:
            raise InputError(
                "does not go with --resume: a resumed run is asked what it was asked",
                where="argument",
                field=f"--{name.replace('_', '-')}",
                value=getattr(given, name),
                allowed=", ".join(f"--{name.replace('_', '-')}" for name in MAY_CHANGE),
            )
    from has.search.inputs import TRIAL_PROFILE
    from has.search.journal import read_manifest
    from has.search.run import resume_inputs

    out = defaults.pick("--out", given.out, BEST)
    options.target(out, "--out")
    arguments = resume_inputs(given.resume)
    if given.trials is not None:
        arguments["trials"] = given.trials
    arguments["baselines"] = {**arguments["baselines"], **_baselines(given.baseline)}
    truth = given.resume / TRIAL_PROFILE
    question = read_manifest(given.resume)["question"]
    return SearchPlan(
        arguments,
        live=question["on"] != "simulated",
        engine="vllm" if question["on"] == "vllm" else "",
        run=given.resume,
        out=out,
        trial_profile=truth if truth.is_file() else None,
        trial_noise=question.get("trial_noise", 0.0),
        trials=given.trials,
    )


def fresh(given: Options, talk: Talk, defaults: Defaults) -> SearchPlan:
    """A new search; measures a quick profile where none fits."""
    from has.files.folders import make_folder
    from has.files.profile import load_profile
    from has.files.space import load_space
    from has.files.workload import load_workload
    from has.search import samplers
    from has.search.arguments import refuse_rates_of_max_rate

    if given.gpus is None:
        raise InputError(
            "a search needs to know how many GPUs it may use",
            where="argument",
            field="--gpus",
            mend="has search --gpus 8",
        )
    refuse_rates_of_max_rate(given.objective, given.rate)
    # Everything a person wrote is read before anything is measured.
    space = None if given.space is None else load_space(given.space)
    workloads = [load_workload(path) for path in given.workload or ()]
    pools = inputs.pool_profiles(given.pool_profile)
    profile = None if given.profile is None else load_profile(given.profile)
    baselines = _baselines(given.baseline)
    samplers.create(given.sampler or "auto")
    if given.trial_profile is not None:
        load_profile(given.trial_profile)

    on_vllm = given.on == "vllm"
    if profile is None and on_vllm:
        device, model = "", engine.named_model(given.model)
    elif profile is None:
        device = wiring.device(given.device, defaults)
        model = (
            inputs.bundled_model(given.model, None, defaults)
            if device == "cpu"
            else wiring.required_model(given.model)
        )
    else:
        device = "cpu" if profile.metadata.device == inputs.CPU else ""
        model = defaults.pick("--model", given.model, profile.metadata.model, "the profile's")
    if not workloads:
        path = inputs.example_workload(model)
        defaults.note("--workload", path, "the example for the model")
        workloads = [load_workload(path)]
    live = on_vllm or _live(given, model, device, defaults)
    seed = defaults.pick("--seed", given.seed, 0)
    if profile is not None:
        space = _at_parallelism_of(space, profile, pools, defaults)
    if on_vllm:
        engine.refuse_with_vllm(given.trial_profile, given.trial_noise, given.pool_profile)
        space = engine.space_for(space)
        defaults.note("prefill_offload", 1, "vLLM does no prefill beside encode")
    trace = workloads[0].arrivals.process == "trace"
    _note_the_rest(given, live, trace, space is not None, defaults)
    _note_slo(given, workloads[0], baselines, talk, defaults)
    out = defaults.pick("--out", given.out, BEST)
    run = defaults.pick("--run", given.run, _new_run_folder(model, given.gpus))
    options.target(out, "--out")
    if given.run is not None:
        make_folder(given.run, "--run")
    if profile is None and on_vllm:
        profile = engine.profile_for_search(model, seed, talk, defaults)
    elif profile is None:
        profile = _profile(model, device, live, talk, defaults)
    elif on_vllm:
        engine.warn_of_other(profile, talk)
    elif live and not inputs.fits(profile.metadata, device):
        talk.warn(
            f"{given.profile} was measured on another machine, or before: live trials here will differ from it"
        )
    arguments = {
        "gpus": given.gpus,
        "profile": profile,
        "pool_profiles": pools,
        "workload": workloads,
        "space": space,
        "trials": given.trials,
        "rate": given.rate or None,
        "ttft_ms": given.ttft_ms,
        "tpot_ms": given.tpot_ms,
        "attainment": given.attainment,
        "objective": given.objective,
        "sampler": given.sampler or "auto",
        "prune": not given.no_prune,
        "baselines": given.baseline or (),
        "price": _price(given.price),
        "requests": given.requests,
        "seed": seed,
        "model": model,
        "run_dir": run,
    }
    return SearchPlan(
        arguments,
        live=live,
        run=run,
        out=out,
        trial_profile=given.trial_profile,
        trial_noise=given.trial_noise or 0.0,
        engine="vllm" if on_vllm else "",
    )


def _price(given: list[str] | None) -> float | dict[str, float] | None:
    """One price for all, or one by GPU."""
    if given is None:
        return None
    prices = dict(map(options.as_price, given))
    if "" not in prices:
        return prices
    if len(given) > 1:
        raise InputError(
            "one price for all GPUs, and others beside it",
            where="argument",
            field="--price",
            value=", ".join(given),
            mend="give one number, or one GPU=USD of each type",
        )
    return prices[""]


def _baselines(paths: list[Path] | None) -> dict[str, Deployment]:
    from has.files.deployment import load_deployment

    return {str(path): load_deployment(path) for path in paths or ()}


def _live(given: Options, model: str, device: str, defaults: Defaults) -> bool:
    """Whether trials run on devices: as asked, else where this machine has as many as the budget."""
    assert given.gpus is not None
    why_not = (
        wiring.why_not_live(model, device, given.gpus)
        if given.pool_profile is None
        else "pools of different GPUs cannot run here"
    )
    if given.on is None and (given.trial_profile is not None or given.trial_noise is not None):
        why_not = why_not or "--trial-profile and --trial-noise are of simulated trials"
    if given.on is not None:
        if given.on == "live" and why_not:
            raise MissingError(f"live trials cannot run here: {why_not}", mend="--on simulated")
        if given.on == "live" and (given.trial_profile is not None or given.trial_noise is not None):
            raise InputError(
                "is of simulated trials",
                where="argument",
                field="--trial-profile" if given.trial_profile is not None else "--trial-noise",
                mend="--on simulated",
            )
        return given.on == "live"
    live = not why_not
    defaults.note(
        "--on", "live" if live else "simulated", why_not or f"{given.gpus} virtual GPUs can run here"
    )
    return live


def _at_parallelism_of(
    space: SearchSpace | None, profile: Profile, pools: Mapping[str, Profile], defaults: Defaults
) -> SearchSpace | None:
    """With the workers that the profiles are of where none are named; said, unless those have one GPU each."""
    from has.core.space import SearchSpace
    from has.search.parallelism import at_profiles

    asked = space or SearchSpace(version=1)
    held = at_profiles(asked, profile, pools)
    if held.tensor_parallel == asked.tensor_parallel:
        return space
    prefill, decode = (
        ",".join(map(str, tp)) for tp in (held.tensor_parallel.prefill, held.tensor_parallel.decode)
    )
    same = prefill == decode
    words = (
        f"tensor parallelism {decode}"
        if same
        else f"tensor parallelism {prefill} of prefill, {decode} of decode"
    )
    why = "the profile's" if same else "the profiles'"
    defaults.note("--space", f"all, at {words}" if space is None else f"at {words}", why)
    return held


def _note_the_rest(given: Options, live: bool, trace: bool, has_space: bool, defaults: Defaults) -> None:
    """Defaults that `has.search` itself takes."""
    from has.search.run import REQUESTS, TRIALS

    if given.objective is None:
        objective, why = ("goodput", "as --rate is given") if given.rate else ("max-rate", "")
        defaults.note("--objective", objective, why)
    if given.trials is None and given.sampler != "grid":
        defaults.note("--trials", TRIALS[live], "live" if live else "simulated")
    if given.requests is None and trace and not live:
        defaults.note("--requests", "all", "of a trial: the trace itself, in stretches where it is very long")
    elif given.requests is None:
        why = "of a trial: the stretch of the trace most like the whole" if trace else "of a trial"
        defaults.note("--requests", REQUESTS[live], why)
    if given.sampler is None:
        defaults.note("--sampler", "auto")
    if not has_space:
        defaults.note(
            "--space", "all", "every split of the budget, B in 1..16, s in steps of 0.1, all topologies"
        )


def _note_slo(
    given: Options,
    workload: Workload,
    baselines: Mapping[str, Deployment],
    talk: Talk,
    defaults: Defaults,
) -> None:
    """The bounds that no option gave, and where they go before a baseline's own."""
    asked = {name: getattr(given, name) for name in precedence.BOUNDS}
    precedence.note_search_slo(asked, workload, defaults)
    for file, deployment in baselines.items():
        precedence.note_baseline(file, deployment, asked, workload, defaults)
    slo = asked if workload.slo is None else precedence.with_options(workload.slo, asked)
    precedence.warn_of_seconds(talk, slo)


def _new_run_folder(model: str, gpus: int) -> Path:
    """results/<date>-<model>-<gpus>gpu, with a number where that is taken."""
    name = f"{datetime.now():%Y-%m-%d}-{model.rpartition('/')[2]}-{gpus}gpu"
    folder, number = RESULTS / name, 2
    while folder.exists():
        folder, number = RESULTS / f"{name}-{number}", number + 1
    return folder


def _profile(model: str, device: str, live: bool, talk: Talk, defaults: Defaults) -> Profile:
    """The newest profile that fits, else a shipped one if that will do, else one that is measured now.

    A shipped one was measured on another machine. Live trials here would differ from it, simulated
    ones differ from nothing: for those nothing is measured.
    """
    from has.cli.profile import measure
    from has.files.profile import load_profile
    from has.models.names import is_bundled

    found = inputs.fitting_profile(model, device)
    if found is not None:
        defaults.note("--profile", found, "the newest that fits model and device")
        return load_profile(found)
    if device == "cpu" and not is_bundled(model):
        raise MissingError(
            f"no profile of {model} was named, and the cpu device measures only the bundled models",
            mend=inputs.how_to_get_a_profile(model),
        )
    shipped = inputs.shipped_profile(model)
    measurable = wiring.can_measure()
    if shipped is not None and not (live and measurable):
        why = (
            "and trials are only simulated" if measurable else "and without the runtime none can be measured"
        )
        defaults.note("--profile", shipped, f"shipped, of another machine: none fits, {why}")
        return load_profile(shipped)
    if not measurable:
        raise MissingError(
            f"no profile of {model} is here, and none can be measured without the runtime",
            mend="pip install 'has-epd[runtime]', or give --profile FILE",
        )
    path = inputs.profile_path(model, device)
    defaults.note(
        "--profile", path, f"none fits: has profile --model {model} --device {device} --quick runs first"
    )
    defaults.tell(talk)
    return measure(talk, model, device, out=path)

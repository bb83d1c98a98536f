"""`has profile`: stage latencies against SM share."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from has.cli import inputs, options, wiring
from has.cli.console import Talk, talk
from has.cli.defaults import Defaults
from has.cli.failure import Interrupted
from has.core.words import plural, time_left
from has.errors import InputError, MissingError

if TYPE_CHECKING:
    from has.core.profile import Profile
    from has.profiler.points import Progress


def command(
    model: options.Model = None,
    device: options.Device = None,
    modality: Annotated[
        str | None,
        typer.Option(
            "--modality",
            metavar="image|video|audio",
            parser=options.choice("image", "video", "audio"),
            help="Take the bundled model of this modality.",
        ),
    ] = None,
    sm: Annotated[
        str | None,
        typer.Option(
            "--sm",
            metavar="10,20,…",
            parser=options.whole_numbers(1, 100),
            help="SM shares to measure at, percent.",
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch", metavar="1,2,4,8", parser=options.whole_numbers(1, 1024), help="Batch sizes, requests."
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens",
            metavar="64,256,…",
            parser=options.whole_numbers(1, 65536),
            help="Tokens per request, of every stage.",
        ),
    ] = None,
    full: Annotated[
        bool | None,
        typer.Option("--full/--quick", help="All shares, batches and sizes, or the few that a search needs."),
    ] = None,
    virtual_gpus: Annotated[
        int | None,
        typer.Option(
            "--virtual-gpus",
            parser=options.whole(1, 8),
            metavar="N",
            help="cpu: measure on this many virtual GPUs at once.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="SOURCE",
            parser=options.choice("measured", "roofline", "silicon"),
            help="measured, or estimated: roofline (data sheets) or silicon (kernel times; an extra).",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="NAME", help="Estimate: of which GPU (h100, a100-80, l40s)."),
    ] = None,
    tensor_parallel: Annotated[
        int | None,
        typer.Option(
            "--tensor-parallel",
            "--tp",
            parser=options.whole(1, 8),
            metavar="N",
            help="GPUs of one prefill or decode worker (an estimate, or measured on cuda).",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="bfloat16|fp8",
            parser=options.choice("bfloat16", "fp8"),
            help="Estimate: of the language model's weights.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="has|vllm",
            parser=options.choice("has", "vllm"),
            help="Whose stages: the bundled runtime's, or those of vLLM instances started here.",
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what an earlier run has measured.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", parser=options.to_write, metavar="FILE", help="Profile to write, .parquet or .csv."
        ),
    ] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure how long each stage takes against SM share, batch and tokens, alone and co-located.

    Every finished point is kept at once: interrupted, the same command goes on where it stopped;
    finished, it measures nothing twice (--fresh does). With --gpu: estimate it for a GPU that is
    not here.
    """
    with talk(json=json, quiet=quiet) as t:
        defaults = Defaults()
        of_grid = {
            "--full": full or None,
            "--quick": True if full is False else None,
            "--virtual-gpus": virtual_gpus,
            "--fresh": fresh or None,
        }
        if gpu is not None or source in ("roofline", "silicon"):
            from has.cli import estimate

            measured = {"--source": source} if source == "measured" else {}
            options.refuse(
                measured | of_grid | {"--device": device, "--modality": modality, "--engine": engine},
                "does not go with an estimate: nothing is measured",
                "leave --gpu out, and measure",
            )
            source = defaults.pick("--source", source, "roofline", "as --gpu names one that is not here")
            estimated, written = estimate.estimate(
                t,
                model,
                gpu,
                source=source,
                tp=tensor_parallel,
                dtype=dtype,
                out=out,
                defaults=defaults,
                sm=options.as_integers(sm),
                batch=options.as_integers(batch),
                tokens=options.as_integers(tokens),
            )
            t.result(_json(estimated, written), lambda: estimate.answer(estimated, written))
            return
        if dtype is not None:
            raise InputError(
                "is of estimates", where="argument", field="--dtype", value=dtype, mend="add --gpu NAME"
            )
        place = "vllm" if engine == "vllm" else wiring.device(device, defaults)
        if tensor_parallel is not None and place != "cuda":
            raise InputError(
                "is of estimates and of cuda",
                where="argument",
                field="--tensor-parallel",
                value=tensor_parallel,
                mend="add --gpu NAME, or --device cuda",
            )
        if place == "vllm":
            options.refuse(
                of_grid | {"--device": device, "--modality": modality, "--sm": sm},
                "does nothing with --engine vllm: instances are measured as they run, on all SMs, anew each time",
                "leave --engine vllm out",
            )
            _on_vllm(t, model, batch=batch, tokens=tokens, out=out, seed=seed, defaults=defaults)
            return
        name = (
            inputs.bundled_model(model, modality, defaults)
            if place == "cpu"
            else wiring.required_model(model)
        )
        if place == "cpu":
            inputs.refuse_unmeasurable(name)
        else:
            options.refuse(
                {"--virtual-gpus": virtual_gpus, "--modality": modality},
                "is of the cpu device and its bundled models",
            )
        if full is None:
            defaults.note("--quick", "", "few points; --full for all")
        size = "full" if full else "quick"
        out = Path(defaults.pick("--out", out, inputs.profile_path(name, place)))
        options.target(out, "--out", options.PROFILES)
        if place == "cpu":
            virtual_gpus = defaults.pick("--virtual-gpus", virtual_gpus, 8)
        defaults.note("--seed", seed)
        defaults.tell(t)
        profile = measure(
            t,
            name,
            place,
            size=size,
            sm=options.as_integers(sm),
            batch=options.as_integers(batch),
            tokens=options.as_integers(tokens),
            virtual_gpus=virtual_gpus,
            resume=not fresh,
            out=out,
            seed=seed,
            tensor_parallel=tensor_parallel or 1,
        )
        t.result(_json(profile, out), lambda: _answer(profile, out))


def _on_vllm(
    t: Talk,
    model: str | None,
    *,
    batch: str | None,
    tokens: str | None,
    out: Path | None,
    seed: int,
    defaults: Defaults,
) -> None:
    """Stages of running vLLM instances: one SM share, and whole again each time."""
    from has.cli import engine

    name = engine.named_model(model)
    path = Path(defaults.pick("--out", out, engine.profile_path(name)))
    options.target(path, "--out", options.PROFILES)
    defaults.note("--seed", seed)
    defaults.tell(t)
    view = _ProgressView(t)
    with view:
        measured = engine.profile(
            name,
            batch=options.as_integers(batch),
            tokens=options.as_integers(tokens),
            seed=seed,
            out=path,
            progress=view.show,
            say=t.say,
        )
    t.result(_json(measured, path), lambda: _answer(measured, path))


def measure(
    talk: Talk,
    model: str,
    device: str,
    *,
    out: Path,
    size: str = "quick",
    sm: list[int] | None = None,
    batch: list[int] | None = None,
    tokens: list[int] | None = None,
    virtual_gpus: int | None = None,
    resume: bool = True,
    seed: int = 0,
    tensor_parallel: int = 1,
) -> Profile:
    """Measure and write a profile with progress shown; also what `has search` does where no profile fits."""
    if not wiring.can_measure():
        raise MissingError(
            "measuring needs the runtime, which is not installed",
            mend=f"pip install 'has-epd[runtime]'; or estimate: has profile --model {inputs.EXAMPLE_MODEL} --gpu {inputs.EXAMPLE_GPU}",
        )
    view = _ProgressView(talk)
    try:
        with view:
            return wiring.profile(
                model,
                device,
                size=size,
                sm=sm,
                batch=batch,
                tokens=tokens,
                out=out,
                progress=view.show,
                resume=resume,
                virtual_gpus=virtual_gpus,
                seed=seed,
                tensor_parallel=tensor_parallel,
            )
    except KeyboardInterrupt:
        raise Interrupted(
            f"{view.done} of {plural(view.total, 'point')} measured and kept", "the same command again"
        ) from None


class _ProgressView:
    """A bar with the time left on a terminal; elsewhere a line each tenth."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._bar: object = None
        self._tenths = -1
        self.done = self.total = 0

    def __enter__(self) -> _ProgressView:
        if self._talk.live:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("profiling"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
                TextColumn("{task.description}", markup=False),
                console=self._talk.console,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=None, left="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._talk.live:
            self._bar.stop()  # type: ignore[attr-defined]  # a rich Progress where live

    def show(self, step: Progress) -> None:
        self.done, self.total = step.done, step.total
        if step.warning:
            self._talk.say(step.warning)
        left = "" if step.eta_s is None or step.done == step.total else f"{time_left(step.eta_s)} left"
        if self._talk.live:
            self._bar.update(  # type: ignore[attr-defined]  # likewise
                self._task, completed=step.done, total=step.total, description=step.doing, left=left
            )
            return
        tenths = 10 * step.done // max(step.total, 1)
        if tenths > self._tenths:
            self._tenths = tenths
            self._talk.say(f"profiling {step.done}/{step.total}  {left}  {step.doing}".rstrip())


def _json(profile: Profile, out: Path) -> dict[str, object]:
    metadata = profile.metadata.model_dump(mode="json", exclude_none=True)
    return {"profile": out, "points": len(profile.rows), "metadata": metadata}


def _answer(profile: Profile, out: Path) -> str:
    shares = sorted({row.sm_percent for row in profile.rows})
    stages = dict.fromkeys(str(row.stage) for row in profile.rows)
    file = shlex.quote(str(out))
    lines = [
        f"profile of {profile.metadata.model} on {profile.metadata.device}: {plural(len(profile.rows), 'point')}, written to {out}",
        f"stages: {', '.join(stages)}; SM shares: {', '.join(f'{share:g}' for share in shares)} %",
        *_found(profile),
        f"next: has search --gpus 8 --profile {file}    or look at it: has show {file}",
    ]
    return "\n".join(lines)


def _found(profile: Profile) -> list[str]:
    """What sharing a GPU is worth, and what in the profile is not to be relied on."""
    notes = profile.metadata.notes if isinstance(profile.metadata.notes, dict) else {}
    shared = (profile.metadata.model_extra or {}).get("sharing", {})
    unstable = len(notes.get("unstable", ()))
    lines = [f"on one GPU: {shared['words']}"] if "words" in shared else []
    if unstable:
        lines.append(
            f"unstable: {plural(unstable, 'point')} (the host was busy, or the device itself varies)"
        )
    lines += [f"left out: {line}" for line in notes.get("left_out", ())]
    if "calibration" in notes:
        lines.append(notes["calibration"])
    return lines

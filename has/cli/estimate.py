"""`has profile --source roofline|silicon`: a profile of a GPU that is not here, computed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from has.cli import options
from has.cli.console import Talk
from has.cli.defaults import Defaults
from has.core.words import percent, plural
from has.errors import InputError

if TYPE_CHECKING:
    from has.core.profile import Profile


def estimate(
    t: Talk,
    model: str | None,
    gpu: str | None,
    *,
    source: str,
    tp: int | None,
    dtype: str | None,
    out: Path | None,
    defaults: Defaults,
    **axes: Any,
) -> tuple[Profile, Path]:
    """Compute and write a profile, and tell the defaults taken. Raises HasError."""
    from has.files import facts
    from has.files.profile import save_profile
    from has.latency.estimate import estimate_profile

    if gpu is None:
        raise InputError(
            "an estimate needs to know of which GPU",
            where="argument",
            field="--gpu",
            allowed=", ".join(facts.gpus()),
        )
    if model is None:
        raise InputError(
            "an estimate needs to know of which model",
            where="argument",
            field="--model",
            allowed=", ".join(facts.models()) + "; or the Hugging Face id of one of them",
        )
    profile = estimate_profile(
        model,
        gpu,
        source=source,  # type: ignore[arg-type]  # checked by the option's parser
        tp=tp,
        dtype=defaults.pick("--dtype", dtype, "bfloat16"),
        **axes,
    )
    metadata = profile.metadata
    if tp is None:
        defaults.note(
            "--tensor-parallel",
            metadata.tensor_parallel,
            "the fewest GPUs with room for the KV of 32,768 tokens",
        )
    path = defaults.pick("--out", out, Path(f"{file_name(metadata.device, metadata.model)}.parquet"))
    options.target(path, "--out", options.PROFILES)
    defaults.tell(t)
    save_profile(profile, path)
    return profile, path


def file_name(gpu: str, model: str) -> str:
    """`h100-qwen2.5-vl-7b`, from the names in the facts."""
    short = {"A100 80GB SXM": "a100-80", "A100 40GB SXM": "a100-40", "RTX 6000 Ada": "rtx6000ada"}
    return f"{short.get(gpu, gpu.removesuffix(' SXM').lower().replace(' ', '-'))}-{model}"


def answer(profile: Profile, out: Path) -> str:
    """What a person reads at the end."""
    metadata = profile.metadata
    extra = metadata.model_extra or {}
    lines = [
        f"ESTIMATE ({metadata.source}) of {metadata.model} on {metadata.device}, nothing was measured:"
        f" {plural(len(profile.rows), 'point')}, written to {out}",
        f"stated error {percent(metadata.error, None)}; tensor parallel {metadata.tensor_parallel};"
        f" factors fitted on {extra['efficiency']['fitted_on']}",
    ]
    if "silicon" in extra:
        lines.append(
            f"by the roofline, not by tables: {', '.join(extra['silicon']['roofline_for'])}; all SM shares below 100 %"
        )
    file = shlex.quote(str(out))
    lines.append(
        f"next: has search --gpus 8 --profile {file} --on simulated    or look at it: has show {file}"
    )
    return "\n".join(lines)

"""Deployments (`best.yaml`)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from has.core.deployment import Deployment
from has.errors import InputError
from has.files.atomic import write_atomic
from has.files.kinds import refuse_other
from has.files.plain import prune, short
from has.files.reading import existing
from has.files.validate import validate
from has.files.yaml import dump_yaml, load_yaml

_ALWAYS = [
    "version",
    "model",
    "topology",
    "gpus",
    "alloc",
    "tensor_parallel",
    "encode_batch",
    "prefill_offload",
    "offload_unit",
    "fill_probability",
    "encode_slowdown_budget",
    "sm_table",
    "rate",
    "slo",
    "evidence",
]
"""What a file says even where it is the default; the rest only where it differs from it."""


def load_deployment(path: str | Path) -> Deployment:
    """Raises InputError: file, field, value, what is allowed, the mend."""
    try:
        existing(path)
    except InputError as error:
        error.mend = _of_its_run(path) or f"{error.mend}; has search writes one"
        raise
    fields = load_yaml(path)
    refuse_other(fields, "deployment", path)
    return validate(Deployment, fields, str(path))


def _of_its_run(path: str | Path) -> str:
    """Where `path` is the folder of a run: the file in it that was meant."""
    with suppress(OSError, TypeError, ValueError):
        if (best := Path(path) / "best.yaml").is_file():
            return f"name the deployment in it: {best}"
    return ""


def save_deployment(deployment: Deployment, path: str | Path) -> None:
    """Write it; atomic."""
    write_atomic(path, deployment_yaml(deployment))


def deployment_yaml(deployment: Deployment) -> str:
    """The text of its file. Loading it gives an equal deployment."""
    fields = deployment.model_dump(mode="python", exclude={"evidence"})
    defaults = {name: field.default for name, field in Deployment.model_fields.items()}
    said = {n: v for n, v in fields.items() if n in _ALWAYS or getattr(deployment, n) != defaults[n]}
    for name in _meaningless(deployment):
        if said[name] == defaults[name]:
            del said[name]
    data = short(prune(said))
    if deployment.evidence is not None:
        data["evidence"] = short(deployment.evidence)
    return dump_yaml(data)


def _meaningless(deployment: Deployment) -> tuple[str, ...]:
    """Fields that a topology ignores."""
    if deployment.topology == "disaggregated":
        return ()
    return ("offload_unit", "encode_slowdown_budget") + (
        ("fill_probability",) if deployment.topology == "monolithic" else ()
    )

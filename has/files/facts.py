"""Facts that ship with HAS: GPUs and models, each with its sources and how sure they are."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from has.errors import InputError
from has.files.jsonl import parse_json
from has.files.names import did_you_mean, meant, near
from has.files.reading import read_text

FOLDER = Path(__file__).with_name("facts")


@functools.cache
def _load(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = parse_json(read_text(path), str(path))
    return facts


def gpus() -> dict[str, dict[str, Any]]:
    """GPU name → SMs, memory, bandwidth, dense TFLOPS, links, prices, sources, confidence; `driver_names`: what CUDA and
    NVML call it; `variant_of`, of a card: the GPU that is meant where only the chip is said."""
    facts: dict[str, dict[str, Any]] = _load(FOLDER / "gpus.json")["gpus"]
    return dict(facts)


def gpu_efficiency() -> dict[str, Any]:
    """GPU name → measured matrix-product and weight-streaming rates; `note` says how they were measured."""
    return dict(_load(FOLDER / "gpus.json")["measured_efficiency"])


def gpu(name: str) -> dict[str, Any]:
    """Facts of one GPU; the name's case does not matter. Raises InputError, with the known names."""
    return _find(gpus(), name, "GPU", ", ".join(gpus()))


def find_gpu(name: str) -> tuple[str, dict[str, Any]]:
    """Key and facts of the one GPU that `name` can mean: `h100`, `A100-80`, or as its driver says it,
    `NVIDIA H100 80GB HBM3`. Raises InputError."""
    known = gpus()
    bare = _bare(name)
    key = _driver_names().get(bare.casefold()) or _meant(known, bare, "GPU")
    return key, known[key]


@functools.cache
def _driver_names() -> dict[str, str]:
    return {_bare(said).casefold(): key for key, sheet in gpus().items() for said in sheet["driver_names"]}


def _bare(name: str) -> str:
    """Without the maker's name, which drivers put before it since 2021 and people leave out."""
    return re.sub(r"^nvidia\s+", "", name.strip(), flags=re.IGNORECASE)


@functools.cache
def _models() -> dict[str, dict[str, Any]]:
    return {(facts := _load(path))["name"]: facts for path in sorted((FOLDER / "models").glob("*.json"))}


def models() -> dict[str, dict[str, Any]]:
    """Model name → shapes of encoder, projector and LM, token rule, computed sizes, sources, Hugging Face ids."""
    return dict(_models())


def model(name: str) -> dict[str, Any]:
    """Facts of one model, by its name here or its Hugging Face id, whatever the case. Raises InputError."""
    by_id = {hf_id: facts for facts in _models().values() for hf_id in facts["huggingface"]}
    return _find(
        models() | by_id, name, "model", ", ".join(models()) + "; or the Hugging Face id of one of them"
    )


def find_model(name: str) -> dict[str, Any]:
    """Facts of the one model that a name, a part of it or a Hugging Face id can mean: `ultravox-8b`."""
    by_id = {hf_id: key for key, facts in _models().items() for hf_id in facts["huggingface"]}
    folded = {hf_id.casefold(): key for hf_id, key in by_id.items()}
    key = folded.get(name.strip().casefold()) or _meant(_models(), name, "model")
    return _models()[key]


def _meant(known: Mapping[str, dict[str, Any]], name: str, what: str) -> str:
    """The one key that `name` can mean. Raises InputError."""
    keys = list(known)
    found = meant(keys, name)
    can = [key for key in found if "variant_of" not in known[key]] or found
    if len(can) > 1:
        raise InputError(
            f"the {what} {name} can be any of {', '.join(can)}",
            where="argument",
            field=what.lower(),
            value=name,
            allowed=", ".join(can),
        )
    if can:
        return can[0]
    _find(dict(known), name, what, ", ".join(keys))  # says that it is unknown, and what is near
    raise AssertionError(name)


def _find(known: dict[str, dict[str, Any]], name: str, what: str, allowed: str) -> dict[str, Any]:
    folded = {key.casefold(): key for key in known}
    key = folded.get(name.strip().casefold())
    if key is not None:
        return known[key]
    raise InputError(
        f"no facts are shipped for the {what} {name}",
        field=what.lower(),
        value=name,
        allowed=allowed,
        mend=did_you_mean(near([key for key in known if "variant_of" not in known[key]], name)),
    )


def same_model(one: str, other: str) -> bool:
    """Whether two names are of one model: equal, or a name of the facts and one of its Hugging Face ids."""

    def key(name: str) -> str:
        try:
            return str(model(name)["name"])
        except InputError:
            return name

    return one == other or key(one) == key(other)


def similar_models(name: str) -> list[str]:
    """Models of the facts that `name` may be a slip for, the likeliest first; none where none is alike."""
    return near(_models(), name)

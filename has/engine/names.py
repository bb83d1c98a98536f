"""The names that engines load models by."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from has.errors import InputError
from has.files import facts


def loadable(model: str) -> str:
    """What an engine loads `model` by: of a name of the shipped facts its Hugging Face id; a folder or an id stays."""
    if not is_loadable(model):
        with suppress(InputError):
            return str(facts.model(model)["huggingface"][0])
    return model


def is_loadable(model: str) -> bool:
    """Whether `model` can be an id of a hub or is a folder here. No hub is asked."""
    return "/" in model or Path(model).is_dir()

"""Where a model's files are: a folder of one's own, or the newest snapshot in the local hub cache. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

from has.errors import MissingError


def checkpoint_folder(model: str) -> Path:
    """The folder that holds `model`: itself, or the newest snapshot of a hub id in the local cache.

    Raises MissingError where there is neither.
    """
    folder = find_folder(model)
    if folder is None:
        raise MissingError(
            f"no checkpoint of {model} here: neither a folder with a config.json nor in the hub cache",
            mend=f"huggingface-cli download {model}",
        )
    return folder


def find_folder(model: str) -> Path | None:
    """As `checkpoint_folder`, or None."""
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if not folder.exists() and model.count("/") == 1:
        try:
            from huggingface_hub import try_to_load_from_cache
        except ImportError:  # the base install has no hub
            return None

        try:
            found = try_to_load_from_cache(model, "config.json")
        except ValueError:  # not a name that the hub could have
            return None
        if isinstance(found, str):
            return Path(found).parent
    return None

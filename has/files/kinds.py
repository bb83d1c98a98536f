"""Which of the files that people write a mapping is: by the fields that only one of them has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from has.errors import InputError

Kind = Literal["deployment", "workload", "search space"]

OWN: Mapping[Kind, frozenset[str]] = {
    "deployment": frozenset({"topology", "gpus", "model"}),
    "workload": frozenset({"arrivals", "requests", "name"}),
    "search space": frozenset({"topologies"}),
}
_TAKES: Mapping[Kind, str] = {
    "deployment": "has simulate, explain, deploy and export take one; has search writes one",
    "workload": "it goes after --workload",
    "search space": "it goes after --space",
}


def kind_of(fields: Mapping[str, Any]) -> Kind:
    """What is no deployment and no workload is a search space, which needs no field at all."""
    return next((kind for kind in OWN if OWN[kind] & fields.keys()), "search space")


def refuse_other(fields: Any, wanted: Kind, file: str | Path) -> None:
    """InputError where a mapping is surely of another kind; what is wrong in one of its own is told field by field."""
    if not isinstance(fields, Mapping) or OWN[wanted] & fields.keys():
        return
    other = next((kind for kind in OWN if kind != wanted and OWN[kind] & fields.keys()), None)
    if other is not None:
        raise InputError(f"is a {other}, not a {wanted}", where=str(file), mend=_TAKES[other])

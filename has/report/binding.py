"""Two figures that are taken for one: what a stage could carry, and how busy it was.

The stage that binds is the one whose capacity is least. The busiest is often another: workers count
as busy in batches that are not full, and while they share a GPU. Where the two differ the sentence
that names the one says why it is not the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from has.core.words import percent
from has.report.document import number

NAMES = {
    "encode": "encode",
    "prefill": "prefill",
    "prefill_local": "local prefill",
    "prefill_remote": "remote prefill",
    "prefill_decode": "the prefill+decode pool",
    "all": "its one pool of all stages",
    "decode": "decode",
    "preprocess": "preprocessing on the CPU",
}
LABELS = NAMES | {"preprocess": "preprocess"}
"""The same, short, for axes and tables."""
_COVERS = {
    "prefill": ("prefill", "prefill_local", "prefill_remote"),
    "prefill_decode": ("prefill", "decode"),
    "all": ("encode", "prefill", "decode"),
}
"""Stages as runs count them, of one that binds."""
NEARLY = 0.05
"""Utilisations that differ by less are not told apart."""


def carries_words(binding: str, limit: float, rate: float | None = None) -> str:
    """`decode binds it, at 13.2 requests/s`; of a `rate` above that, why it could be more."""
    words = f"{NAMES.get(binding, binding)} binds it, at {number(limit)} requests/s"
    if rate is not None and rate > 1.005 * limit:
        words += ", if every request is to be in time: the target lets some be late"
    return words


def busiest_words(binding: str, stages: Mapping[str, Any]) -> str:
    """Why the busiest of `stages` (as figures hold them) is not the one that binds; empty where it is."""
    busy = {
        name: float(stage["utilisation"])
        for name, stage in stages.items()
        if stage and stage.get("utilisation") is not None
    }
    own = [share for name, share in busy.items() if name in _COVERS.get(binding, (binding,))]
    if not busy or not own:
        return ""
    busiest = max(busy, key=lambda name: busy[name])
    if busy[busiest] <= max(own) + NEARLY:
        return ""
    name = NAMES.get(busiest, busiest)
    return f"{name[0].upper()}{name[1:]} was busier ({percent(busy[busiest], 0)} of the time): {_why(busiest, stages[busiest])}."


def _why(busiest: str, stage: Mapping[str, Any]) -> str:
    if busiest == "decode":
        return "a worker counts as busy from one sequence on, and larger batches carry more in the same time"
    if busiest == "prefill_local":
        return "it counts as busy while it waits for the SMs that encode holds"
    full, mean = stage.get("full_share"), stage.get("mean_batch")
    if full is not None and full < 0.9 and mean:
        return f"its batches held {number(mean)} in the mean, and full ones carry more in the same time"
    if busiest == "encode":
        return "on the SMs that local prefill leaves it works longer than on a whole GPU, by which its capacity is counted"
    return "busy time counts how long its workers worked, not how much more they could take in it"

"""What a person means by a name: the one there is, the one that it is a part of, or one that it is a slip for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

MOST_NEAR = 3
AS_ALIKE = 0.03
"""Of a ratio of likeness, from 0 to 1."""


def meant(known: Iterable[str], name: str) -> list[str]:
    """Of `known` the one that `name` is, else all that have its words; `80` stands for `80gb` too."""
    keys, words = list(known), _words(name)
    same = [key for key in keys if words and "".join(words) == "".join(_words(key))]
    if same:
        return same[:1]
    return [key for key in keys if words and all({word, f"{word}gb"} & set(_words(key)) for word in words)]


def near(known: Iterable[str], name: str) -> list[str]:
    """Of `known` those that `name` may be a slip for: of its family (the letters it begins with) those that look
    most like it, else the one that looks like it as a whole. A digit that is wrong makes `h300` an H100
    or an H200; letter by letter it looks just as much like an MI300X."""

    def alike(key: str) -> float:
        return difflib.SequenceMatcher(None, name.casefold(), key.casefold()).ratio()

    keys, family = list(known), _family(name)
    kin = sorted((key for key in keys if family and _family(key) == family), key=alike, reverse=True)
    if kin:
        return [key for key in kin if alike(key) >= alike(kin[0]) - AS_ALIKE][:MOST_NEAR]
    best = max(keys, key=alike, default="")
    return [best] if best and alike(best) >= 0.5 else []


def either(names: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def did_you_mean(names: Sequence[str]) -> str:
    """The question; empty where nothing is near."""
    return f"did you mean {either(names)}?" if names else ""


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.casefold())


def _family(name: str) -> str:
    """The letters before the first digit: `h` of H200 SXM, `qwen` of qwen2.5-vl-7b."""
    match = re.match(r"[a-z]+(?:[ -]+[a-z]+)*", name.strip().casefold().rpartition("/")[2])
    return match[0].rstrip(" -") if match else ""

"""Tutorials as scripts: the files that they show, and the commands that they give, in order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
_BLOCK = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)```", re.DOTALL)
_CONTINUES = re.compile(r"<!-- continues: (\S+) -->")


@dataclass(frozen=True)
class Step:
    """A file to write, or a command to run."""

    file: str = ""
    text: str = ""
    command: tuple[str, ...] = ()


def steps(name: str) -> Iterator[Step]:
    """Those of one page. Raises where a block of shell holds what is no `has` command: it could not be run."""
    for block in _BLOCK.finditer((FOLDER / name).read_text(encoding="utf-8")):
        if block["file"]:
            yield Step(file=block["file"], text=block["text"])
        elif block["kind"] in ("sh", "bash", "console"):
            for line in filter(None, map(str.strip, block["text"].splitlines())):
                program, *arguments = shlex.split(line)
                assert program == "has", f"{name}: {line}"
                yield Step(command=tuple(arguments))


def pages() -> list[str]:
    return sorted(path.name for path in FOLDER.glob("*.md"))


def continues(name: str) -> str | None:
    """The page in whose folder this one's commands are typed."""
    found = _CONTINUES.search((FOLDER / name).read_text(encoding="utf-8"))
    return found[1] if found else None

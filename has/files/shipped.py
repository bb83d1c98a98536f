"""What ships with HAS: where it lies (in a wheel beside the code, in a checkout at its root), and by which names it goes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

from has.errors import InputError, MissingError
from has.files.names import did_you_mean, either, meant, near
from has.files.reading import alike, existing

Kind = Literal["profiles", "search_spaces", "workloads"]

_PACKAGE = Path(__file__).resolve().parents[1]
_IN_CHECKOUT = {"profiles": "profiles", "search_spaces": "search_spaces", "workloads": "examples/workloads"}
_ONE: dict[Kind, str] = {"profiles": "profile", "search_spaces": "search space", "workloads": "workload"}
KINDS: tuple[Kind, ...] = tuple(_ONE)
_ENDINGS: dict[Kind, str] = {"profiles": ".parquet", "search_spaces": ".yaml", "workloads": ".yaml"}
MOST_LISTED = 12
"""More names than this are counted in an error, not listed."""
_WRITTEN = (".yaml", ".yml", ".parquet", ".csv", ".jsonl", ".json")
"""Endings of files: with one of these, a name is that of a file."""


def shipped(kind: Kind) -> Path:
    """The folder of shipped `profiles`, `search_spaces` or `workloads`."""
    for folder in (_PACKAGE / "_shipped" / kind, _PACKAGE.parent / _IN_CHECKOUT[kind]):
        if folder.is_dir():
            return folder
    raise MissingError(f"the shipped {kind} are not part of this installation", mend="install HAS anew")


def names(*kinds: Kind) -> dict[str, Path]:
    """Name -> file, of all that ship: `image`, `gpus-8`, `h100-qwen2.5-vl-7b`."""
    found: dict[str, Path] = {}
    for kind in kinds:
        with suppress(MissingError):
            found |= {path.stem: path for path in sorted(shipped(kind).glob(f"*{_ENDINGS[kind]}"))}
    return found


def called(path: Path) -> str:
    """What a path is called: what ships by its bare name, which is all that an option needs."""
    return path.stem if path in names(*KINDS).values() else str(path)


def named(given: str | Path, *kinds: Kind) -> Path:
    """The file that `given` means: one that is there, else the one that ships under that bare name.

    As with models and GPUs, as much of a name does as leaves no doubt. Raises InputError.
    """
    if not isinstance(given, str | Path) or _is_file(given):
        return existing(given)
    name, ships = str(given), names(*kinds)
    bare = bool(name) and not {"/", os.sep} & set(name) and not name.lower().endswith(_WRITTEN)
    can = meant(ships, name) if bare else []
    if len(can) == 1:
        return ships[can[0]]
    try:
        return existing(given)
    except InputError as error:
        if _is_there(given):  # and is no file: that is what is wrong with it
            raise
        if not bare:
            shipped_ones = near(ships, _without_ending(Path(name).name))
            if shipped_ones:
                error.mend = (
                    f"{error.mend}; {either(shipped_ones)} ships with HAS, and goes by that name alone"
                )
            raise
        what = either([_ONE[kind] for kind in kinds])
        if can:
            raise InputError(
                f"no such file, and as a shipped {what} it can be any of {', '.join(can)}",
                where=name,
                allowed=", ".join(can),
            ) from None
        raise InputError(
            f"no such file, and no {what} of that name ships with HAS",
            where=name,
            allowed=f"a file, or one of {'; '.join(map(_listed, kinds))}",
            mend=did_you_mean([*map(str, alike(Path(name))), *near(ships, name)]) or "check the spelling",
        ) from None


def _listed(kind: Kind) -> str:
    """The names of a kind; of very many how many, and where they stand."""
    ships = names(kind)
    return (
        ", ".join(ships)
        if len(ships) <= MOST_LISTED
        else f"{len(ships)} {kind} (has doctor --json lists them)"
    )


def _is_file(path: str | Path) -> bool:
    with suppress(OSError, ValueError):  # a name that no file can have
        return Path(path).is_file()
    return False


def _is_there(path: str | Path) -> bool:
    with suppress(OSError, ValueError):
        return Path(path).exists()
    return True


def _without_ending(name: str) -> str:
    return next((name[: -len(ending)] for ending in _WRITTEN if name.lower().endswith(ending)), name)

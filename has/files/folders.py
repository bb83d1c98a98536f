"""Folders that a command writes into."""

from __future__ import annotations

from pathlib import Path

from has.errors import InputError
from has.files.atomic import unwritten


def make_folder(path: str | Path, field: str) -> Path:
    """`path` as a folder that is there, made with its parents where it was not.

    `field` is the option that named it. Raises InputError where no folder can be there, RunError where the disk is full.
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(
            "a file stands where a folder is to be made",
            where="argument",
            field=field,
            value=str(path),
            allowed="a folder, or a name that is free",
            mend=f"{field} FOLDER",
        ) from None
    except OSError as error:
        raise unwritten(path, error, "folder", field=field) from error
    return path

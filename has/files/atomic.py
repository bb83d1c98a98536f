"""Whole files or no files: what is written is never seen half."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from has.errors import InputError


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to `path`: temporary file in the same folder, fsync, rename.

    Makes missing folders. Raises InputError where the place cannot be written to.
    """
    raw = data.encode(errors="backslashreplace") if isinstance(data, str) else data
    replace_atomic(path, lambda temporary: _write(temporary, raw))


def replace_atomic(path: str | Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place of `path`, durably."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
        temporary = Path(name)
        try:
            write(temporary)
            temporary.chmod(_mode(path))
            _sync(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync(path.parent)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}",
            where=str(path),
            mend="name a file in a folder that you may write to",
        ) from error


def _write(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)


def _mode(path: Path) -> int:
    """Permissions of the file that is replaced, else what the umask leaves (mkstemp gives 0600)."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        return 0o666 & ~umask


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

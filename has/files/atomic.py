"""Whole files or no files: what is written is never seen half.

Only regular files are replaced. A link to one stays and its target is replaced; a pipe or a
character device (`/dev/null`, `>(gzip)`) is written into and stays what it is.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from has.errors import HasError, InputError, RunError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to `path`: temporary file in the same folder, fsync, rename.

    Makes missing folders. Raises InputError where the place cannot be written to, RunError where the disk is full.
    """
    raw = data.encode(errors="backslashreplace") if isinstance(data, str) else data
    replace_atomic(path, lambda temporary: _write(temporary, raw))


def replace_atomic(path: str | Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place of `path`, durably."""
    named = Path(path)
    try:
        if _is_stream(named):
            _write_into(named, write)
            return
        # A link is kept: what it leads to is replaced.
        path = named.resolve() if named.is_symlink() else named
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
        raise unwritten(named, error) from error


def check_writable(path: str | Path, field: str) -> None:
    """Refuse, before work begins, what could not be put at `path` after it; leaves nothing behind.

    `field` is the option that named it. Raises as `write_atomic` does; missing folders are not made yet.
    """
    named = Path(path)
    try:
        if _is_stream(named):
            # Not opened: who reads a pipe would take its closing for the end.
            if not os.access(named, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        target = named.resolve() if named.is_symlink() else named.absolute()
        folder = next(above for above in target.parents if above.exists())
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{target.name}.", suffix=".tmp")
        os.close(handle)
        Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise unwritten(named, error, field=field) from error


def clear_temporaries(folder: Path) -> None:
    """Remove what writes into `folder` left behind whose process was killed. Nobody else may be writing there."""
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


def _is_stream(path: Path) -> bool:
    """Whether bytes go through `path` and do not stay: a pipe, a character device. OSError if it is no file either."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        return True
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a socket or a disk, no file")
    return False


def _write_into(path: Path, write: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / path.name
        write(temporary)
        raw = temporary.read_bytes()
    # Without O_CREAT: if it has gone meanwhile, no half-written file takes its place.
    with os.fdopen(os.open(path, os.O_WRONLY), "wb") as stream:
        stream.write(raw)


def unwritten(path: Path, error: OSError, kind: str = "file", field: str = "") -> HasError:
    """Why a file or folder cannot be written, as its user can mend it; `field` is the option that named it."""
    why = f"cannot be written: {error.strerror or error}"
    if error.errno in _NO_ROOM:
        return RunError(f"{path}: {why}", mend=f"make room there, or name a {kind} elsewhere")
    mend = f"name a {kind} in a folder that you may write to"
    if field:
        return InputError(why, where="argument", field=field, value=str(path), mend=mend)
    return InputError(why, where=str(path), mend=mend)


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

"""Bytes and text of an input file, with errors a person can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TextIO

from has.errors import InputError
from has.files.names import did_you_mean

MOST_LOOKED_AT = 1000
"""Names of a folder among which one that is alike is looked for."""


def alike(path: Path, *, folders: bool = False) -> list[Path]:
    """Files (or folders) where `path` is not, whose names it may be a slip for."""
    try:
        looked_at = islice(path.parent.iterdir(), MOST_LOOKED_AT)
        names = [near.name for near in looked_at if (near.is_dir() if folders else near.is_file())]
    except (OSError, ValueError):
        return []
    return [
        path.with_name(name)
        for name in get_close_matches(path.name, names, n=2, cutoff=0.8)
        if name != path.name
    ]


def existing(path: str | Path) -> Path:
    """`path`, known to be a regular file that is there: opening a pipe would wait for its writer."""
    if not isinstance(path, str | Path):
        raise InputError(
            "not a path",
            where="argument",
            field="path",
            value=path,
            allowed="text or a pathlib.Path",
            mend="hand in the path of a file",
        )
    path = Path(path)
    try:
        if path.is_dir():
            raise InputError("is a folder, not a file", where=str(path), mend="name the file inside it")
        if not path.exists():
            raise InputError(
                "no such file",
                where=str(path),
                mend=did_you_mean([str(near) for near in alike(path)]) or "check the spelling of the path",
            )
        if path.is_char_device() or path.is_block_device() or path.is_socket():
            raise InputError("is a device, not a file", where=str(path))
        if not path.is_file():
            raise InputError(
                "is a pipe, not a file",
                where=str(path),
                allowed="a regular file",
                mend="write what it carries to a file, and name that",
            )
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot be looked up: {error}", where=repr(str(path))) from error
    return path


def read_bytes(path: str | Path) -> bytes:
    path = existing(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error


@contextmanager
def text_stream(path: str | Path) -> Iterator[TextIO]:
    """UTF-8 text to read line by line, line ends kept as they are; a byte order mark is dropped."""
    path = existing(path)
    try:
        stream = path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    with stream:
        yield stream


def read_text(path: str | Path) -> str:
    """UTF-8 text; a byte order mark is allowed and dropped."""
    return text_from(read_bytes(path), path)


def text_from(raw: bytes, path: str | Path) -> str:
    """The text that the bytes of `path` are."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(
            f"is not UTF-8 text (byte 0x{raw[error.start]:02x} in line {line})",
            where=str(path),
            mend="save it as UTF-8; a binary file does not belong here",
        ) from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise InputError(
            f"is not text: line {line} holds a zero byte",
            where=str(path),
            mend="name a text file; a binary file does not belong here",
        )
    return text

"""The tokenizer of a model: the bundled one, or the one in a checkpoint's folder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from has.errors import InputError, MissingError
from has.models.folders import checkpoint_folder
from has.models.names import is_bundled
from has.models.text import Tokenizer


class AnyTokenizer(Protocol):
    """vocab_size, text -> ids and back."""

    vocab_size: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...


class FileTokenizer:
    """Of a `tokenizer.json`. Special tokens are taken where they stand in a text, and left out of what is decoded."""

    def __init__(self, read: Any) -> None:
        self._read = read
        self.vocab_size: int = read.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return list(self._read.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._read.decode(list(ids)))


def load_tokenizer(model: str) -> AnyTokenizer:
    """The tokenizer of a bundled name, a folder, or a hub id that is in the cache.

    Raises MissingError where the files are not here, InputError where they cannot be read.
    """
    if is_bundled(model):
        return Tokenizer()
    from tokenizers import Tokenizer as Read

    path = checkpoint_folder(model) / "tokenizer.json"
    if not path.is_file():
        raise MissingError(
            f"{path.parent} has no tokenizer.json",
            mend="save the checkpoint's tokenizer there in its fast format",
        )
    try:
        return FileTokenizer(Read.from_file(str(path)))
    except Exception as error:  # the library raises bare Exception for whatever is wrong with the file
        raise InputError(f"the tokenizer cannot be read: {error}", where=str(path)) from error

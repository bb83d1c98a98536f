"""Text of the bundled models: a tokenizer where every id has a printable piece, and a chat template.

Ids and pieces correspond one to one, and the pieces form a uniquely decodable code, so
`encode(decode(ids)) == ids` for every sequence of ids. The other way round, `decode(encode(text))`
is `text` for printable ASCII; a character outside it is encoded as its UTF-8 bytes, and a byte
that is not printable ASCII is shown as a control picture (below 0x20) or a braille pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from has.errors import InputError
from has.models.names import FIRST_BYTE_ID, PLACEHOLDER, VOCAB_SIZE, Special

_CONSONANTS = "bcdfghjklmnpqrstvwxyzBCDFGHJKLMNPQRSTVWXYZ"
_VOWELS = "àáâãäåāăąèéêëēĕėęěìíîïĩīĭįòóôõöōŏőùúûüũūŭůűųýÿ"
_SPECIALS = "∅▷■⚙☺☻⚒▪⟦⟧▣▶♪◇◈◊"
"""One symbol for each id below FIRST_BYTE_ID, in order."""


class Tokenizer:
    """Byte-level tokenizer: 16 specials, 256 bytes, and syllables that only models utter or echo.

    A syllable is an ASCII consonant and an accented vowel. Accented vowels occur in no other
    piece, which is what makes the code uniquely decodable.
    """

    def __init__(self, vocab_size: int = VOCAB_SIZE) -> None:
        syllables = [consonant + vowel for vowel in _VOWELS for consonant in _CONSONANTS]
        room = vocab_size - FIRST_BYTE_ID - 256
        if not 0 <= room <= len(syllables):
            raise InputError(
                "no pieces for a vocabulary of this size",
                field="vocab_size",
                value=vocab_size,
                allowed=f"{FIRST_BYTE_ID + 256}..{FIRST_BYTE_ID + 256 + len(syllables)}",
            )
        self.vocab_size = vocab_size
        self._pieces: list[str] = [*_SPECIALS, *map(_byte_piece, range(256)), *syllables[:room]]

    @cached_property
    def _id_of(self) -> dict[str, int]:
        return {piece: token for token, piece in enumerate(self._pieces)}

    @cached_property
    def _scan(self) -> re.Pattern[str]:
        longest_first = sorted(self._pieces, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) + "|.", re.DOTALL)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; never a special, unless its symbol stands in the text (see `encode_plain`)."""
        ids: list[int] = []
        for match in self._scan.finditer(text):
            piece = match.group()
            known = self._id_of.get(piece)
            if known is not None:
                ids.append(known)
            else:
                ids.extend(FIRST_BYTE_ID + byte for byte in piece.encode("utf-8", "replace"))
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Ids of `text` taken as bytes alone: what a user writes can then never forge a special."""
        return [FIRST_BYTE_ID + byte for byte in text.encode("utf-8", "replace")]

    def piece(self, token: int) -> str:
        """The printable, non-empty text of one id; distinct for distinct ids."""
        return self._pieces[token]

    def decode(self, ids: Iterable[int]) -> str:
        """The pieces of `ids`, joined: streaming piece by piece gives the same text."""
        return "".join(self._pieces[token] for token in ids)


def _byte_piece(byte: int) -> str:
    if 0x20 <= byte < 0x7F:
        return chr(byte)
    return chr(0x2400 + byte) if byte < 0x20 else chr(0x2800 + byte)


_ROLES = {
    "system": Special.SYSTEM,
    "developer": Special.SYSTEM,
    "user": Special.USER,
    "assistant": Special.ASSISTANT,
    "tool": Special.TOOL,
}
MEDIA_PART: dict[str, str] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "video": "video",
    "video_url": "video",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
}
"""Type of a content part, as OpenAI-compatible servers name them -> modality."""


def chat_prompt(
    messages: Sequence[Mapping[str, Any]],
    media_tokens: Sequence[int] | None = None,
    tokenizer: Tokenizer | None = None,
) -> tuple[list[int], list[str]]:
    """Prompt ids of a conversation, and the modalities of its media items in order of appearance.

    `messages` are OpenAI-shaped: a role and a content, the content a string or a list of parts
    (`{"type": "text", "text": ...}` or a media part, whose type alone is read here).
    `media_tokens[i]` is how many embeddings item i has, and so how many placeholder ids stand
    between its start and end marks; None puts one placeholder each, to count or to check with.

    Raises InputError for an unknown role or part, and for counts that do not match the items.
    """
    tokenizer = tokenizer or Tokenizer()
    ids: list[int] = [Special.BOS]
    kinds: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message.get("role")
        if role not in _ROLES:
            raise InputError(
                "unknown role", field=f"{where}.role", value=role, allowed=", ".join(sorted(_ROLES))
            )
        ids.append(_ROLES[role])
        for part in _parts(message.get("content"), where):
            kind = part.get("type")
            if kind == "text":
                ids.extend(tokenizer.encode_plain(str(part.get("text", ""))))
                continue
            kinds.append(MEDIA_PART[str(kind)])
            count = 1 if media_tokens is None else _count(media_tokens, len(kinds) - 1)
            ids.append(Special.MEDIA_START)
            ids.extend([PLACEHOLDER[kinds[-1]]] * count)
            ids.append(Special.MEDIA_END)
        ids.append(Special.END)
    if media_tokens is not None and len(media_tokens) != len(kinds):
        raise InputError(
            f"{len(kinds)} media items stand in the messages", field="media_tokens", value=len(media_tokens)
        )
    ids.append(Special.ASSISTANT)
    return [int(token) for token in ids], kinds


def _parts(content: Any, where: str) -> list[Mapping[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, Sequence):
        raise InputError("must be a string or a list of parts", field=f"{where}.content", value=content)
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else part
        if kind != "text" and kind not in MEDIA_PART:
            raise InputError(
                "unknown content part",
                field=f"{where}.content[{place}].type",
                value=kind,
                allowed=", ".join(["text", *MEDIA_PART]),
            )
    return list(content)


def _count(media_tokens: Sequence[int], item: int) -> int:
    if item >= len(media_tokens):
        raise InputError(
            "more media items stand in the messages than counts were given",
            field="media_tokens",
            value=len(media_tokens),
        )
    return media_tokens[item]

"""Tokens of an engine, which come as text: each piece stands for itself, and the engine says where an answer ends."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from has.gateway.job import FinishReason, Job, MediaRef
from has.gateway.prompt import Renderer

BYTES_PER_TOKEN = 4.0
"""Where the model's tokenizer is not at hand; about right for English."""
TEMPLATE_TOKENS = 8
"""A chat template's marks around a message, roughly."""
LONGEST_COUNTED = 65_536
"""Characters of a prompt beyond which it is only weighed: a tokenizer takes tens of milliseconds for so much, and the
gateway's loop waits for it."""
KEPT = 65_536


class EngineLanguage:
    """Pieces of text as tokens (`has.gateway.prompt.Language`).

    A piece is handed to the service and read back at once, so ids only have to be right for the
    moment; they are forgotten when there are `KEPT`. Prompt lengths are estimates until the engine has
    counted: they weigh requests against each other; no answer is cut and no request refused for them.
    """

    says_ends = True
    estimates = True
    characters_per_token = 256  # no tokenizer in use has longer tokens: runs of spaces, of 128 at the most

    def __init__(self, model: str) -> None:
        self._tokenizer = _tokenizer(model)
        self._ids: dict[tuple[str, FinishReason | None], int] = {}
        self._pieces: list[tuple[str, FinishReason | None]] = []

    def id_of(self, text: str, end: FinishReason | None = None) -> int:
        """The id that stands for `text`, being the answer's last if `end` says why."""
        key = (text, end)
        if key not in self._ids:
            if len(self._pieces) >= KEPT:
                self._ids.clear()
                self._pieces.clear()
            self._ids[key] = len(self._pieces)
            self._pieces.append(key)
        return self._ids[key]

    def renderer(self, job: Job) -> Renderer:
        parts = [
            part for message in job.messages for part in message.content if not isinstance(part, MediaRef)
        ]
        tokens = self.count("".join(parts)) + TEMPLATE_TOKENS * max(1, len(job.messages))
        if not job.messages:
            tokens = sum(isinstance(part, int) for part in job.prompt)
        return lambda counts: [0] * (tokens + sum(counts))

    def count(self, text: str) -> int:
        """LM tokens of `text`, in bounded time."""
        if self._tokenizer is None or len(text) > LONGEST_COUNTED:
            return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def end(self, token: int, *, ignore_eos: bool) -> FinishReason | None:
        return self._pieces[token][1]

    def text(self, token: int, *, ended: bool) -> str:
        return self._pieces[token][0]


def _tokenizer(model: str) -> Any:
    """The fast tokenizer of a model folder, or None."""
    path = Path(model) / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        from tokenizers import Tokenizer  # comes with transformers
    except ImportError:
        return None
    return Tokenizer.from_file(str(path))

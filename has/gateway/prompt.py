"""What prompts and tokens mean: from a job's messages to token ids, once its media are counted, and back to text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from has.gateway.job import FinishReason, Job, MediaRef
from has.models.names import PLACEHOLDER
from has.models.text import Tokenizer, chat_prompt

Renderer = Callable[[Sequence[int]], list[int]]
"""From the LM tokens of each medium to the prompt's ids: a placeholder for every embedding."""


def renderer(job: Job, tokenizer: Tokenizer) -> Renderer:
    """How `job`'s prompt is rendered: messages by the chat template, token ids as they are, after its media."""
    if job.messages:
        messages = [
            {
                "role": message.role,
                "content": [
                    {"type": job.media[part.index].kind}
                    if isinstance(part, MediaRef)
                    else {"type": "text", "text": part}
                    for part in message.content
                ],
            }
            for message in job.messages
        ]
        return lambda counts: chat_prompt(messages, counts, tokenizer)[0]
    ids = [part for part in job.prompt if isinstance(part, int)]
    kinds = [medium.kind for medium in job.media]
    return lambda counts: [
        *(id_ for kind, n in zip(kinds, counts, strict=True) for id_ in [int(PLACEHOLDER[kind])] * n),
        *ids,
    ]


class Language(Protocol):
    """A model's prompts and tokens, as far as a service must understand them.

    `says_ends`: a token itself says that it is the last, also of an answer that is as long as it may be. Else the
    service counts.

    `estimates`: a prompt's length is an estimate until the workers have counted; nothing is refused for it.
    `characters_per_token`: most characters of a text that one token can stand for.
    """

    says_ends: bool
    estimates: bool
    characters_per_token: int

    def renderer(self, job: Job) -> Renderer:
        """How `job`'s prompt is rendered. Where the workers render it, an estimate of its length will do."""

    def end(self, token: int, *, ignore_eos: bool) -> FinishReason | None:
        """Why the answer ends with this token, or None while it goes on."""

    def text(self, token: int, *, ended: bool) -> str:
        """What the token adds to the answer."""


class BundledLanguage:
    """The bundled models' byte-level tokenizer and chat template."""

    says_ends = False
    estimates = False
    characters_per_token = 1

    def __init__(self, eos: int | None) -> None:
        self._eos = eos
        self._tokenizer = Tokenizer()

    def renderer(self, job: Job) -> Renderer:
        return renderer(job, self._tokenizer)

    def end(self, token: int, *, ignore_eos: bool) -> FinishReason | None:
        return "stop" if token == self._eos and not ignore_eos else None

    def text(self, token: int, *, ended: bool) -> str:
        return "" if ended else self._tokenizer.piece(token)

"""From a job's messages to token ids, once its media are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from has.gateway.job import Job, MediaRef
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

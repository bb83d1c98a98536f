"""What the gateway keeps of one request for the workers.

In the channel, by age: media as they came (until decoded), preprocessed arrays (until its first
token: from them it can be started over), embeddings that leave their worker (until prefilled, or
taken in by a mixed worker), KV (until its decode worker has copied it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from has.gateway.port import Payload, PoolName
from has.runtime.channel import Region


@dataclass(slots=True)
class Held:
    """`regions` by kind: raw, media, embeddings, kv; `workers` may hold something of it.

    `parts`: first medium -> (media from there on that one worker encoded, where their embeddings are in
    the channel; None: still with the worker that will prefill).
    """

    payload: Payload
    regions: dict[str, list[Region]] = field(default_factory=dict)
    parts: dict[int, tuple[int, Region | None]] = field(default_factory=dict)
    decoded: list[dict[str, Any]] = field(default_factory=list)
    media: list[dict[str, Any]] = field(default_factory=list)
    ids: list[int] | None = None
    first_token: int = -1
    next_position: int = 0
    workers: set[tuple[PoolName, int]] = field(default_factory=set)

    @property
    def counts(self) -> list[int]:
        return [item["tokens"] for item in self.media]

    @property
    def embeddings(self) -> list[list[Any]]:
        """[media, region or None] of each part, in the order of the media."""
        return [list(part) for _, part in sorted(self.parts.items())]

    @property
    def output_tokens(self) -> int:
        payload = self.payload
        if payload.context is None:
            return payload.output_tokens
        return min(payload.output_tokens, payload.context - len(self.prompt))

    @property
    def prompt(self) -> list[int]:
        if self.ids is None:
            self.ids = self.payload.render(self.counts)
        return self.ids

"""The load of a live trial: jobs with real, unique media of the right number of tokens.

What a model can encode comes in whole tiles, frames or chunks, so a request's media tokens are
rounded to what its items can really have (`fitted`); figures, and whoever compares them with a
simulation, use the rounded list.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from has.core.requests import Requests
from has.core.stage import MODALITIES
from has.gateway.job import Job, MediaBytes, MediaKind
from has.models.names import FIRST_BYTE_ID
from has.models.synthetic import media_bytes, synthetic_media
from has.models.tokens import nearest_media_tokens


def item_tokens(model: str, kind: str, media_tokens: int, items: int) -> list[int]:
    """LM tokens of each of `items` items that together come nearest to `media_tokens`, shared out evenly."""
    sizes, left = [], media_tokens
    for remaining in range(items, 0, -1):
        size = nearest_media_tokens(model, kind, max(1, round(left / remaining)))
        sizes.append(size)
        left -= size
    return sizes


def fitted(requests: Requests, model: str) -> Requests:
    """The same requests with the media tokens that `model` will really see.

    Raises InputError where the model does not take a modality.
    """
    media = requests.media_tokens.copy()
    for i in np.flatnonzero(requests.is_media):
        kind = MODALITIES[int(requests.modality[i])]
        media[i] = sum(item_tokens(model, kind, int(media[i]), max(1, int(requests.items[i]))))
    prompt = np.maximum(requests.prompt_tokens, np.where(media == 0, 1, 0))
    return replace(requests, media_tokens=media, prompt_tokens=prompt)


class SyntheticLoad:
    """Jobs of a fitted list. The media of the last lists are kept: a search sends the same one in every trial."""

    def __init__(self, model: str, seed: int = 0) -> None:
        self.model = model
        self.seed = seed
        self._media: dict[tuple[str, int, int, int], bytes | tuple[bytes, ...]] = {}

    def jobs(self, requests: Requests, t0_s: float = 0.0) -> list[Job]:
        """One job a request, in order; `arrival_s` is set when it is sent."""
        return [self._job(requests, i) for i in range(len(requests))]

    def _job(self, requests: Requests, i: int) -> Job:
        rng = np.random.Generator(np.random.PCG64([self.seed, i]))
        prompt = rng.integers(0x20, 0x7F, int(requests.prompt_tokens[i])) + FIRST_BYTE_ID
        media = []
        if requests.modality[i]:
            kind: MediaKind = MODALITIES[int(requests.modality[i])]  # type: ignore[assignment]  # 0 is text
            items = max(1, int(requests.items[i]))
            for k, tokens in enumerate(item_tokens(self.model, kind, int(requests.media_tokens[i]), items)):
                media.append(MediaBytes(kind, self._item(kind, i, k, tokens)))
        return Job(
            prompt=tuple(prompt.tolist()),
            media=tuple(media),
            max_tokens=int(requests.output_tokens[i]),
            ignore_eos=True,
            id=f"trial-{i}",
        )

    def _item(self, kind: str, request: int, item: int, tokens: int) -> bytes | tuple[bytes, ...]:
        key = (kind, request, item, tokens)
        if key not in self._media:
            pixels = synthetic_media(kind, self.model, request * 1000 + item, self.seed, tokens)
            data = media_bytes(kind, pixels)
            self._media[key] = data if isinstance(data, bytes) else tuple(data)
        return self._media[key]

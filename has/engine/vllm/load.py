"""Requests for engines: text of about so many tokens, images of exactly so many, none like another."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np

from has.core.requests import Requests
from has.core.stage import MODALITIES
from has.engine.vllm.language import TEMPLATE_TOKENS, EngineLanguage
from has.engine.vllm.media_count import rule_of
from has.errors import InputError
from has.gateway.job import Job, MediaBytes
from has.models.rules import MediaSize, TokenRule

_SYLLABLES = ("ba", "ce", "di", "fo", "gu", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "wo", "zu")


class EngineLoad:
    """Jobs for `model` whose prompts no cache of an earlier run can know: each begins with words of this run.

    Raises InputError where no token rule is known for the model.
    """

    def __init__(self, model: str, language: EngineLanguage, seed: int = 0) -> None:
        rule = rule_of(model)
        if rule is None:
            raise InputError("no token rule is known, so media cannot be sized", field="model", value=model)
        self.rule: TokenRule = rule
        self._language = language
        self._seed = seed
        self._run = 0
        self._known: dict[int, MediaSize] = {}

    def fitted(self, requests: Requests) -> Requests:
        """The same requests with the media tokens that images can really have. InputError for other media."""
        media = requests.media_tokens.copy()
        for i in np.flatnonzero(requests.is_media):
            kind = MODALITIES[int(requests.modality[i])]
            if kind != "image":
                raise InputError("live trials on engines send images", field="modality", value=kind)
            items = max(1, int(requests.items[i]))
            media[i] = sum(size.tokens for size in self._sizes(int(media[i]), items))
        prompt = np.maximum(requests.prompt_tokens, TEMPLATE_TOKENS + 1)
        return replace(requests, media_tokens=media, prompt_tokens=prompt)

    def jobs(self, requests: Requests) -> list[Job]:
        """One job a request; those of another call are other jobs."""
        self._run += 1
        return [self._job(requests, i) for i in range(len(requests))]

    def _job(self, requests: Requests, i: int) -> Job:
        rng = np.random.default_rng([self._seed, self._run, i])
        items = int(requests.items[i]) if requests.modality[i] else 0
        sizes = self._sizes(int(requests.media_tokens[i]), items) if items else []
        return Job(
            prompt=self.text(int(requests.prompt_tokens[i]) - TEMPLATE_TOKENS, rng),
            media=tuple(MediaBytes("image", image(size, rng), "image/png") for size in sizes),
            max_tokens=int(requests.output_tokens[i]),
            ignore_eos=True,
            id=f"trial-{i}",
        )

    def _sizes(self, tokens: int, items: int) -> list[MediaSize]:
        sizes, left = [], tokens
        for remaining in range(items, 0, -1):
            wanted = max(1, round(left / remaining))
            if wanted not in self._known:  # a rule goes through all its sizes to find one
                self._known[wanted] = self.rule.nearest("image", wanted)
            size = self._known[wanted]
            sizes.append(size)
            left -= size.tokens
        return sizes

    def text(self, tokens: int, rng: np.random.Generator) -> str:
        """About `tokens` tokens of words that begin differently for every draw."""
        per_word = max(0.5, self._language.count(" ".join(_word(rng) for _ in range(32))) / 32)
        return " ".join(_word(rng) for _ in range(max(1, round(tokens / per_word))))


def _word(rng: np.random.Generator) -> str:
    return "".join(_SYLLABLES[k] for k in rng.integers(0, len(_SYLLABLES), 3))


def image(size: MediaSize, rng: np.random.Generator) -> bytes:
    """A PNG of random coloured squares: unlike any other, and small."""
    from PIL import Image

    colours = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(colours).resize((size.width, size.height), Image.Resampling.NEAREST).save(out, "PNG")
    return out.getvalue()

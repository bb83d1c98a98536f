"""Bodies of benchmark requests: text of a wanted length, media unlike any other, made before they are due."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from has.core.requests import Requests
from has.core.stage import MODALITIES
from has.errors import InputError
from has.models.names import is_bundled
from has.models.synthetic import media_bytes, synthetic_media
from has.models.tokens import nearest_media_tokens

STAND_IN = {"image": "Qwen2.5-VL-7B", "video": "Qwen2.5-VL-7B", "audio": "ultravox"}
"""Whose sizes media get where the model's own token rule is not known."""

AHEAD_BYTES = 512 * 2**20
"""Bodies held ready at most; a run that needs more makes them while it goes on."""

_NOUNS = (
    "time year people way day man thing woman life child world school state family student group country problem"
    " hand part place case week company system program question work government number night point home water room"
    " mother area money story fact month lot right study book eye job word business issue side kind head house"
)
_WORDS = tuple(_NOUNS.split())
"""Common English nouns: one token each in most vocabularies."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Text of a wanted number of tokens. `bare`: bytes are tokens; else words, by what the server counted."""

    bare: bool
    template_tokens: int = 0
    item_tokens: int = 0
    tokens_per_word: float = 1.0

    def text(self, tokens: int, items: int, rng: np.random.Generator) -> str:
        """At least one word or character; different at every call."""
        wanted = max(tokens - self.template_tokens - self.item_tokens * items, 1)
        count = wanted if self.bare else max(1, round(wanted / self.tokens_per_word))
        words = " ".join(_WORDS[i] for i in rng.integers(0, len(_WORDS), count))
        return words[:wanted] if self.bare else words


BUNDLED_WRITER = Writer(bare=True, template_tokens=4, item_tokens=2)
"""The bundled template adds begin, role, end and assistant marks, and two around each medium."""


def size_model(model: str, kind: str) -> str:
    """Whose token rule sizes the media of `kind` for `model`: its own, else a stand-in's."""
    try:
        nearest_media_tokens(model, kind, 1)
    except InputError:
        if is_bundled(model):
            raise  # it is known, and does not take this kind
        return STAND_IN[kind]
    return model


class Payloads:
    """The JSON bodies of all requests, in order, from a thread that runs ahead of the sending.

    media_tokens  int64[N], what the media sent really have by the model's rule
    """

    def __init__(
        self,
        requests: Requests,
        *,
        model: str,
        rule_model: str,
        writer: Writer,
        extra: dict[str, Any],
        seed: int = 0,
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        self._requests = requests
        self._model = model
        self._rule_model = rule_model
        self._writer = writer
        self._extra = extra
        self._seed = seed
        self._ahead_bytes = ahead_bytes
        self.media_tokens = requests.media_tokens.copy()
        self._bodies: dict[int, bytes] = {}
        self._held = 0
        self._changed = threading.Condition()
        self._ended = False
        self._fault: BaseException | None = None
        self._full = False
        self._thread = threading.Thread(target=self._make_all, name="payloads", daemon=True)

    def __enter__(self) -> Payloads:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    async def stocked(self) -> None:
        """Until every body is made, or as many as may be held."""
        await asyncio.to_thread(self._wait, lambda: self._full)

    async def take(self, i: int) -> bytes:
        """Body `i`; each is given once, in order."""
        if i not in self._bodies:
            await asyncio.to_thread(self._wait, lambda: i in self._bodies)
        with self._changed:
            body = self._bodies.pop(i)
            self._held -= len(body)
            self._changed.notify_all()
        return body

    def _wait(self, until: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: until() or self._fault is not None or self._ended)
            if self._fault is not None:
                raise self._fault

    def _make_all(self) -> None:
        try:
            for i in range(len(self._requests)):
                if not self._put(i, self._body(i)):
                    return
        except BaseException as fault:  # carried to whoever waits for a body
            self._fault = fault
        with self._changed:
            self._full = True
            self._changed.notify_all()

    def _put(self, i: int, body: bytes) -> bool:
        """Hold `body` once there is room (one always fits); False if nobody wants it any more."""

        def room() -> bool:
            return not self._held or self._held + len(body) <= self._ahead_bytes

        with self._changed:
            if not room():
                self._full = True
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended or room())
            self._bodies[i] = body
            self._held += len(body)
            self._changed.notify_all()
            return not self._ended

    def _body(self, i: int) -> bytes:
        requests = self._requests
        rng = np.random.Generator(np.random.PCG64([self._seed, i]))
        items = int(requests.items[i])
        content: list[dict[str, Any]] = []
        if items:
            kind = MODALITIES[int(requests.modality[i])]
            content = self._media(i, kind, items)
        content.append(
            {"type": "text", "text": self._writer.text(int(requests.prompt_tokens[i]), items, rng)}
        )
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": content if items else content[0]["text"]}],
            "max_tokens": int(requests.output_tokens[i]),
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }
        return json.dumps(body).encode()

    def _media(self, i: int, kind: str, items: int) -> list[dict[str, Any]]:
        """The request's media tokens, shared out evenly over its items."""
        rule = size_model(self._rule_model, kind)
        total = int(self._requests.media_tokens[i])
        parts, sent = [], 0
        for item in range(items):
            tokens = total * (item + 1) // items - total * item // items
            # Numbered through the run, so that no two are alike and no cache can help.
            medium = synthetic_media(kind, rule, i * 1000 + item, seed=self._seed, tokens=max(tokens, 1))
            parts.append(media_part(kind, media_bytes(kind, medium)))
            sent += nearest_media_tokens(rule, kind, max(tokens, 1))
        if rule == self._rule_model:
            self.media_tokens[i] = sent
        return parts


def media_part(kind: str, data: bytes | Sequence[bytes]) -> dict[str, Any]:
    """A medium as a content part of a message: PNG, frames, or WAV."""
    if kind == "audio":
        assert isinstance(data, bytes)
        return {"type": "input_audio", "input_audio": {"data": _base64(data), "format": "wav"}}
    if isinstance(data, bytes):
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_base64(data)}"}}
    frames = ",".join(map(_base64, data))
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{frames}"}}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()

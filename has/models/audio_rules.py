"""Token rules of audio families: 100 mel frames a second, halved by the encoder's convolutions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from has.errors import InputError
from has.models.rules import MediaSize, TokenRule, positive_s

MEL_PER_S = 100


def mel_frames(seconds: float) -> int:
    """10 ms hops in which there is sound, the last one perhaps begun only, as the families' processors count them. The slack
    keeps a clip of exactly n hops from gaining one by binary fractions."""
    return math.ceil(seconds * MEL_PER_S - 1e-6)


@dataclass(frozen=True, slots=True)
class ChunkRule(TokenRule):
    """Voxtral: sound is padded to whole chunks, each of which has `chunk_tokens`."""

    chunk_s: float = 30.0
    chunk_tokens: int = 375

    def chunks(self, seconds: float) -> int:
        positive_s(seconds, "audio_s")
        return max(1, math.ceil(seconds / self.chunk_s - 1e-9))

    def audio(self, seconds: float) -> int:
        return self.chunks(seconds) * self.chunk_tokens

    def sizes(self, kind: str) -> Iterator[MediaSize]:
        if kind != "audio":
            raise self.not_taken(kind)
        for chunks in range(1, 121):
            yield MediaSize("audio", chunks * self.chunk_tokens, seconds=chunks * self.chunk_s)


@dataclass(frozen=True, slots=True)
class StackRule(TokenRule):
    """Ultravox: chunks of 30 s, each cut to its own length; one token per `stack` encoder frames, rounded up."""

    stack: int = 8
    chunk_s: float = 30.0

    def audio(self, seconds: float) -> int:
        positive_s(seconds, "audio_s")
        return self.frames(max(1, mel_frames(seconds)))

    def frames(self, mel: int) -> int:
        """LM tokens of a sound of `mel` mel frames."""
        whole, rest = divmod(mel, round(self.chunk_s * MEL_PER_S))
        each = 2 * self.stack
        return whole * math.ceil(self.chunk_s * MEL_PER_S / each) + math.ceil(rest / each)

    def sizes(self, kind: str) -> Iterator[MediaSize]:
        if kind != "audio":
            raise self.not_taken(kind)
        for count in range(1, 2000):
            seconds = count * 2 * self.stack / MEL_PER_S
            yield MediaSize("audio", self.audio(seconds), seconds=seconds)


@dataclass(frozen=True, slots=True)
class Qwen2AudioRule(TokenRule):
    """Qwen2-Audio: Whisper's frames pooled in pairs, 25 tokens a second, nothing beyond 30 s."""

    max_s: float = 30.0

    def audio(self, seconds: float) -> int:
        positive_s(seconds, "audio_s")
        if seconds > self.max_s:
            raise InputError(
                "the model hears no more than this",
                field="audio_s",
                value=seconds,
                allowed=f"up to {self.max_s:g} s",
            )
        encoded = (max(3, mel_frames(seconds)) - 1) // 2 + 1
        return (encoded - 2) // 2 + 1

    def sizes(self, kind: str) -> Iterator[MediaSize]:
        if kind != "audio":
            raise self.not_taken(kind)
        for count in range(1, round(self.max_s * 25) + 1):
            yield MediaSize("audio", self.audio(count / 25), seconds=count / 25)

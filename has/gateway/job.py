"""What passes between the HTTP side and the service: one job in, its tokens out.

The HTTP side turns URLs into bytes and checks their declared kind and size; the service decodes
media, renders and tokenises the prompt, and schedules. Neither knows the other's inside.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from has.gateway.observer import ServiceState

MediaKind = Literal["image", "video", "audio"]
FinishReason = Literal["stop", "length"]
CUT_SHORT = ("abort", "error")
"""What engines say in its place of what is no whole answer: one that is stopped, paused or put to sleep ends its requests so."""


@dataclass(frozen=True, slots=True)
class MediaBytes:
    """One medium as it came, not decoded, and what it is said to be.

    data    an encoded file; a video may also come as its encoded frames
    format  MIME type or format, if it was given
    param   where in the request it stood, for error messages
    size    width and height of an image, where its header has been read
    """

    kind: MediaKind
    data: bytes | tuple[bytes, ...]
    format: str | None = None
    param: str | None = None
    size: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class MediaRef:
    """The place of a medium among the text: an index into `Job.media`."""

    index: int


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `content` keeps text and media in the order in which the client wrote them."""

    role: str
    content: tuple[str | MediaRef, ...]

    @property
    def text(self) -> str:
        return "".join(part for part in self.content if isinstance(part, str))


@dataclass(frozen=True, slots=True)
class Job:
    """One request.

    prompt       messages, or plain text, or token ids already made (trials)
    media        in order of appearance; with a prompt that is no list of messages they precede the text
    max_tokens   most tokens to produce; None: as many as the service's context leaves
    temperature  0 is greedy
    seed         of the sampling; None: the service picks one
    stop         strings that end the answer. The HTTP side watches for them in the text and closes the
                 iterator; a service may ignore them.
    ignore_eos   go on past the end-of-sequence token, to exactly `max_tokens` (benchmarks)
    arrival_s    when the client sent it, on the service's clock; None: now
    id           appears in logs and answers
    """

    prompt: tuple[Message, ...] | tuple[int, ...] | str
    media: tuple[MediaBytes, ...] = ()
    max_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    arrival_s: float | None = None
    id: str = ""

    @property
    def characters(self) -> int:
        """Of its text, in all."""
        if isinstance(self.prompt, str):
            return len(self.prompt)
        texts = (part for message in self.messages for part in message.content if isinstance(part, str))
        return sum(map(len, texts))

    @property
    def messages(self) -> tuple[Message, ...]:
        """The prompt as messages; text becomes one user message after all media. Token ids have none."""
        if isinstance(self.prompt, str):
            refs = tuple(MediaRef(i) for i in range(len(self.media)))
            return (Message("user", (*refs, self.prompt)),)
        return tuple(part for part in self.prompt if isinstance(part, Message))


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token.

    text           what it adds to the answer; may be empty (end of sequence, half a character)
    index          tokens of this answer so far, 1 at the first
    prompt_tokens  prompt and media tokens of the request, as prefill saw them
    finish_reason  set on the last event only: `stop` (end of sequence) or `length`
    end_s          the virtual end of the work that made it, on the service's clock; None if it has none
    """

    token_id: int
    text: str
    index: int
    prompt_tokens: int
    finish_reason: FinishReason | None = None
    end_s: float | None = None


class Tokens(Protocol):
    """The tokens of one job, as they are made. Ends after the event with a finish reason.

    Raises `Interrupted` or `Unavailable` when workers failed, `BadRequest` when the media turned out
    to be undecodable.
    """

    @property
    def more(self) -> bool:
        """Whether the next token is here already."""

    def __aiter__(self) -> AsyncIterator[TokenEvent]: ...

    async def __anext__(self) -> TokenEvent: ...

    async def aclose(self) -> None:
        """The client is gone, or has enough: cancel the job and free its KV. Allowed at any time, also twice."""


class Serving(Protocol):
    """What the HTTP side needs of a service."""

    @property
    def model(self) -> str:
        """The model's name, as requests name it."""

    @property
    def max_model_len(self) -> int | None:
        """Most prompt, media and output tokens of one request; None if there is no bound."""

    def not_ready(self) -> str | None:
        """None when a chat sent now would be served; else why not, in a few words."""

    def state(self) -> ServiceState:
        """What is going on now, for metrics."""

    async def submit(self, job: Job) -> Tokens:
        """Take the job on, or raise `Refused`, `BadRequest` or `Unavailable`. Returns once it is admitted."""

"""The OpenAI chat API, as far as it is served: what a request may hold, and the shapes of the answers.

What cannot be honoured is refused by name rather than ignored, unless it stands at its neutral
value. Unknown fields are ignored, as OpenAI-compatible servers do.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from has.gateway.errors import BadRequest, TooLarge
from has.gateway.job import MediaKind


class _Schema(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class Url(_Schema):
    url: str

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value


class InputAudio(_Schema):
    data: str
    format: Literal["wav", "mp3", "flac"]


class TextPart(_Schema):
    type: Literal["text"]
    text: str


class ImagePart(_Schema):
    type: Literal["image_url"]
    image_url: Url


class VideoPart(_Schema):
    type: Literal["video_url"]
    video_url: Url


class AudioUrlPart(_Schema):
    type: Literal["audio_url"]
    audio_url: Url


class AudioPart(_Schema):
    type: Literal["input_audio"]
    input_audio: InputAudio


UrlPart = ImagePart | VideoPart | AudioUrlPart
Part = Annotated[TextPart | UrlPart | AudioPart, Field(discriminator="type")]


PART_TYPES = ("text", "image_url", "video_url", "audio_url", "input_audio")


class ChatMessage(_Schema):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: list[Part] | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        return [{"type": "text", "text": value}] if isinstance(value, str) else value


class StreamOptions(_Schema):
    include_usage: bool = False


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "frequency_penalty": (None, 0),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "modalities": (None, ["text"]),
    "n": (None, 1),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "response_format": (None, {"type": "text"}),
    "tools": (None, []),
    "top_k": (None, -1, 0),
    "top_logprobs": (None, 0),
    "use_beam_search": (None, False),
}
"""Fields that are not honoured, each with the values at which that changes nothing."""


class ChatRequest(_Schema):
    """A request to `/v1/chat/completions`.

    Without `temperature` an answer is greedy, as a server does whose model's generation config says
    so. `min_tokens` is honoured where it asks for exactly `max_tokens` (benchmarks do).
    """

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None

    @property
    def token_limit(self) -> int | None:
        """`max_completion_tokens` is the newer name of `max_tokens`, and wins."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @field_validator("stop", mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


MOST_BRACKETS, MOST_COMMAS = 2**17, 2**20
"""Of a body: every object and list takes microseconds to read, every other value a tenth, in which no other answer
moves. Those within texts are counted too, as nothing else is as quick; so many are more than a hundred thousand tokens."""


def parse_chat(body: bytes) -> ChatRequest:
    """The request in `body`. Raises BadRequest naming the first field that is wrong."""
    if len(body) > MOST_BRACKETS and _count(body, b"{") + _count(body, b"[") > MOST_BRACKETS:
        raise TooLarge(f"the body has more than {MOST_BRACKETS} objects and lists")
    if len(body) > MOST_COMMAS and _count(body, b",") > MOST_COMMAS:
        raise TooLarge(f"the body has more than {MOST_COMMAS} commas")
    try:
        data = json.loads(body, parse_constant=_no_constant)
        if b"\\u" in body:
            # An escaped half of a surrogate pair is JSON but no text: nothing could send it on.
            json.dumps(data, ensure_ascii=False).encode()
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error
    except ValueError as error:  # also what no UTF-8 is
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadRequest("the body must be a JSON object")
    if data.get("min_tokens") and data["min_tokens"] in (
        data.get("max_completion_tokens"),
        data.get("max_tokens"),
    ):
        data = {**data, "min_tokens": 0, "ignore_eos": True}
    for field, neutral in NEUTRAL.items():
        if data.get(field) not in neutral:
            raise BadRequest(f"{field} is not supported", field, code="unsupported")
    try:
        request = ChatRequest.model_validate(data)
    except ValidationError as error:
        raise _first_fault(error) from error
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options goes with stream: true", "stream_options")
    return request


def _count(body: bytes, byte: bytes) -> int:
    """As `body.count(byte)`, but skips to the next one as memchr does: fifty times as quick where there are few."""
    return len(body) - len(body.replace(byte, b""))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _first_fault(error: ValidationError) -> BadRequest:
    fault = error.errors(include_url=False, include_context=False)[0]
    path: list[str] = []
    steps = fault["loc"]
    for before, step in zip((None, *steps), steps, strict=False):
        if not (isinstance(before, int) and step in PART_TYPES):  # pydantic's mark of the union's member
            path.append(str(step))
    where = ".".join(path)
    return BadRequest(f"{where}: {fault['msg']}" if where else fault["msg"], where or None)


def part_url(part: UrlPart) -> tuple[MediaKind, str]:
    """Kind and URL of a medium that is given by URL."""
    match part:
        case ImagePart():
            return "image", part.image_url.url
        case VideoPart():
            return "video", part.video_url.url
        case AudioUrlPart():
            return "audio", part.audio_url.url


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def completion(
    id: str, created: int, model: str, text: str, finish_reason: str, counts: dict[str, int]
) -> dict[str, Any]:
    """A whole answer."""
    return {
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": finish_reason,
            }
        ],
        "usage": counts,
    }


class Chunks:
    """The server-sent events of one streamed answer, as bytes."""

    def __init__(self, id: str, created: int, model: str, include_usage: bool) -> None:
        self._head = json.dumps(
            {"id": id, "object": "chat.completion.chunk", "created": created, "model": model}
        )[:-1]
        self._include_usage = include_usage
        self._no_usage = ',"usage":null' if include_usage else ""
        self._role = '"role":"assistant",'

    def token(self, text: str, finish_reason: str | None) -> bytes:
        """What one token adds; the first says whose words these are."""
        role, self._role = self._role, ""
        finish = "null" if finish_reason is None else f'"{finish_reason}"'
        return (
            f'data: {self._head},"choices":[{{"index":0,"delta":{{{role}"content":{json.dumps(text)}}},'
            f'"logprobs":null,"finish_reason":{finish}}}]{self._no_usage}}}\n\n'
        ).encode()

    def end(self, counts: dict[str, int]) -> bytes:
        last = (
            f'data: {self._head},"choices":[],"usage":{json.dumps(counts)}}}\n\n'
            if self._include_usage
            else ""
        )
        return f"{last}data: [DONE]\n\n".encode()

    def error(self, body: dict[str, Any]) -> bytes:
        return f"data: {json.dumps(body)}\n\ndata: [DONE]\n\n".encode()


ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The body of every error, whatever its status."""
    return {
        "error": {
            "message": message,
            "type": ERROR_TYPES.get(status, "server_error"),
            "param": param,
            "code": code,
        }
    }

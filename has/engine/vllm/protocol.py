"""What vLLM's instances are asked and what they answer, as data: no connections here.

    encode   the media alone, each under a name of ours (`uuid`) -> `ec_transfer_params`: grid by name
    prefill  the prompt with grids in place of pixels, those handles, one token, and
             `kv_transfer_params {do_remote_decode: true}` -> `kv_transfer_params` for decode
    decode   the same prompt and what prefill returned, streamed

A name of a medium is made of the request, so that nothing is ever taken for another's, and its file
can be removed when the request is over. `return_token_ids` gives the count of tokens in a chunk
whose text is empty, as it is for half a character and for special tokens.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from has.gateway.job import CUT_SHORT, FinishReason, Job, MediaBytes, MediaRef
from has.gateway.port import Payload

PATH = "/v1/chat/completions"
EMBEDS = {"image": "image_embeds", "video": "video_embeds", "audio": "audio_embeds"}
REMOTE_DECODE: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass(slots=True)
class Encoded:
    """What encoders said of one request's media: the connector's handles by name, and the grid of each item."""

    handles: dict[str, Any] = field(default_factory=dict)
    grids: dict[int, dict[str, Any]] = field(default_factory=dict)


def part_of(medium: MediaBytes, name: str) -> dict[str, Any]:
    """The content part that carries `medium` itself."""
    data = medium.data if isinstance(medium.data, tuple) else (medium.data,)
    body = ",".join(base64.b64encode(piece).decode() for piece in data)
    if medium.kind == "audio" and medium.format and "/" not in medium.format:
        return {"type": "input_audio", "input_audio": {"data": body, "format": medium.format}, "uuid": name}
    mime = medium.format if medium.format and "/" in medium.format else _mime(medium)
    kind = f"{medium.kind}_url"
    return {"type": kind, kind: {"url": f"data:{mime};base64,{body}"}, "uuid": name}


def _mime(medium: MediaBytes) -> str:
    if isinstance(medium.data, tuple):
        return "video/jpeg"
    return {"image": "image/png", "video": "video/mp4", "audio": "audio/wav"}[medium.kind]


def encode_body(model: str, media: Sequence[MediaBytes], names: Sequence[str]) -> dict[str, Any]:
    content = [part_of(medium, name) for medium, name in zip(media, names, strict=True)]
    return {"model": model, "stream": False, "messages": [{"role": "user", "content": content}]}


def read_encoded(answer: Mapping[str, Any], items: int) -> Encoded:
    """Handles and grids in an encoder's answer. A grid that is missing leaves its item to be sent as it is."""
    result = Encoded(dict(answer.get("ec_transfer_params") or {}))
    for report in result.handles.values():
        indices = report.get("item_indices") or ([0] if items == 1 else [])
        for index in indices:
            if report.get("metadata"):
                result.grids[index] = report["metadata"]
    return result


def messages(job: Job, names: Sequence[str], encoded: Encoded | None) -> list[dict[str, Any]]:
    """The prompt for a language instance: grids where all are known, else the media themselves."""
    rewrite = encoded is not None and len(encoded.grids) == len(job.media)

    def part(ref: MediaRef) -> dict[str, Any]:
        medium, name = job.media[ref.index], names[ref.index]
        if not rewrite or encoded is None:
            return part_of(medium, name)
        kind = EMBEDS[medium.kind]
        return {"type": kind, kind: _flat(encoded.grids[ref.index]), "uuid": name}

    return [
        {
            "role": message.role,
            "content": [
                part(p) if isinstance(p, MediaRef) else {"type": "text", "text": p} for p in message.content
            ],
        }
        for message in job.messages
    ]


def _flat(grid: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {
        key: [x for y in value for x in (y if isinstance(y, list) else [y])] for key, value in grid.items()
    }


def language_body(model: str, payload: Payload, prompt: list[dict[str, Any]]) -> dict[str, Any]:
    """What prefill and decode have in common."""
    body: dict[str, Any] = {
        "model": model,
        "messages": prompt,
        "temperature": payload.temperature,
        "top_p": payload.top_p,
        "return_token_ids": True,
    }
    if payload.temperature > 0:
        body["seed"] = payload.seed
    if payload.ignore_eos:
        body["ignore_eos"] = True
    if payload.job is None or payload.job.max_tokens is not None:
        body["max_tokens"] = payload.output_tokens
    return body


def prefill_body(common: Mapping[str, Any], encoded: Encoded | None, *, transfer: bool) -> dict[str, Any]:
    body = {**common, "stream": False, "max_tokens": 1}
    body.pop("return_token_ids", None)  # nobody reads the prompt's, which are long
    if encoded is not None and encoded.handles:
        body["ec_transfer_params"] = encoded.handles
    if transfer:
        body["kv_transfer_params"] = REMOTE_DECODE
    return body


def decode_body(
    common: Mapping[str, Any], encoded: Encoded | None, kv: Mapping[str, Any] | None
) -> dict[str, Any]:
    """`kv` is what prefill returned; without it the instance prefills too, and needs the handles."""
    body = {**common, "stream": True, "stream_options": {"include_usage": True}}
    if kv is not None:
        body["kv_transfer_params"] = dict(kv)
    elif encoded is not None and encoded.handles:
        body["ec_transfer_params"] = encoded.handles
    return body


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of a stream: its text, how many tokens that is, and what it ends or counts."""

    text: str = ""
    tokens: int = 0
    finish: FinishReason | None = None
    prompt_tokens: int | None = None
    error: str = ""


def read_chunk(line: bytes) -> Chunk | None:
    """A `data:` line of a stream; None for what carries nothing. A chunk without ids counts as one token if it has text.

    One that ends an answer the engine did not finish carries that as its `error`.
    """
    if not line.startswith(b"data:"):
        return None
    data = line[5:].strip()
    if not data or data == b"[DONE]":
        return None
    event = json.loads(data)
    if event.get("error"):
        error = event["error"]
        return Chunk(error=str(error.get("message", error) if isinstance(error, dict) else error))
    if reason := cut_short(event):
        return Chunk(error=reason)
    counted = (event.get("usage") or {}).get("prompt_tokens")
    if counted is None and event.get("prompt_token_ids"):
        counted = len(event["prompt_token_ids"])
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        text = (delta.get("content") or "") + (delta.get("reasoning") or delta.get("reasoning_content") or "")
        ids = choice.get("token_ids")
        tokens = len(ids) if ids is not None else int(bool(text))
        finish = choice.get("finish_reason")
        return Chunk(text, tokens, None if finish is None else _finish(finish), counted)
    return Chunk(prompt_tokens=counted) if counted is not None else None


def cut_short(answer: Mapping[str, Any]) -> str:
    """Why a whole answer, or one event of a stream, is the end of what the engine did not finish; "" if it is not."""
    for choice in answer.get("choices") or ():
        if choice.get("finish_reason") in CUT_SHORT:
            return f"the engine ended it ({choice['finish_reason']})"
    return ""


def _finish(reason: str | None) -> FinishReason:
    """In the API's words: vLLM also ends by `repetition` and `tool_calls`, which are ends of its own choice."""
    return "length" if reason == "length" else "stop"


@dataclass(frozen=True, slots=True)
class PrefillAnswer:
    text: str
    finish: FinishReason
    prompt_tokens: int | None
    kv: Mapping[str, Any] | None


def read_prefilled(answer: Mapping[str, Any]) -> PrefillAnswer:
    choice = answer["choices"][0]
    return PrefillAnswer(
        (choice.get("message") or {}).get("content") or "",
        _finish(choice.get("finish_reason")),
        (answer.get("usage") or {}).get("prompt_tokens"),
        answer.get("kv_transfer_params"),
    )

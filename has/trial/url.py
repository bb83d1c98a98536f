"""`has bench`: a list of requests against any OpenAI-compatible URL, and what came back, as records.

TTFT runs from the send to the first chunk with text; a request that fails, is refused or does not
answer in time is a miss. How many tokens an answer has is the server's word (usage), else the
number of chunks with text.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from has.core.figures import figures
from has.core.records import COMPLETED, REFUSED, Records
from has.core.requests import Requests
from has.core.slo import Slo
from has.core.words import plural
from has.errors import InputError, RunError
from has.gateway.job import CUT_SHORT
from has.models.names import is_bundled
from has.trial.loadgen import LATE_S, Schedule, open_loop
from has.trial.payload import BUNDLED_WRITER, Payloads, Writer

TIMEOUT_S = 600.0

Watch = Callable[[int, int, int], None]
"""Told (sent, ended, all) as the run goes on."""


@dataclass(slots=True)
class _Sample:
    """One request: times on the clock, 0 where it did not get that far."""

    sent_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    chunks: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finished: bool = False
    refused: bool = False
    fault: str | None = None
    pieces: Counter[str] = field(default_factory=Counter)

    @property
    def tokens(self) -> int:
        return self.completion_tokens or self.chunks


@dataclass(frozen=True, slots=True)
class UrlRun:
    """What a run gave.

    records   of all requests; arrival is the send; prompt and output tokens are what the server counted
    schedule  how late the generator was
    faults    why requests failed, with counts (`timeout`, `429 queue`, `ConnectError`)
    empty     answers without a token, counted as failed
    monotone  answers of ten and more tokens that repeat one token throughout, as NaN logits do
    """

    model: str
    records: Records
    schedule: Schedule
    faults: Mapping[str, int]
    empty: int
    monotone: int

    def figures(self, slo: Slo, warmup_s: float = 0.0) -> dict[str, Any]:
        return figures(self.records, slo, warmup_s)

    @property
    def warnings(self) -> list[str]:
        """What a reader of the figures must know, in sentences; empty when all is well."""
        said = [f"{plural(count, 'request')} failed: {why}" for why, count in self.faults.items()]
        if self.schedule.late_p90_s > LATE_S:
            said.append(
                f"the load generator was late by {self.schedule.late_p90_s * 1e3:.0f} ms (p90; {LATE_S * 1e3:.0f} allowed): this machine was too busy, take the figures with care"
            )
        if self.monotone:
            said.append(
                f"{self.monotone} answers repeat one token throughout; real models do that on NaN logits"
            )
        return said


def bench_url(
    url: str,
    requests: Requests,
    *,
    model: str | None = None,
    api_key: str | None = None,
    timeout_s: float = TIMEOUT_S,
    seed: int = 0,
    watch: Watch = lambda sent, ended, total: None,
) -> UrlRun:
    """Send `requests` to `url` at their arrival times and wait for all of them.

    `url` is the server's root, its `/v1`, or the chat endpoint itself. `model` defaults to the first
    one listed. Media are synthetic, different for every item, and sized so that the model's token
    rule (a stand-in's for an unknown model) gives the tokens asked for. Raises InputError for a URL,
    model or key that is none, RunError if the server does not answer a first request.
    """
    return asyncio.run(_bench(url, requests, model, api_key, timeout_s, seed, watch))


async def _bench(
    url: str,
    requests: Requests,
    model: str | None,
    api_key: str | None,
    timeout_s: float,
    seed: int,
    watch: Watch,
) -> UrlRun:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    async with httpx.AsyncClient(
        base_url=api_root(url),
        headers={**headers, "Content-Type": "application/json"},
        timeout=httpx.Timeout(None, connect=10.0),
        # Servers drop idle connections after 5 s; one reused at that very moment would count as a failure.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
    ) as client:
        server = _Server(client)
        await server.meet(model)
        samples = [_Sample() for _ in range(len(requests))]
        payloads = Payloads(
            requests,
            model=server.model,
            rule_model=server.rule_model,
            writer=server.writer,
            extra=server.extra,
            seed=seed,
        )
        sent = ended = 0

        async def send(i: int, body: bytes, sent_s: float) -> None:
            nonlocal sent, ended
            samples[i].sent_s = sent_s
            sent += 1
            watch(sent, ended, len(samples))
            await _ask(client, body, samples[i], timeout_s)
            ended += 1
            watch(sent, ended, len(samples))

        with payloads:
            await payloads.stocked()
            offsets_s = (requests.arrival_ns - requests.arrival_ns[:1].sum()) / 1e9
            schedule = await open_loop(offsets_s, payloads.take, send)
    return _run(server.model, requests, payloads.media_tokens, samples, schedule)


def api_root(url: str) -> str:
    """`http://host:port/v1` of whatever form of URL a person gave."""
    text = url.strip() if "://" in url else f"http://{url.strip()}"
    try:
        parsed = httpx.URL(text)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InputError("not a URL", where="argument", field="URL", value=url, allowed="http://host:port")
    if parsed.port is not None and not 1 <= parsed.port <= 65535:
        raise InputError(
            "no such port", where="argument", field="URL", value=url, allowed="a port from 1 to 65535"
        )
    text = text.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    return text if text.endswith("/v1") else f"{text}/v1"


class _Server:
    """Who is at the other end: the model, what it accepts beyond the standard, how it counts text."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.model = ""
        self.rule_model = ""
        self.extra: dict[str, Any] = {"ignore_eos": True}
        self.writer = Writer(bare=False)
        self._keyless = False

    async def meet(self, model: str | None) -> None:
        try:
            listed = await self._json("GET", "/models")
        except InputError:
            if model is None or self._keyless:
                raise
            listed = {}  # not every server lists its models; the first request will tell
        cards = {
            card["id"]: card for card in listed.get("data", []) if isinstance(card, dict) and "id" in card
        }
        if model is None and not cards:
            raise RunError("the server lists no model", mend="--model NAME")
        self.model = model or next(iter(cards))
        if cards and self.model not in cards:
            raise InputError(
                "the server has no such model",
                where="argument",
                field="--model",
                value=model,
                allowed=", ".join(cards),
            )
        # vLLM, and HAS, say in `root` which model hides behind a served name.
        self.rule_model = str(cards.get(self.model, {}).get("root") or self.model)
        one = await self._first_answer("time")
        if is_bundled(self.rule_model):
            self.writer = BUNDLED_WRITER
        elif one is not None:
            hundred = await self._count(" ".join(["time"] * 101))
            if hundred is not None and hundred > one:
                per_word = (hundred - one) / 100
                self.writer = Writer(False, template_tokens=round(one - per_word), tokens_per_word=per_word)

    async def _first_answer(self, text: str) -> int | None:
        try:
            return await self._count(text)
        except InputError:
            if not self.extra:
                raise
            self.extra = {}  # a server that refuses fields it does not know: answers may then end early
            return await self._count(text)

    async def _count(self, text: str) -> int | None:
        """Prompt tokens of `text` as the server counts them."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1,
            **self.extra,
        }
        answer = await self._json("POST", "/chat/completions", json=body)
        count = (answer.get("usage") or {}).get("prompt_tokens")
        return int(count) if count is not None else None

    async def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = await self._client.request(method, path, timeout=60.0, **options)
            data = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise RunError(
                f"no OpenAI-compatible server answers at {self._client.base_url} ({type(error).__name__})",
                mend="start it, or mend the URL",
            ) from error
        if response.status_code in (401, 403):
            self._keyless = True
            raise InputError(
                "the server wants another API key", where="argument", field="--api-key", mend="--api-key KEY"
            )
        if response.status_code in (400, 404, 422):
            raise InputError(f"the server refuses: {_message(data)}", where=str(response.url))
        if response.status_code != 200 or not isinstance(data, dict):
            raise RunError(f"{response.url} answered {response.status_code}: {_message(data)}")
        return data


def _message(data: Any) -> str:
    error = data.get("error", data) if isinstance(data, dict) else data
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]


async def _ask(client: httpx.AsyncClient, body: bytes, sample: _Sample, timeout_s: float) -> None:
    try:
        async with (
            asyncio.timeout(timeout_s),
            client.stream("POST", "/chat/completions", content=body) as response,
        ):
            if response.status_code != 200:
                await response.aread()
                sample.refused = response.status_code == 429
                sample.fault = _status_fault(response)
                return
            async for data in _events(response):
                _take(sample, data, time.monotonic())
    except TimeoutError:
        sample.fault = "timeout"
    except (httpx.HTTPError, OSError) as error:
        sample.fault = type(error).__name__
    except (ValueError, TypeError, AttributeError, KeyError):
        sample.fault = "not a chat completion stream"
    else:
        if not sample.finished and sample.fault is None:
            sample.fault = "cut off"


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """The `data:` lines of a server-sent event stream."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _take(sample: _Sample, data: bytes, now_s: float) -> None:
    if data == b"[DONE]":
        return
    chunk = json.loads(data)
    if "error" in chunk:
        sample.fault = f"error in the stream: {_message(chunk)}"[:80]
        return
    if chunk.get("usage"):
        sample.prompt_tokens = chunk["usage"].get("prompt_tokens")
        sample.completion_tokens = chunk["usage"].get("completion_tokens")
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
        if text:
            sample.first_s = sample.first_s or now_s
            sample.last_s = now_s
            sample.chunks += 1
            sample.pieces[text] += 1
        if (reason := choice.get("finish_reason")) in CUT_SHORT:
            sample.fault = f"ended by the server ({reason})"
        elif reason:
            sample.finished = True


def _status_fault(response: httpx.Response) -> str:
    try:
        error = response.json()["error"]
        why = error.get("code") or error.get("type") or ""
    except (ValueError, KeyError, TypeError, AttributeError):
        why = ""
    return f"{response.status_code} {why}".strip()


def _run(
    model: str, requests: Requests, media_tokens: Any, samples: list[_Sample], schedule: Schedule
) -> UrlRun:
    def ns(time_s: float) -> int:
        return round((time_s - schedule.start_s) * 1e9)

    prompt, output = requests.prompt_tokens.copy(), requests.output_tokens.copy()
    for i, sample in enumerate(samples):
        if sample.prompt_tokens is not None and sample.prompt_tokens >= media_tokens[i]:
            prompt[i] = sample.prompt_tokens - media_tokens[i]
        if sample.finished and sample.tokens:
            output[i] = sample.tokens
    sent = np.array([ns(sample.sent_s) for sample in samples], np.int64)
    records = Records.empty(
        dataclasses.replace(
            requests, arrival_ns=sent, prompt_tokens=prompt, media_tokens=media_tokens, output_tokens=output
        )
    )
    empty = monotone = 0
    faults: Counter[str] = Counter()
    for i, sample in enumerate(samples):
        if sample.fault is None and sample.chunks == 0:
            empty += 1
            sample.fault = "empty answer"
        if sample.fault is not None:
            faults[sample.fault] += 1
            records.status[i] = REFUSED if sample.refused else records.status[i]
            continue
        monotone += sample.chunks >= 10 and len(sample.pieces) == 1
        records.status[i] = COMPLETED
        records.first_token_ns[i], records.finish_ns[i] = ns(sample.first_s), ns(sample.last_s)
    return UrlRun(model, records, schedule, dict(faults), empty, monotone)

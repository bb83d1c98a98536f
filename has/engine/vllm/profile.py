"""A profile measured on running vLLM instances: what each stage takes as its gateway sees it.

| stage | how |
|---|---|
| encode | b requests of one image at once to an encoder, until all have answered; preprocessing is part of it |
| prefill | b prompts of text at once, one token each |
| decode | b streams at once; the mean time between tokens, by the instance's own counters |
| embedding_transfer | prefill of an image's embeddings, less prefill of as much text |
| kv_transfer | from asking decode to its first token, less one step |

There is one SM share, 100 %: an engine does not give shares. Every prompt and image is new.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
import numpy as np

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.engine.sizes import Sizes
from has.engine.vllm import protocol
from has.engine.vllm.client import KEEPALIVE_S
from has.engine.vllm.fleet import Fleet
from has.engine.vllm.install import Installed
from has.engine.vllm.language import EngineLanguage
from has.engine.vllm.load import EngineLoad, image
from has.engine.vllm.metrics import difference, look
from has.engine.vllm.urls import Urls
from has.errors import RunError
from has.files.profile import profile_from_rows
from has.gateway.job import Job, MediaBytes
from has.gateway.port import Payload

BATCHES = (1, 2, 4)
IMAGE_TOKENS = (16, 64, 256)
PROMPT_TOKENS = (64, 256, 1024)
CONTEXTS = (64, 512)
SAMPLES = 4
DECODE_TOKENS = 24
STREAMS = (1, 4, 8)


@dataclass(frozen=True, slots=True)
class Step:
    """Where the measurement stands."""

    done: int
    total: int
    doing: str
    eta_s: float | None = None


def profile_engine(
    found: Installed,
    model: str,
    *,
    batches: Sequence[int] = BATCHES,
    tokens: Sequence[int] | None = None,
    seed: int = 0,
    progress: Callable[[Step], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    fleet: Fleet | None = None,
) -> Profile:
    """Start an encode, a prefill and a decode instance of `model` (or use `fleet`) and measure them.

    batches  of encode and prefill
    tokens   of images, prompts and contexts alike; default: a few of each

    Raises RunError with the engine's reason where an instance does not start or answer.
    """
    images = sorted({*(tokens or IMAGE_TOKENS)})
    prompts, contexts = sorted({*(tokens or PROMPT_TOKENS)}), sorted({*(tokens or CONTEXTS)})
    most = max(*images, *prompts, *contexts)
    own = fleet is None
    fleet = fleet or Fleet(found, model, 3, say=say)
    try:
        deployment = Deployment.model_validate(
            {
                "version": 1,
                "model": model,
                "topology": "disaggregated",
                "gpus": 3,
                "alloc": {"encode": 1, "prefill": 1, "decode": 1},
                "encode_batch": max(batches),
                "prefill_offload": 1.0,
                "slo": {"ttft_ms": 60_000.0, "tpot_ms": 10_000.0},
            }
        )
        urls = fleet.arrange(fleet.plan(deployment, Sizes(max(images), max(images), most, {"image": 4})))
        rows = asyncio.run(
            _Bench(fleet.name, model, urls, seed, progress).rows(images, prompts, contexts, batches)
        )
    finally:
        if own:
            fleet.close()
    metadata = {
        "version": 1,
        "device": found.device,
        "model": model,
        "source": "measured",
        "engine": "vllm",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "dtype": "float32" if found.cpu else None,
        "notes": f"measured on running instances of vLLM {found.version}, through HTTP; encode includes preprocessing",
    }
    return profile_from_rows({k: v for k, v in metadata.items() if v is not None}, rows)


class _Bench:
    def __init__(
        self, name: str, model: str, urls: Urls, seed: int, progress: Callable[[Step], None]
    ) -> None:
        self._name = name
        self._urls = urls
        self._load = EngineLoad(model, EngineLanguage(model), seed)
        self._rng = np.random.default_rng(seed)
        self._progress = progress
        self._count = 0
        self._client = httpx.AsyncClient(
            timeout=120.0, trust_env=False, limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S)
        )

    async def rows(
        self, images: Sequence[int], prompts: Sequence[int], contexts: Sequence[int], batches: Sequence[int]
    ) -> list[dict[str, Any]]:
        plan = [
            *(("encode", b, t) for b in batches for t in images),
            *(("prefill", b, t) for b in batches for t in prompts),
            *(("decode", b, t) for b in STREAMS for t in contexts),
            *(("embedding_transfer", 1, t) for t in images),
            *(("kv_transfer", 1, t) for t in prompts),
        ]
        measure = {
            "encode": self._encode,
            "prefill": self._prefill,
            "decode": self._decode,
            "embedding_transfer": self._embedding_transfer,
            "kv_transfer": self._kv_transfer,
        }
        rows: dict[tuple[str, int, int], dict[str, Any]] = {}
        try:
            for done, (stage, batch, tokens) in enumerate(plan):
                self._progress(Step(done, len(plan), f"{stage} batch {batch} tokens {tokens}"))
                samples, real = await measure[stage](batch, tokens)
                key = (stage, batch, real)
                if key not in rows:  # two asked sizes may be one that images can have
                    rows[key] = _row(stage, batch, real, samples)
        finally:
            await self._client.aclose()
        self._progress(Step(len(plan), len(plan), ""))
        return rising(list(rows.values()))

    async def _encode(self, batch: int, tokens: int) -> tuple[list[float], int]:
        size = self._load.rule.nearest("image", tokens)

        async def one() -> None:
            await self._encoded(image(size, self._rng))

        return await self._timed(batch, one), size.tokens

    async def _encoded(self, data: bytes) -> tuple[Job, list[str], protocol.Encoded]:
        job = Job(self._load.text(8, self._rng), (MediaBytes("image", data, "image/png"),), max_tokens=1)
        names = [self._id()]
        body = protocol.encode_body(self._name, job.media, names)
        answer = await self._post(self._urls.encode[0], body, names[0])
        return job, names, protocol.read_encoded(answer, 1)

    async def _prefill(self, batch: int, tokens: int) -> tuple[list[float], int]:
        async def one() -> None:
            await self._prefilled(tokens, transfer=False)

        return await self._timed(batch, one), tokens

    async def _prefilled(
        self, tokens: int, *, transfer: bool
    ) -> tuple[dict[str, Any], protocol.PrefillAnswer]:
        common = self._text(tokens)
        body = protocol.prefill_body(common, None, transfer=transfer)
        return common, protocol.read_prefilled(await self._post(self._urls.prefill[0], body, self._id()))

    async def _decode(self, batch: int, tokens: int) -> tuple[list[float], int]:
        samples = []
        where = {"decode": self._urls.decode[0]}
        for _ in range(max(2, SAMPLES // 2)):
            before = await look(where)
            streams = await asyncio.gather(
                *(self._stream(self._text(tokens, DECODE_TOKENS), None) for _ in range(batch))
            )
            # The engine's own word where it gives one: a busy client reads many tokens at once.
            seen = difference(before.get("decode", {}), (await look(where)).get("decode", {}))
            samples.append(seen.get("inter_token_s") or _step(streams))
        return samples, tokens

    async def _embedding_transfer(self, _: int, tokens: int) -> tuple[list[float], int]:
        size = self._load.rule.nearest("image", tokens)
        samples = []
        for _ in range(SAMPLES):
            job, names, encoded = await self._encoded(image(size, self._rng))
            payload = Payload(job.media, lambda _: [], 1, ignore_eos=True, job=job)
            common = protocol.language_body(self._name, payload, protocol.messages(job, names, encoded))
            with_media = await self._time(
                lambda common=common, encoded=encoded: self._post(  # type: ignore[misc]  # defaults bind the loop's values
                    self._urls.prefill[0], protocol.prefill_body(common, encoded, transfer=False), self._id()
                )
            )
            text = await self._time(lambda: self._prefilled(size.tokens + 8, transfer=False))
            samples.append(max(0.0, with_media - text))
        return samples[1:], size.tokens

    async def _kv_transfer(self, _: int, tokens: int) -> tuple[list[float], int]:
        samples = []
        for _ in range(SAMPLES):
            common, answer = await self._prefilled(tokens, transfer=True)
            begun = time.monotonic()
            times = await self._stream(common | {"max_tokens": 4}, answer.kv)
            step = (times[-1] - times[0]) / (len(times) - 1)
            samples.append(max(0.0, times[0] - begun - step))
        return samples[1:], tokens

    async def _timed(self, batch: int, one: Callable[[], Awaitable[None]]) -> list[float]:
        """Seconds until `batch` at once have ended, some times; the first does not count."""
        samples = []
        for _ in range(SAMPLES):
            begun = time.monotonic()
            await asyncio.gather(*(one() for _ in range(batch)))
            samples.append(time.monotonic() - begun)
        return samples[1:]

    async def _time(self, work: Callable[[], Awaitable[object]]) -> float:
        begun = time.monotonic()
        await work()
        return time.monotonic() - begun

    def _text(self, tokens: int, output: int = 1) -> dict[str, Any]:
        job = Job(self._load.text(max(1, tokens - 8), self._rng), max_tokens=output)
        payload = Payload((), lambda _: [], output, ignore_eos=True, job=job)
        return protocol.language_body(self._name, payload, protocol.messages(job, [], None))

    async def _stream(self, common: dict[str, Any], kv: Any) -> list[float]:
        """When each token came."""
        body = protocol.decode_body(common, None, kv)
        times: list[float] = []
        url = self._urls.decode[0] + protocol.PATH
        async with self._client.stream(
            "POST", url, json=body, headers={"x-request-id": self._id()}
        ) as answer:
            if answer.status_code != 200:
                raise RunError(f"decode answered {answer.status_code}: {(await answer.aread())[:200]!r}")
            async for line in answer.aiter_lines():
                chunk = protocol.read_chunk(line.encode())
                if chunk is not None and chunk.error:
                    raise RunError(f"decode did not finish its answer: {chunk.error}")
                if chunk is not None and chunk.tokens:
                    times += [time.monotonic()] * chunk.tokens
        if len(times) < 2:
            raise RunError("decode answered with fewer than two tokens")
        return times

    async def _post(self, url: str, body: dict[str, Any], name: str) -> dict[str, Any]:
        try:
            answer = await self._client.post(url + protocol.PATH, json=body, headers={"x-request-id": name})
        except httpx.HTTPError as error:
            raise RunError(f"no answer from {url} ({type(error).__name__})") from error
        if answer.status_code != 200:
            raise RunError(f"{url} answered {answer.status_code}: {answer.text[:200]}")
        result: dict[str, Any] = answer.json()
        if reason := protocol.cut_short(result):
            raise RunError(f"{url} did not finish its answer: {reason}")
        return result

    def _id(self) -> str:
        self._count += 1
        return f"has-profile-{id(self):x}-{self._count}"


def _step(streams: list[list[float]]) -> float:
    """Seconds of one step of a batch: tokens of all streams over the time in which all ran, by the streams.

    Several tokens may arrive with one read, so single gaps say nothing.
    """
    start, end = max(times[0] for times in streams), min(times[-1] for times in streams)
    tokens = sum(start < at <= end for times in streams for at in times)
    if end > start and tokens >= len(streams):
        return (end - start) * len(streams) / tokens
    return sum((times[-1] - times[0]) / (len(times) - 1) for times in streams) / len(streams)


def rising(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with every latency at least that of fewer requests or tokens: where one fell, a busy machine fell."""
    best: dict[tuple[str, int, int], float] = {}
    for row in sorted(rows, key=lambda row: (row["stage"], row["batch"], row["tokens"])):
        least = max(
            (
                known
                for (stage, batch, tokens), known in best.items()
                if stage == row["stage"] and batch <= row["batch"] and tokens <= row["tokens"]
            ),
            default=0.0,
        )
        latency_s = max(row["latency_s"], least)
        row |= {"latency_s": latency_s, "p90_s": max(row["p90_s"], latency_s)}
        best[row["stage"], row["batch"], row["tokens"]] = latency_s
    return rows


def _row(stage: str, batch: int, tokens: int, samples: list[float]) -> dict[str, Any]:
    low, middle, high = (float(q) for q in np.percentile(samples, (10, 50, 90)))
    return {
        "stage": stage,
        "sm_percent": 100.0,
        "batch": batch,
        "tokens": tokens,
        "latency_s": middle,
        "p10_s": low,
        "p90_s": high,
        "samples": len(samples),
    }

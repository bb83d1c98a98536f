"""vLLM's protocol as an ASGI application, for what real instances do not do on demand: die, refuse, fail once.

It keeps the protocol's promises strictly: prefill wants the grid and the handle of every item that was
encoded, decode wants what this prefill returned.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from has.engine.vllm.connections import Broke

GRID = [1, 16, 16]


class FakeVllm:
    """Instances by host name: `e0`, `l0` (prefill beside an encoder), `p0`, `d0`, `m0`.

    `die_after_prefill` promise KV and are dead before it is fetched. `dead` refuse connections, `broken` answer 500 for ever, `garbled` answer 200 with what is none of the protocol's.
    """

    def __init__(self, tokens: int = 3) -> None:
        self.tokens = tokens
        self.dead: set[str] = set()
        self.broken: set[str] = set()
        self.fail_once: set[str] = set()
        self.fail_times: Counter[str] = Counter()
        self.die_after: dict[str, int] = {}
        """Host -> tokens of a stream after which it is dead."""
        self.abort: dict[str, int] = {}
        """Host -> tokens after which it ends its next answer as one that is paused or stopped does."""
        self.refuse: dict[str, str] = {}
        self.garbled: dict[str, str] = {}
        self.forget: dict[str, int] = {}
        """Prefill host -> how often it forgets the KV that it promised, as one does that was started anew."""
        self.die_after_prefill: set[str] = set()
        self.ec_dir: Path | None = None
        self.saved = 0
        """Embeddings written to `ec_dir`."""
        self.delay_s: dict[str, float] = {}
        self.seen: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.read_to_end: Counter[str] = Counter()
        self.encoded: set[str] = set()
        self.prefilled: set[str] = set()
        self.gone: set[str] = set()

    @asynccontextmanager
    async def ask(
        self,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float,
    ) -> AsyncIterator[FakeAnswer]:
        """As `has.engine.vllm.connections.Connections` do."""
        parts = urlsplit(url)
        yield await self._answer(str(parts.hostname), parts.path, body)

    async def aclose(self) -> None: ...

    async def _answer(self, host: str, path: str, content: bytes | None) -> FakeAnswer:
        if host in self.dead:
            raise Broke("no connection")
        if path == "/health":
            return said({}, 503 if host in self.broken else 200)
        if host in self.broken:
            return said({"error": {"message": "EngineDeadError"}}, 500)
        if host in self.fail_once:
            self.fail_once.discard(host)
            return said({"error": {"message": "a hiccup"}}, 500)
        if self.fail_times[host] > 0:
            self.fail_times[host] -= 1
            return said({"error": {"message": "a long hiccup"}}, 500)
        if host in self.refuse:
            return said({"error": {"message": self.refuse[host]}}, 400)
        if host in self.garbled:
            return FakeAnswer(whole(self.garbled[host].encode()))
        assert content is not None
        body = json.loads(content)
        self.seen[host].append(body)
        if host.startswith("e"):
            return await self._encode(host, body)
        await asyncio.sleep(self.delay_s.get(host, 0.0))
        if host[0] in "lp" and self.abort.pop(host, None) is not None:
            return aborted()
        language = {"l": self._prefill, "p": self._prefill, "d": self._stream, "m": self._stream}
        return language[host[0]](host, body)

    async def _encode(self, host: str, body: dict[str, Any]) -> FakeAnswer:
        """Its step goes on when the client has left."""
        items = [part for message in body["messages"] for part in message["content"]]
        assert all(part["type"] == "image_url" for part in items), "an encoder gets media alone"
        if self.abort.pop(host, None) is not None:
            return aborted()
        names = [part["uuid"] for part in items]
        self._begin_to_save(names)
        try:
            await asyncio.sleep(self.delay_s.get(host, 0.0))
        finally:
            self._save(host, names)
        self.encoded.update(names)
        handles = {
            n: {"item_indices": [i], "metadata": {"image_grid_thw": GRID}} for i, n in enumerate(names)
        }
        return said({"ec_transfer_params": handles})

    def _begin_to_save(self, names: list[str]) -> None:
        """Folders come first and files once all is computed, as with ECExampleConnector."""
        if self.ec_dir is not None:
            for name in names:
                (self.ec_dir / name).mkdir(exist_ok=True)

    def _save(self, host: str, names: list[str]) -> None:
        """One that cannot write is dead: a worker's exception ends vLLM's engine."""
        if self.ec_dir is not None:
            for name in names:
                try:
                    (self.ec_dir / name / "encoder_cache.safetensors").touch()
                    self.saved += 1
                except FileNotFoundError:
                    self.dead.add(host)

    def _prefill(self, host: str, body: dict[str, Any]) -> FakeAnswer:
        media = [p for m in body["messages"] for p in m["content"] if p["type"] != "text"]
        for part in media:
            assert part["type"] == "image_embeds", "prefill gets no pixels"
            assert part["uuid"] in self.encoded
            assert part["uuid"] in body["ec_transfer_params"]
        assert body["max_tokens"] == 1
        assert not body["stream"]
        name = f"kv-{len(self.seen[host])}-{host}"
        self.prefilled.add(name)
        choice = {"message": {"content": "t0 "}, "finish_reason": "length"}
        if self.forget.get(host, 0) > 0 or host in self.die_after_prefill:
            self.forget[host] = self.forget.get(host, 0) - 1
            self.gone.add(name)
        if host in self.die_after_prefill:
            self.dead.add(host)
        kv = {"do_remote_prefill": True, "remote_request_id": name}
        return said({"choices": [choice], "usage": {"prompt_tokens": 77}, "kv_transfer_params": kv})

    def _stream(self, host: str, body: dict[str, Any]) -> FakeAnswer:
        if host.startswith("d"):
            assert body["kv_transfer_params"]["remote_request_id"] in self.prefilled
            assert "ec_transfer_params" not in body
            if body["kv_transfer_params"]["remote_request_id"] in self.gone:
                return said({"error": {"message": "no such KV"}}, 500)
        return FakeAnswer(self._tokens_of(host, int(body.get("max_tokens", self.tokens))))

    async def _tokens_of(self, host: str, tokens: int) -> AsyncGenerator[bytes, None]:
        yield _event(
            {"choices": [{"delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": [0] * 77}
        )
        abort_after = self.abort.pop(host, None)
        for i in range(tokens):
            if i == abort_after:
                yield _event({"choices": [{"delta": {}, "finish_reason": "abort", "token_ids": []}]})
                yield b"data: [DONE]\n\n"
                return
            if self.die_after.get(host) == i:
                self.dead.add(host)
                raise Broke("the connection broke")
            last = i == tokens - 1
            choice = {
                "delta": {"content": f"t{i} "},
                "finish_reason": "length" if last else None,
                "token_ids": [i],
            }
            yield _event({"choices": [choice]})
        yield _event({"choices": [], "usage": {"prompt_tokens": 77, "completion_tokens": tokens}})
        yield b"data: [DONE]\n\n"
        self.read_to_end[host] += 1


class FakeAnswer:
    def __init__(self, pieces: AsyncGenerator[bytes, None], status: int = 200) -> None:
        self.status = status
        self._pieces = pieces

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self._pieces])

    def pieces(self) -> AsyncGenerator[bytes, None]:
        return self._pieces


def said(answer: dict[str, Any], status: int = 200) -> FakeAnswer:
    return FakeAnswer(whole(json.dumps(answer).encode()), status)


def aborted() -> FakeAnswer:
    choice = {"message": {"content": ""}, "finish_reason": "abort"}
    return said({"choices": [choice], "usage": {"prompt_tokens": 77}})


async def whole(answer: bytes) -> AsyncGenerator[bytes, None]:
    yield answer


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()

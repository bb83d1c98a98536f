"""vLLM's protocol as an ASGI application, for what real instances do not do on demand: die, refuse, fail once.

It keeps the protocol's promises strictly: prefill wants the grid and the handle of every item that was
encoded, decode wants what this prefill returned.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import httpx

GRID = [1, 16, 16]


class FakeVllm:
    """Instances by host name: `e0`, `l0` (prefill beside an encoder), `p0`, `d0`, `m0`.

    `dead` refuse connections, `broken` answer 500 for ever, `garbled` answer 200 with what is none of the protocol's.
    """

    def __init__(self, tokens: int = 3) -> None:
        self.tokens = tokens
        self.dead: set[str] = set()
        self.broken: set[str] = set()
        self.fail_once: set[str] = set()
        self.die_after: dict[str, int] = {}
        """Host -> tokens of a stream after which it is dead."""
        self.refuse: dict[str, str] = {}
        self.garbled: dict[str, str] = {}
        self.ec_dir: Path | None = None
        self.delay_s: dict[str, float] = {}
        self.seen: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.read_to_end: Counter[str] = Counter()
        self.encoded: set[str] = set()
        self.prefilled: set[str] = set()

    @property
    def transport(self) -> httpx.AsyncBaseTransport:
        return httpx.MockTransport(self._answer)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if host in self.dead:
            raise httpx.ConnectError("connection refused")
        if request.url.path == "/health":
            return httpx.Response(503 if host in self.broken else 200)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny", "max_model_len": 512}]})
        if host in self.broken:
            return httpx.Response(500, json={"error": {"message": "EngineDeadError"}})
        if host in self.fail_once:
            self.fail_once.discard(host)
            return httpx.Response(500, json={"error": {"message": "a hiccup"}})
        if host in self.refuse:
            return httpx.Response(400, json={"error": {"message": self.refuse[host]}})
        if host in self.garbled:
            return httpx.Response(200, text=self.garbled[host])
        body = json.loads(request.content)
        self.seen[host].append(body)
        await asyncio.sleep(self.delay_s.get(host, 0.0))
        language = {"l": self._prefill, "p": self._prefill, "d": self._stream, "m": self._stream}
        return (language | {"e": self._encode})[host[0]](host, body)

    def _encode(self, host: str, body: dict[str, Any]) -> httpx.Response:
        items = [part for message in body["messages"] for part in message["content"]]
        assert all(part["type"] == "image_url" for part in items), "an encoder gets media alone"
        names = [part["uuid"] for part in items]
        self.encoded.update(names)
        if self.ec_dir is not None:
            for name in names:
                (self.ec_dir / name).mkdir()
                (self.ec_dir / name / "encoder_cache.safetensors").touch()
        handles = {
            n: {"item_indices": [i], "metadata": {"image_grid_thw": GRID}} for i, n in enumerate(names)
        }
        return httpx.Response(200, json={"ec_transfer_params": handles})

    def _prefill(self, host: str, body: dict[str, Any]) -> httpx.Response:
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
        kv = {"do_remote_prefill": True, "remote_request_id": name}
        return httpx.Response(
            200, json={"choices": [choice], "usage": {"prompt_tokens": 77}, "kv_transfer_params": kv}
        )

    def _stream(self, host: str, body: dict[str, Any]) -> httpx.Response:
        if host.startswith("d"):
            assert body["kv_transfer_params"]["remote_request_id"] in self.prefilled
            assert "ec_transfer_params" not in body
        return httpx.Response(200, stream=_Stream(self, host, int(body.get("max_tokens", self.tokens))))


class _Stream(httpx.AsyncByteStream):
    def __init__(self, fake: FakeVllm, host: str, tokens: int) -> None:
        self._fake, self._host, self._tokens = fake, host, tokens

    async def __aiter__(self):  # type: ignore[no-untyped-def]
        yield _event(
            {"choices": [{"delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": [0] * 77}
        )
        for i in range(self._tokens):
            if self._fake.die_after.get(self._host) == i:
                self._fake.dead.add(self._host)
                raise httpx.ReadError("connection reset")
            last = i == self._tokens - 1
            choice = {
                "delta": {"content": f"t{i} "},
                "finish_reason": "length" if last else None,
                "token_ids": [i],
            }
            yield _event({"choices": [choice]})
        yield _event({"choices": [], "usage": {"prompt_tokens": 77, "completion_tokens": self._tokens}})
        yield b"data: [DONE]\n\n"
        self._fake.read_to_end[self._host] += 1


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()

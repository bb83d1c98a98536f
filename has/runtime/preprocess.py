"""The preprocessing server: media as they came in, arrays as the encoder takes them out.

gateway -> server   preprocess: where the bytes of each item stand in the channel
server  -> gateway  decoded: shapes, and how many bytes they need (or what is wrong with the media)
gateway -> server   store: where to put them
server  -> gateway  stored
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from has.errors import InputError
from has.models.media import MediaInput, Raw, decode_media
from has.runtime.channel import Channel
from has.runtime.link import Message, WorkerLink


class PreprocessRole:
    """Runs in the worker's main thread: one request at a time."""

    def __init__(self, model: str, channel: Channel, link: WorkerLink) -> None:
        self.model, self.channel, self.link = model, channel, link
        self._decoded: dict[int, list[MediaInput]] = {}
        self._started_s: dict[int, float] = {}

    def handle(self, message: Message) -> None:
        match message["do"]:
            case "preprocess":
                self._decode(message)
            case "store":
                self._store(message)
            case "drop":
                self._decoded.pop(message["id"], None)
                self._started_s.pop(message["id"], None)

    def stop(self) -> None:
        pass

    def _raw(self, item: dict[str, Any]) -> Raw:
        parts = [bytes(self.channel.view(tuple(region), "u1", (length,))) for region, length in item["parts"]]
        return parts if item["frames"] else parts[0]

    def _decode(self, message: Message) -> None:
        request, started_s = message["id"], time.monotonic()
        try:
            raw = [self._raw(item) for item in message["media"]]
            digests = [_digest(item["kind"], data) for item, data in zip(message["media"], raw, strict=True)]
            items = [
                decode_media(item["kind"], data, self.model)
                for item, data in zip(message["media"], raw, strict=True)
            ]
        except InputError as error:
            said, bad = str(error), True
        except Exception as error:  # a decoder's fault ends the request, not the server
            said, bad = f"{type(error).__name__}: {error}", True
        else:
            said, bad = "", False
        if bad:
            self.link.send(
                {
                    "is": "undecodable",
                    "id": request,
                    "start": started_s,
                    "end": time.monotonic(),
                    "error": said,
                }
            )
            return
        self._decoded[request], self._started_s[request] = items, started_s
        self.link.send(
            {
                "is": "decoded",
                "id": request,
                "media": [
                    {
                        "kind": item.kind,
                        "digest": digest,
                        "tokens": item.tokens,
                        "grid": list(item.grid),
                        "arrays": [[name, list(a.shape), a.nbytes] for name, a in item.arrays.items()],
                    }
                    for item, digest in zip(items, digests, strict=True)
                ],
            }
        )

    def _give_up(self, request: int, started_s: float, error: str) -> None:
        self.link.send(
            {"is": "undecodable", "id": request, "start": started_s, "end": time.monotonic(), "error": error}
        )

    def _store(self, message: Message) -> None:
        request = message["id"]
        items = self._decoded.pop(request, None)
        if items is None:
            return
        regions = iter(message["regions"])
        for item in items:
            for array in item.arrays.values():
                self.channel.write(tuple(next(regions)), array)
        self.link.send(
            {"is": "stored", "id": request, "start": self._started_s.pop(request), "end": time.monotonic()}
        )


def _digest(kind: str, raw: Raw) -> str:
    """What a medium is known by: a hash of its bytes as they came."""
    parts = raw if isinstance(raw, list) else [raw]
    hashed = hashlib.blake2b(kind.encode(), digest_size=16)
    for part in parts:
        assert isinstance(part, bytes)
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.hexdigest()

"""The gateway's port over a warm pool: commands become messages, tensors get their place in the channel."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import assert_never

from has.gateway.port import (
    Admit,
    Back,
    Broken,
    Command,
    Encode,
    Encoded,
    Event,
    Failed,
    Lost,
    Payload,
    PoolName,
    Prefill,
    Prefilled,
    Preprocess,
    Preprocessed,
    Stepped,
)
from has.models.sampling import Sampling
from has.runtime.channel import Region
from has.runtime.held import Held
from has.runtime.link import Message
from has.runtime.pool import WarmPool

NO_ROOM = "no room in the memory shared by workers"
_Lane = tuple[str, int]
"""What a worker is writing for: (stage, worker). Until it says that it is done, its regions are not given on."""


_STAGES_OF: dict[PoolName, tuple[str, ...]] = {
    "preprocess": ("preprocess",),
    "encode": ("encode", "prefill_local"),
    "prefill": ("prefill_remote",),
}


def _prefill_lane(remote: bool) -> str:
    return "prefill_remote" if remote else "prefill_local"


class PoolWorkers:
    """`WorkerPort` over `pool`, which must have been configured for the deployment that is served.

    width, item_bytes, kv_bytes_per_token: the model's, to know the size of what workers make.
    mixed: there is no decode pool; `Admit` hands over all that is left of a request.
    """

    def __init__(
        self, pool: WarmPool, *, embedding_bytes_per_token: int, kv_bytes_per_token: int, mixed: bool
    ) -> None:
        self.pool = pool
        self._embedding_bytes = embedding_bytes_per_token
        self._kv_bytes = kv_bytes_per_token
        self._mixed = mixed
        self._held: dict[int, Held] = {}
        self._batches: dict[tuple[bool, int], tuple[int, ...]] = {}
        self._writing: dict[_Lane, set[int]] = {}
        self._leaving: dict[int, dict[int, int]] = {}
        self._orphans: list[tuple[set[_Lane], list[Region]]] = []
        self._handle: Callable[[Event], None] = lambda _: None
        pool.on_message = self._message
        pool.on_lost = self._lost
        pool.on_back = lambda place, index: self._handle(Back(place, index))
        pool.on_broken = lambda reason: self._handle(Broken(reason))

    def listen(self, handle: Callable[[Event], None]) -> None:
        self._handle = handle

    # -- what the gateway says ---------------------------------------------------------------------

    def open(self, request: int, payload: Payload) -> None:
        self._held[request] = Held(payload)

    def execute(self, command: Command) -> None:
        match command:
            case Preprocess():
                self._preprocess(command)
            case Encode():
                self._encode(command)
            case Prefill():
                self._prefill(command)
            case Admit():
                self._admit(command)
            case _:
                assert_never(command)

    def retain(self, request: int) -> bool:
        held = self._held[request]
        self._leave_workers(request, held)
        kinds = ("raw", "embeddings", "kv") if held.media else ("raw", "media", "embeddings", "kv")
        self._abandon(request, held, kinds)
        return bool(held.media) or not held.payload.media

    def close(self, request: int) -> None:
        held = self._held.pop(request, None)
        if held is not None:
            self._leave_workers(request, held)
            self._abandon(request, held, tuple(held.regions))

    def _send(self, pool: PoolName, index: int, message: Message) -> None:
        member = self.pool.member(pool, index)
        if member is not None:
            member.link.send(message)

    def _leave_workers(self, request: int, held: Held) -> None:
        for pool, index in held.workers:
            self._send(pool, index, {"do": "drop", "id": request})
        held.workers.clear()

    def _put(self, held: Held, kind: str, n_bytes: int) -> Region | None:
        region = self.pool.arena.put(n_bytes)
        if region is not None:
            held.regions.setdefault(kind, []).append(region)
        return region

    def _release(self, held: Held, kind: str) -> None:
        for region in held.regions.pop(kind, ()):
            self.pool.arena.release(region)

    def _abandon(self, request: int, held: Held, kinds: tuple[str, ...]) -> None:
        """Give up what a request has in the channel: at once, or when all workers are done that may yet use it."""
        held.parts.clear()
        lanes = {lane for lane, requests in self._writing.items() if request in requests}
        if lanes:
            regions = [region for kind in kinds for region in held.regions.pop(kind, ())]
            self._orphans.append((lanes, regions))
        for kind in kinds:
            self._release(held, kind)

    def _wrote(self, lane: _Lane) -> None:
        self._writing.pop(lane, None)
        for lanes, regions in self._orphans:
            lanes.discard(lane)
            if not lanes:
                for region in regions:
                    self.pool.arena.release(region)
        self._orphans = [orphans for orphans in self._orphans if orphans[0]]

    def _no_room(self, request: int) -> None:
        # Said from within a command, answered like an event: the gateway handles one thing at a time.
        self.pool.later(lambda: self._handle(Failed(request, NO_ROOM, transient=True)))

    def _preprocess(self, command: Preprocess) -> None:
        held = self._held.get(command.request)
        items = []
        for medium in held.payload.media if held is not None else ():
            assert held is not None
            frames = medium.data if isinstance(medium.data, tuple) else (medium.data,)
            regions = [self._put(held, "raw", len(frame)) for frame in frames]
            for region, frame in zip(regions, frames, strict=True):
                if region is None:
                    self._no_room(command.request)
                    self._free_server(command.request, command.server)
                    return
                self.pool.channel.write_bytes(region, frame)
            items.append(
                {
                    "kind": medium.kind,
                    "parts": [[region, len(frame)] for region, frame in zip(regions, frames, strict=True)],
                    "frames": isinstance(medium.data, tuple),
                }
            )
        if held is not None:
            held.workers.add(("preprocess", command.server))
        self._send("preprocess", command.server, {"do": "preprocess", "id": command.request, "media": items})

    def _free_server(self, request: int, server: int) -> None:
        """The server is done with a request that did not become of it what it should."""
        now_s = time.monotonic()
        event = Preprocessed(request, server, now_s, now_s, 0, "given up")
        self.pool.later(lambda: self._handle(event))

    def _encode(self, command: Encode) -> None:
        requests = []
        leaving = self._leaving[command.worker] = {}
        for i, (request, local) in enumerate(zip(command.requests, command.local, strict=True)):
            held = self._held.get(request)
            if held is None:
                continue
            first, beyond = command.items[i] if command.items else (0, len(held.media))
            media = held.media[first:beyond]
            region = None
            if not local:
                leaving[request] = sum(item["tokens"] for item in media) * self._embedding_bytes
                region = self._put(held, "embeddings", leaving[request])
                if region is None:
                    self._no_room(request)
                    continue
            held.parts[first] = (len(media), region)
            held.workers.add(("encode", command.worker))
            requests.append({"id": request, "media": media, "out": region})
        self._writing["encode", command.worker] = set(command.requests)
        self._send(
            "encode",
            command.worker,
            {
                "do": "encode",
                "requests": requests,
                "share": command.share_percent,
                "start": command.start_s,
            },
        )

    def _prefill(self, command: Prefill) -> None:
        pool: PoolName = "prefill" if command.remote else "encode"
        requests = []
        for request in command.requests:
            held = self._held.get(request)
            if held is None:
                continue
            kv = None
            if held.output_tokens > 1:
                kv = self._put(held, "kv", len(held.prompt) * self._kv_bytes)
                if kv is None:
                    self._no_room(request)
                    continue
            held.workers.add((pool, command.worker))
            requests.append({**self._prompt_message(request, held), "kv": kv})
        self._batches[command.remote, command.worker] = tuple(r["id"] for r in requests)
        self._writing[_prefill_lane(command.remote), command.worker] = set(command.requests)
        self._send(pool, command.worker, {"do": "prefill", "requests": requests, "start": command.start_s})

    def _prompt_message(self, request: int, held: Held) -> Message:
        payload = held.payload
        return {
            "id": request,
            "ids": held.prompt,
            "counts": held.counts,
            "grids": [item["grid"] for item in held.media],
            "embeddings": held.embeddings,
            "sampling": asdict(Sampling(payload.temperature, payload.top_p, seed=payload.seed)),
        }

    def _admit(self, command: Admit) -> None:
        held = self._held.get(command.request)
        if held is None:
            return
        payload = held.payload
        message: Message = {
            "do": "admit",
            "ready": command.ready_s,
            "output": held.output_tokens,
            "ignore_eos": payload.ignore_eos,
        }
        if self._mixed:
            message |= {**self._prompt_message(command.request, held), "media": held.media}
            pool: PoolName = "mixed"
        else:
            pool = "decode"
            message |= {
                "id": command.request,
                "tokens": len(held.prompt),
                "kv": held.regions["kv"][0],
                "first": held.first_token,
                "next": held.next_position,
                "sampling": asdict(Sampling(payload.temperature, payload.top_p, seed=payload.seed)),
            }
        held.workers.add((pool, command.worker))
        self._send(pool, command.worker, message)

    # -- what workers say --------------------------------------------------------------------------

    def _message(self, pool: PoolName, index: int, message: Message) -> None:
        match message["is"]:
            case "decoded":
                self._decoded(index, message)
            case "stored":
                self._stored(index, message)
            case "undecodable":
                self._handle(
                    Preprocessed(message["id"], index, message["start"], message["end"], 0, message["error"])
                )
            case "encoded":
                self._encoded(index, message)
            case "prefilled":
                self._prefilled(index, message)
            case "stepped":
                self._stepped(index, message)
            case "failed":
                self._handle(Failed(message["id"], message["error"]))
            case other:
                raise RuntimeError(f"a {pool} worker said {other!r}")

    def _decoded(self, server: int, message: Message) -> None:
        held = self._held.get(message["id"])
        regions: list[Region] = []
        if held is not None:
            self._release(held, "raw")
            for item in message["media"]:
                for array in item["arrays"]:
                    region = self._put(held, "media", array[2])
                    if region is None:
                        self._release(held, "media")
                        self._send("preprocess", server, {"do": "drop", "id": message["id"]})
                        self._no_room(message["id"])
                        self._free_server(message["id"], server)
                        return
                    array[2] = region
                    regions.append(region)
            held.decoded = message["media"]
        if held is None:
            # Cancelled meanwhile; the server is free again all the same.
            self._send("preprocess", server, {"do": "drop", "id": message["id"]})
            self._free_server(message["id"], server)
            return
        self._writing["preprocess", server] = {message["id"]}
        self._send("preprocess", server, {"do": "store", "id": message["id"], "regions": regions})

    def _stored(self, server: int, message: Message) -> None:
        self._wrote(("preprocess", server))
        held = self._held.get(message["id"])
        if held is not None:
            held.media = held.decoded
        tokens = sum(held.counts) if held is not None else 0
        self._handle(Preprocessed(message["id"], server, message["start"], message["end"], tokens))

    def _encoded(self, worker: int, message: Message) -> None:
        self._wrote(("encode", worker))
        transfers = tuple(
            (request, self.pool.transfer_s(n_bytes))
            for request, n_bytes in sorted(self._leaving.pop(worker, {}).items())
        )
        self._handle(
            Encoded(worker, message["start"], message["end"], message["ratio"], transfers, message["known"])
        )

    def _prefilled(self, worker: int, message: Message) -> None:
        sent = self._batches.pop((message["remote"], worker), ())
        self._wrote((_prefill_lane(message["remote"]), worker))
        for request, token, position in zip(sent, message["tokens"], message["next"], strict=True):
            held = self._held.get(request)
            if held is not None:
                held.first_token, held.next_position = token, position
                self._release(held, "embeddings")
                self._release(held, "media")
        tokens = tuple(zip(sent, message["tokens"], strict=True))
        transfers = tuple(
            (request, self.pool.transfer_s(len(held.prompt) * self._kv_bytes))
            for request in sent
            if (held := self._held.get(request)) is not None
        )
        self._handle(
            Prefilled(
                message["remote"],
                worker,
                message["start"],
                message["end"],
                message["ratio"],
                tokens,
                transfers,
            )
        )

    def _stepped(self, worker: int, message: Message) -> None:
        for request in message["loaded"]:
            held = self._held.get(request)
            if held is not None:
                for kind in ("kv", "embeddings"):
                    self._release(held, kind)
        if self._mixed:
            for request, _ in message["tokens"]:
                held = self._held.get(request)
                if held is not None:
                    self._release(held, "media")
        self._handle(
            Stepped(
                worker,
                message["start"],
                message["end"],
                message["ratio"],
                tuple((request, token) for request, token in message["tokens"]),
                tuple(message["ended"]),
                tuple((stage, share, tuple(requests)) for stage, share, requests in message["parts"]),
            )
        )

    def _lost(self, pool: PoolName, index: int, reason: str) -> None:
        for held in self._held.values():
            held.workers.discard((pool, index))
        if pool in ("encode", "prefill"):
            self._batches.pop((pool == "prefill", index), None)
        for stage in _STAGES_OF.get(pool, ()):
            self._wrote((stage, index))
        self._handle(Lost(pool, index, reason))

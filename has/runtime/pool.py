"""The warm pool: processes that keep their model, and change their role between deployments.

`WarmPool` starts a zygote (zygote.py) and forks workers from it: one per virtual GPU, and
preprocessing servers. `configure` gives all of them their roles under a deployment; `workers()`
then is the port the gateway drives. A worker that ends, or no longer answers, is replaced at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from has.core.deployment import Deployment
from has.device.nominal import Nominal, to_dict
from has.errors import MissingError, RunError
from has.gateway.port import PoolName
from has.models.names import is_bundled
from has.runtime.channel import Arena, Channel
from has.runtime.link import GatewayLink, Message
from has.runtime.zygote import Zygote

log = logging.getLogger(__name__)

MAX_GPUS = 8
CHANNEL_BYTES = 4 << 30
"""Room for what is under way between workers; pages are taken as they are used."""
READY_TIMEOUT_S = 60.0
HEARTBEAT_S = 1.0
UNANSWERED = {"preprocess": 120}
"""Pings in a row a worker may leave unanswered, by role; a preprocessing server decodes where it reads."""
UNANSWERED_DEFAULT = 10
HELD_UP_S = 2.0
"""A heartbeat as late as this is told of: latencies of that time say nothing about the deployment."""
MOST_FAILURES = 5
"""Replacements that end before they are ready, one after the other, until the pool gives up."""


POOLS_IN_ORDER: dict[str, tuple[tuple[PoolName, str], ...]] = {
    "disaggregated": (("encode", "encode"), ("prefill", "prefill"), ("decode", "decode")),
    "e_pd": (("encode", "encode"), ("mixed", "prefill_decode")),
    "monolithic": (("mixed", "all"),),
}
"""Kinds of worker of each topology, and the pool of `alloc` that says how many."""


@dataclass(slots=True)
class Member:
    """One worker process. `role` is the message that gave it its role; `place` its pool and index."""

    key: str
    link: GatewayLink
    place: tuple[PoolName, int] | None = None
    role: Message | None = None
    ready: bool = False
    failures: int = 0
    unanswered: int = 0
    waiting: list[asyncio.Future[None]] = field(default_factory=list)


def refuse_unserved(model: str, gpus: int) -> None:
    """MissingError for a model, or more GPUs, than this runtime serves."""
    if not is_bundled(model):
        raise MissingError(
            f"the bundled runtime on a CPU serves the bundled models, not {model}",
            mend="serve it with an engine (vLLM, SGLang), or deploy tiny-image, tiny-video or tiny-audio here",
        )
    if gpus > MAX_GPUS:
        raise MissingError(
            f"{gpus} GPUs are asked for; the CPU device has {MAX_GPUS} virtual ones",
            mend=f"search or deploy with --gpus {MAX_GPUS} or fewer, or --on simulated",
        )


def _end(zygote: Zygote, members: dict[str, Member], channel: Channel) -> None:
    for member in members.values():
        member.link.close()
    zygote.close()
    channel.close()


class WarmPool:
    """`gpus` workers with `model` loaded.

    `nominal` is the table that paces the virtual GPUs, by default the one kept on this machine (at
    `total_share`, if given). `facts` are the model's: weights_bytes, kv_bytes_per_token,
    embedding_bytes_per_token, max_positions, eos.

    Raises MissingError for a model that is not bundled, RunError if its processes do not start.
    Everything it started ends with `close`, with this process, or when the pool is forgotten.
    """

    def __init__(
        self, model: str, gpus: int, *, total_share: float | None = None, nominal: Nominal | None = None
    ) -> None:
        refuse_unserved(model, gpus)
        self.model = model
        self.gpus = gpus
        half_the_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        self.channel = Channel.create(min(CHANNEL_BYTES, half_the_memory))
        self.arena = Arena(self.channel.n_bytes)
        try:
            settings = {"total_share": total_share, "nominal": to_dict(nominal) if nominal else None}
            self._zygote = Zygote(model, self.channel, settings)
        except BaseException:
            self.channel.close()
            raise
        self.facts = self._zygote.facts
        self._members: dict[str, Member] = {}
        self._finalizer = weakref.finalize(self, _end, self._zygote, self._members, self.channel)
        self._turn = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heart: asyncio.Task[None] | None = None
        self.on_message: Callable[[PoolName, int, Message], None] = lambda *_: None
        self.on_lost: Callable[[PoolName, int, str], None] = lambda *_: None
        self.on_back: Callable[[PoolName, int], None] = lambda *_: None
        self.on_broken: Callable[[str], None] = lambda _: None
        self.broken = ""
        self._transfer_base_s, self._transfer_byte_s = measure_channel(self.channel)
        for index in range(gpus):
            self._fork(f"gpu{index}")

    @property
    def pids(self) -> dict[str, int]:
        """Process of every worker, and of the zygote."""
        return {"zygote": self._zygote.pid, **self._zygote.pids}

    def transfer_s(self, n_bytes: int) -> float:
        """How long `n_bytes` take through the channel, as measured when the pool started.

        By size alone, not by what the copy happened to take: tensors of one size that set out
        together arrive together, and smaller ones first.
        """
        return self._transfer_base_s + n_bytes * self._transfer_byte_s

    def member(self, pool: PoolName, index: int) -> Member | None:
        return next((m for m in self._members.values() if m.place == (pool, index)), None)

    def _fork(self, key: str) -> Member:
        member = Member(key, GatewayLink(self._zygote.fork(key)))
        self._members[key] = member
        return member

    # -- roles -------------------------------------------------------------------------------------

    async def configure(self, deployment: Deployment, settings: dict[str, Any]) -> None:
        """Give every worker its role; what any of them was doing is dropped.

        `settings` goes to each role: seed, streams, slots, max_tokens, kv_tokens, budget. Raises
        MissingError for a deployment this runtime cannot run.
        """
        roles = plan_roles(deployment, self.gpus)
        if self.broken:
            raise RunError(self.broken)
        self._turn += 1
        self._loop = asyncio.get_running_loop()
        self.arena = Arena(self.channel.n_bytes)
        for server in range(deployment.preprocess_servers):
            if f"cpu{server}" not in self._members:
                self._fork(f"cpu{server}")
        for key, member in list(self._members.items()):
            place, message = roles.get(key, (None, {"role": "idle"}))
            member.place = place
            member.role = {"do": "role", "gpu": int(key[3:]), **settings, **message}
            self._attach(member)
        await self._all_ready()
        if self._heart is None or self._heart.done():
            self._heart = asyncio.create_task(self._beat())

    def _attach(self, member: Member) -> None:
        assert self._loop is not None
        assert member.role is not None
        member.ready = False
        member.unanswered = 0
        member.link.attach(
            self._loop,
            lambda message, member=member: self._hear(member, message),  # type: ignore[misc]  # bound now
            lambda member=member: self._lose(member),  # type: ignore[misc]  # likewise
        )
        member.link.send({**member.role, "turn": self._turn})

    async def _all_ready(self) -> None:
        futures = []
        for member in self._members.values():
            if not member.ready:
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                member.waiting.append(future)
                futures.append(future)
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await asyncio.gather(*futures)
        except TimeoutError:
            late = [member.key for member in self._members.values() if not member.ready]
            raise RunError(f"workers did not take their role in time: {', '.join(late)}") from None

    def _hear(self, member: Member, message: Message) -> None:
        member.unanswered = 0
        match message["is"]:
            case "pong":
                pass
            case "ready":
                if message["turn"] == self._turn:
                    self._ready(member)
            case _ if member.ready and member.place is not None:
                # What a worker says before it is ready is about the deployment before this one.
                self.on_message(*member.place, message)

    def _ready(self, member: Member) -> None:
        member.ready = True
        waiting, member.waiting = member.waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        if not waiting and member.place is not None:
            self.on_back(*member.place)

    # -- faults ------------------------------------------------------------------------------------

    def _lose(self, member: Member, reason: str = "") -> None:
        """The worker is gone: put another in its place and say so. Without a reason: its process has ended."""
        if self._members.get(member.key) is not member:
            return
        member.link.close()
        reason = reason or self._zygote.how_it_ended(member.key) or "its process ended"
        self._zygote.kill(member.key)
        del self._members[member.key]
        was_ready, place = member.ready, member.place
        if place is not None and was_ready:
            self.on_lost(*place, reason)
        try:
            successor = self._successor(member, reason)
        except RunError as error:
            for future in member.waiting:
                if not future.done():
                    future.set_exception(error)
            if not self.broken:
                self.broken = error.message
                self.on_broken(self.broken)
            return
        successor.place, successor.role, successor.waiting = place, member.role, member.waiting
        self._attach(successor)

    def _successor(self, member: Member, reason: str) -> Member:
        failures = 0 if member.ready else member.failures + 1
        if failures >= MOST_FAILURES:
            raise RunError(f"worker {member.key} ended {failures} times before it was ready ({reason})")
        successor = self._fork(member.key)
        successor.failures = failures
        return successor

    async def _beat(self) -> None:
        """Ping all; lose whoever has left too many in a row unanswered.

        Pings are counted and not seconds: while this process, or the whole machine, is held up, nobody
        is asked and nobody can answer, and all workers would seem to hang at once.
        """
        while True:
            asked_s = time.monotonic()
            for member in list(self._members.values()):
                role = (member.role or {}).get("role", "")
                if member.unanswered >= UNANSWERED.get(role, UNANSWERED_DEFAULT):
                    self._lose(member, f"it left {member.unanswered} pings unanswered")
                else:
                    member.unanswered += 1
                    member.link.send({"do": "ping"})
            await asyncio.sleep(HEARTBEAT_S)
            late_s = time.monotonic() - asked_s - HEARTBEAT_S
            if late_s > HELD_UP_S:
                log.warning(
                    "this process was held up for %.1f s: the machine is too busy, or was paused", late_s
                )

    def later(self, call: Callable[[], None]) -> None:
        """Call back from the event loop, once what runs now is done."""
        if self._loop is not None:
            self._loop.call_soon(call)

    async def rest(self) -> None:
        """Let go of the event loop; the workers stay warm."""
        if self._heart is not None:
            self._heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._heart
            self._heart = None
        for member in self._members.values():
            member.link.detach()
        self._loop = None

    def close(self) -> None:
        """End all processes and give the shared memory back. May be called twice."""
        self._finalizer()


def measure_channel(channel: Channel) -> tuple[float, float]:
    """(seconds of an empty copy, seconds per byte) through `channel`, from the quickest of some copies."""
    small, large = 64 << 10, 1 << 20
    quickest = {}
    for size in (small, large):
        data = np.ones(
            size, np.uint8
        )  # zeros may all be the kernel's one page of them, which is quick to read
        seconds = []
        for _ in range(7):
            begun = time.perf_counter()
            channel.write((0, size), data)
            seconds.append(time.perf_counter() - begun)
        quickest[size] = min(seconds)
    per_byte = max(1e-12, (quickest[large] - quickest[small]) / (large - small))
    return max(0.0, quickest[small] - small * per_byte), per_byte


def plan_roles(deployment: Deployment, gpus: int) -> dict[str, tuple[tuple[PoolName, int], Message]]:
    """Worker key -> its place and role. Raises MissingError for what this runtime does not run."""
    engine = "serve it with an engine that has it (vLLM, SGLang), or search a space with tensor_parallel 1"
    if any(value not in (None, 1) for value in deployment.tensor_parallel.model_dump().values()):
        raise MissingError("the bundled runtime has no tensor parallelism", mend=engine)
    if deployment.gpus_per_node is not None and deployment.gpus > deployment.gpus_per_node:
        raise MissingError(
            f"{deployment.gpus} GPUs in machines of {deployment.gpus_per_node} are more than one machine;"
            " the bundled runtime has only this one",
            mend="serve it with an engine that spans machines (Dynamo, llm-d, vLLM), or deploy on up to"
            f" {deployment.gpus_per_node} GPUs",
        )
    if deployment.gpus > gpus:
        raise MissingError(
            f"the deployment needs {deployment.gpus} GPUs, {gpus} are here",
            mend=f"search with --gpus {gpus}",
        )
    roles: dict[str, tuple[tuple[PoolName, int], Message]] = {}
    gpu = 0
    for pool, alloc in POOLS_IN_ORDER[deployment.topology]:
        for index in range(deployment.alloc[alloc]):
            message: Message = {"role": pool}
            if pool == "mixed":
                message["encodes"] = deployment.topology == "monolithic"
                message["budget"] = deployment.prefill_token_budget
            roles[f"gpu{gpu}"] = ((pool, index), message)
            gpu += 1
    for server in range(deployment.preprocess_servers):
        roles[f"cpu{server}"] = (("preprocess", server), {"role": "preprocess"})
    return roles

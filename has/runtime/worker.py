"""A worker process: one virtual GPU (or one preprocessing server), in whatever role it is told to play.

It was forked from a process that had the model loaded, so a change of role costs threads, not
weights. The main thread reads the link and never computes (a preprocessing server's does): a
worker that does not answer a ping is stuck as a process, not merely busy.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from typing import Any, Protocol

from has.runtime.channel import Channel
from has.runtime.link import Message, WorkerLink
from has.runtime.priority import go_first

Work = Callable[[str, socket.socket, Channel], None]


class Role(Protocol):
    def handle(self, message: Message) -> None: ...

    def stop(self) -> None: ...


def preload(settings: dict[str, Any]) -> tuple[Work, dict[str, Any]]:
    """Load what all workers share; runs once, before any fork. Returns what a fork runs, and the model's facts.

    Raises MissingError where the model or its nominal table is not here.
    """
    import torch

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    from has.device import nominal
    from has.models.stage_model import load_stage_model
    from has.runtime import decoding, preprocess, roles  # noqa: F401  # imported once, for all forks

    given = settings["nominal"]
    table = nominal.from_dict(given) if given else nominal.require(settings["model"], settings["total_share"])
    model = load_stage_model(settings["model"])
    _warm(model)

    def work(key: str, sock: socket.socket, channel: Channel) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        Worker(key, WorkerLink(sock), channel, model, table).run()

    facts = {
        "weights_bytes": model.weights_bytes,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "embedding_bytes_per_token": model.width * model.dtype.itemsize,
        "max_positions": model.max_positions,
        "eos": model.eos,
        "dtype": str(model.dtype).removeprefix("torch."),
        "nominal": table.digest(),
        "total_share": table.total_share,
    }
    return work, facts


def _warm(model: Any) -> None:
    """One pass through every stage: what libraries build on first use is then built once, for all forks."""
    from has.models.bench import StageBench, unit_tokens

    bench = StageBench(model)
    for stage, tokens in (("encode", unit_tokens(model.name)), ("prefill", 64), ("decode", 64)):
        bench.prepare(stage, 1, tokens)()


class Worker:
    """Reads the link until the gateway is gone."""

    def __init__(self, key: str, link: WorkerLink, channel: Channel, model: Any, table: Any) -> None:
        self.key, self.link, self.channel = key, link, channel
        self.model, self.table = model, table
        self.role: Role | None = None

    def run(self) -> None:
        go_first()
        for message in self.link.messages():
            match message["do"]:
                case "role":
                    self._play(message)
                case "ping":
                    self.link.send({"is": "pong"})
                case _ if self.role is not None:
                    self.role.handle(message)

    def _play(self, message: Message) -> None:
        if self.role is not None:
            self.role.stop()
        self.role = self._role(message)
        self.link.send({"is": "ready", "turn": message["turn"]})

    def _role(self, message: Message) -> Role | None:
        from has.device.cpu import open_gpu
        from has.runtime.decoding import DecodeRole, MixedRole
        from has.runtime.preprocess import PreprocessRole
        from has.runtime.roles import Bench, EncodeRole, PrefillRole

        if message["role"] == "preprocess":
            return PreprocessRole(self.model.name, self.channel, self.link)
        if message["role"] == "idle":
            return None
        gpu = open_gpu(
            message["gpu"],
            self.model.name,
            nominal=self.table,
            seed=message["seed"],
            streams=message["streams"],
        )
        bench = Bench(self.model, gpu, self.channel, self.link)
        match message["role"]:
            case "encode":
                return EncodeRole(bench, message)
            case "prefill":
                return PrefillRole(bench)
            case "decode":
                return DecodeRole(bench, message)
            case "mixed":
                return MixedRole(bench, message)
            case role:
                raise ValueError(f"no such role: {role}")

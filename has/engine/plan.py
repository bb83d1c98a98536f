"""The typed plan between a deployment and any engine's artefacts: who runs where, with which ports and bounds.

One plan serves every exporter and the launcher, so that what is scored, what is written and what is
started are the same thing. A field that an exporter does not render is a fault of the exporter: tests
read the artefacts back and compare.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from has.core.deployment import Deployment
from has.engine.sizes import Sizes

EngineName = Literal["vllm", "sglang", "dynamo", "llm-d"]
Role = Literal["encode", "prefill", "local_prefill", "encode_prefill", "decode", "prefill_decode", "all"]
"""`local_prefill` shares the GPUs of encode instances; `encode_prefill` is encode and prefill in one process."""


@dataclass(frozen=True, slots=True)
class Change:
    """A knob that the engine cannot take as recommended: what was asked, what is emitted, and why."""

    knob: str
    asked: Any
    emitted: Any
    why: str

    def __str__(self) -> str:
        return f"{self.knob}: {_shown(self.asked)} becomes {_shown(self.emitted)}: {self.why}"


def gpu_of(role: Role, deployment: Deployment) -> str:
    """Type of GPU that `deployment` puts `role` on; empty where it names none."""
    pool = "encode" if role in ("local_prefill", "encode_prefill") else role
    return (deployment.hardware or {}).get(pool, "")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} on {what}" for key, what in value.items())
    if isinstance(value, tuple):  # an SM table
        return ", ".join(f"batch {row.batch}: {row.encode_sm:g} %" for row in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Instance:
    """One engine process.

    gpus         indices on its node; an instance never crosses a node
    sm_percent   MPS cap, None for the whole GPU
    ports        purpose -> port; no port of a node is given twice
    max_num_seqs, max_num_batched_tokens   what its scheduler may batch; for encode, B and the encoder budget
    owns_gpus    False where it only shares the GPUs of encode instances
    """

    name: str
    role: Role
    index: int
    node: int
    gpus: tuple[int, ...]
    ports: dict[str, int]
    max_num_seqs: int
    max_num_batched_tokens: int
    sm_percent: float | None = None
    owns_gpus: bool = True

    @property
    def tensor_parallel(self) -> int:
        return len(self.gpus)

    @property
    def port(self) -> int:
        return self.ports["http"]

    @property
    def is_language(self) -> bool:
        """Whether it holds the language model."""
        return self.role != "encode"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is emitted for `asked`: `emitted` is the deployment that the artefacts really are."""

    engine: EngineName
    version: str
    asked: Deployment
    emitted: Deployment
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    instances: tuple[Instance, ...]
    sizes: Sizes
    gpus_per_node: int
    front_port: int
    """Of the gateway or router that clients talk to; it stands on node 0."""
    front_ports: dict[str, int]
    """Further ports of the front, by purpose."""

    def gpu_on(self, node: int) -> str:
        """Type of GPU that `node` must have; empty where any will do."""
        return gpu_of(next(i.role for i in self.instances if i.node == node), self.emitted)

    def of(self, *roles: Role) -> list[Instance]:
        return [instance for instance in self.instances if instance.role in roles]

    @property
    def encoder_budget(self) -> int | None:
        """Most tokens of one medium that every encoder takes; None without encoders."""
        return min((i.max_num_batched_tokens for i in self.of("encode")), default=None)

    @property
    def nodes(self) -> int:
        return 1 + max(instance.node for instance in self.instances)

    @property
    def gpus(self) -> int:
        """GPUs the instances occupy, each counted once."""
        return len({(i.node, gpu) for i in self.instances for gpu in i.gpus})


def ports_of(plan: Plan, node: int) -> Iterable[tuple[str, int]]:
    """(who: purpose, port) of everything that listens on `node`."""
    for instance in plan.instances:
        if instance.node == node:
            for purpose, port in instance.ports.items():
                yield f"{instance.name}: {purpose}", port
    if node == 0:
        yield "front: http", plan.front_port
        for purpose, port in plan.front_ports.items():
            yield f"front: {purpose}", port

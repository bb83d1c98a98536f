"""Instances onto nodes and GPUs, with ports of their own: from a deployment to a plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from has.core.deployment import Deployment
from has.engine.engines import VERSIONS, check_model
from has.engine.express import express
from has.engine.plan import Change, EngineName, Instance, Plan, Role, gpu_of
from has.engine.sizes import Sizes
from has.errors import InfeasibleError, InputError

NODE_GPUS = 8
"""GPUs of a node where the deployment names none."""
ENCODER_BUDGET = 114_688
"""Most tokens of one encode iteration: merged batches beyond this are how encoders run out of memory."""
LEAST_BUDGET = 2048
FIRST_PORT = 8100
"""Instances' ports count up from here on each node."""

PORTS: dict[EngineName, dict[Role, tuple[str, ...]]] = {
    "vllm": {
        "prefill": ("http", "nixl"),
        "local_prefill": ("http", "nixl"),
        "encode_prefill": ("http", "nixl"),
        "decode": ("http", "nixl"),
    },
    "sglang": {
        "encode": ("http", "nccl"),
        "prefill": ("http", "nccl", "bootstrap", "encoder_bootstrap"),
        "encode_prefill": ("http", "nccl", "bootstrap"),
        "decode": ("http", "nccl"),
        "prefill_decode": ("http", "nccl", "encoder_bootstrap"),
        "all": ("http", "nccl"),
    },
}
"""What each instance listens on, beyond which nothing is left to a default that a neighbour shares.
Dynamo and llm-d give every instance a pod, and so an address, of its own."""


class NodePorts:
    """Hands out ports of one host, none twice and none of `taken`. `usable` says whether one is free now."""

    def __init__(
        self,
        first: int = FIRST_PORT,
        taken: Collection[int] = (),
        usable: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._candidates = (port for port in count(first) if port not in taken)
        self._usable = usable

    def take(self, width: int = 1) -> int:
        """The first of `width` consecutive ports."""
        while True:
            first = next(self._candidates)
            ports = [first, *(next(self._candidates) for _ in range(width - 1))]
            if ports[-1] > 65_535:
                raise InputError("no free port is left on a node", field="gpus")
            if ports[-1] - first == width - 1 and all(map(self._usable, ports)):
                return first


@dataclass(slots=True)
class _Node:
    """`gpu`: type of its GPUs, empty where nothing asks for one."""

    gpu: str
    free: int
    used: int = 0
    ports: NodePorts = field(default_factory=NodePorts)


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    role: Role
    index: int
    gpus: int


def _wanted(deployment: Deployment, *, split: bool) -> Iterator[_Wanted]:
    """What must run and own GPUs, in the order in which figures list pools."""
    short = {"encode": "e", "prefill": "p", "decode": "d", "prefill_decode": "pd", "all": "m"}
    one_process = deployment.topology == "disaggregated" and not deployment.alloc["prefill"] and not split
    for pool in deployment.alloc.pools:
        role: Role = pool  # type: ignore[assignment]  # pools are roles
        width, label = deployment.tp(pool), short[pool]
        if pool == "encode" and one_process:
            role, label, width = "encode_prefill", "ep", deployment.local_prefill_span
        for index in range(deployment.alloc[pool] // width):
            yield _Wanted(f"{label}{index}", role, index, width)


def make_plan(
    deployment: Deployment,
    engine: EngineName,
    sizes: Sizes,
    *,
    sm_split: bool = False,
    sm_table: Any = None,
    front_port: int = 8000,
) -> Plan:
    """The plan of `deployment` on `engine` for a workload of `sizes`.

    Raises InfeasibleError where the engine does not take the model or cannot run the deployment, InputError
    where a worker does not fit on a node.
    """
    encodes_apart = deployment.topology != "monolithic" and (
        deployment.topology == "e_pd" or deployment.alloc["prefill"] > 0
    )
    check_model(engine, deployment.model, encodes_apart=encodes_apart, modalities=set(sizes.items))
    emitted, changes, notes = express(deployment, engine, sm_split=sm_split, sm_table=sm_table)
    split = (
        sm_split and engine == "vllm" and emitted.topology == "disaggregated" and emitted.offload_fraction < 1
    )
    if (
        engine == "vllm"
        and not split
        and emitted.topology == "disaggregated"
        and not emitted.alloc["prefill"]
    ):
        raise InfeasibleError(
            "vLLM cannot run it as it is: encode and prefill on one GPU need an SM split, or prefill a pool of its own",
            mend="has export --to vllm --experimental-sm-split, or --to sglang; or search a space whose alloc.prefill"
            " begins at 1, as has search --on vllm does",
        )
    per_node = deployment.gpus_per_node or max(NODE_GPUS, *(deployment.tp(p) for p in deployment.alloc.pools))
    front_ports = {"prometheus": front_port + 1} if engine == "sglang" else {}
    front = {front_port, *front_ports.values()}
    instances = _place(emitted, engine, sizes, per_node, split=split, front=front)
    notes = (*notes, *_budget_notes(emitted, engine, sizes))
    return Plan(
        engine=engine,
        version=VERSIONS[engine],
        asked=deployment,
        emitted=emitted,
        changes=(*changes, *_bounds(emitted, sizes, engine)),
        notes=notes,
        instances=tuple(instances),
        sizes=sizes,
        gpus_per_node=per_node,
        front_port=front_port,
        front_ports=front_ports,
    )


def _place(
    deployment: Deployment,
    engine: EngineName,
    sizes: Sizes,
    per_node: int,
    *,
    split: bool,
    front: set[int],
) -> list[Instance]:
    wanted = list(_wanted(deployment, split=split))
    nodes: list[_Node] = []
    placed: dict[str, Instance] = {}
    # The widest first: where widths divide a node, no GPU is then left between them.
    for group in sorted(_groups(wanted, deployment, split=split), key=lambda g: -sum(w.gpus for w in g)):
        width = sum(w.gpus for w in group)
        if width > per_node:
            raise InputError(
                f"a worker of {width} GPUs does not fit on a node of {per_node}",
                field="gpus_per_node",
                value=per_node,
            )
        gpu = gpu_of(group[0].role, deployment)
        node = next((i for i, n in enumerate(nodes) if n.gpu == gpu and n.free >= width), None)
        if node is None:
            node = len(nodes)
            nodes.append(_Node(gpu, per_node, ports=NodePorts(taken=front if node == 0 else ())))
        here = nodes[node]
        for w in group:
            gpus = tuple(range(here.used, here.used + w.gpus))
            here.used, here.free = here.used + w.gpus, here.free - w.gpus
            placed[w.name] = _instance(w, node, gpus, here.ports, deployment, engine, sizes)
    result = [placed[w.name] for w in wanted]
    return _with_local_prefill(result, nodes, deployment, engine, sizes) if split else result


def _groups(wanted: list[_Wanted], deployment: Deployment, *, split: bool) -> list[list[_Wanted]]:
    """What must stand on one node: encode GPUs that one local prefill spans; else each by itself."""
    if not split:
        return [[w] for w in wanted]
    span = deployment.local_prefill_span
    encoders = [w for w in wanted if w.role == "encode"]
    together = [encoders[i : i + span] for i in range(0, len(encoders), span)]
    return together + [[w] for w in wanted if w.role != "encode"]


def _with_local_prefill(
    instances: list[Instance], nodes: list[_Node], deployment: Deployment, engine: EngineName, sizes: Sizes
) -> list[Instance]:
    """A prefill process beside the encoders of each group of encode GPUs, both under MPS caps."""
    encoders = [i for i in instances if i.role == "encode"]
    table = deployment.sm_table
    share = None if table is None or table == "streams" else table[0].encode_sm
    capped = [_capped(i, share) for i in encoders]
    span = deployment.local_prefill_span
    beside = []
    for index in range(len(encoders) // span):
        group = encoders[index * span : (index + 1) * span]
        gpus = tuple(gpu for e in group for gpu in e.gpus)
        wanted = _Wanted(f"l{index}", "local_prefill", index, span)
        one = _instance(wanted, group[0].node, gpus, nodes[group[0].node].ports, deployment, engine, sizes)
        beside.append(_capped(one, None if share is None else 100 - share, owns=False))
    return [*capped, *beside, *(i for i in instances if i.role != "encode")]


def _capped(instance: Instance, share: float | None, *, owns: bool = True) -> Instance:
    return replace(instance, sm_percent=share, owns_gpus=owns)


def _instance(
    wanted: _Wanted,
    node: int,
    gpus: tuple[int, ...],
    ports: NodePorts,
    deployment: Deployment,
    engine: EngineName,
    sizes: Sizes,
) -> Instance:
    purposes = PORTS.get(engine, {}).get(wanted.role, ("http",))
    # A side channel of NIXL may count up by rank: its ports are reserved for all of them.
    taken = {name: ports.take(len(gpus) if name == "nixl" else 1) for name in purposes}
    seqs, tokens = batching(wanted.role, deployment, sizes)
    return Instance(wanted.name, wanted.role, wanted.index, node, gpus, taken, seqs, tokens)


def batching(role: Role, deployment: Deployment, sizes: Sizes) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens) of an instance.

    An encoder's budget holds B of the largest requests, but no more than is known to fit in memory,
    and always the largest item. A language instance that may see an item must hold it too.
    """
    if role == "encode":
        batch = deployment.encode_batch or 1
        return batch, max(LEAST_BUDGET, sizes.item_tokens, min(batch * sizes.request_tokens, ENCODER_BUDGET))
    budget = max(deployment.prefill_token_budget, sizes.item_tokens, LEAST_BUDGET)
    if role in ("prefill", "local_prefill", "encode_prefill"):
        return deployment.max_prefill_requests or deployment.max_num_seqs, budget
    return deployment.max_num_seqs, budget


def _bounds(deployment: Deployment, sizes: Sizes, engine: EngineName) -> tuple[Change, ...]:
    budget = max(deployment.prefill_token_budget, sizes.item_tokens)
    if budget == deployment.prefill_token_budget or engine == "sglang":
        return ()
    return (
        Change(
            "max_num_batched_tokens",
            deployment.prefill_token_budget,
            budget,
            f"the workload's largest item has {sizes.item_tokens} tokens, which one step must hold",
        ),
    )


def _budget_notes(deployment: Deployment, engine: EngineName, sizes: Sizes) -> list[str]:
    notes = []
    if not sizes.bounded:
        notes.append(
            f"the workload's sizes have no upper end: budgets hold all but 1 in 10,000 (items of up to {sizes.item_tokens}"
            " tokens); larger ones are refused by name. Give the distribution a max"
        )
    batch = deployment.encode_batch or 1
    if deployment.topology != "monolithic" and batch > 1 and batch * sizes.request_tokens > ENCODER_BUDGET:
        many = f"{batch} of the largest requests are {batch * sizes.request_tokens} tokens, more than"
        if engine == "sglang":
            notes.append(
                f"{many} the {ENCODER_BUDGET} known to fit in an encoder's memory, and SGLang's encoder merges by requests"
                " alone: it may run out of memory on such a batch. Give sizes a max, or lower encode_batch"
            )
        else:
            notes.append(
                f"{many} the encoder budget of {max(ENCODER_BUDGET, sizes.item_tokens)}: such a batch is cut by tokens before B"
            )
    return notes

"""Random deployments with workloads of known sizes, and artefacts read back into what they start."""

from __future__ import annotations

import json
import random
import re
import shlex
from dataclasses import dataclass, field
from typing import Any

import yaml

from has.core.deployment import Deployment
from has.engine.engines import VERSIONS
from has.engine.place import make_plan
from has.engine.plan import EngineName, Plan
from has.engine.sizes import Sizes

MODEL = "Qwen/Qwen2.5-VL-7B-Instruct"


def deployment(seed: int) -> Deployment:
    """Every topology, TP, share of offload and rule; up to some 40 GPUs, so more than one node."""
    rng = random.Random(seed)
    topology = rng.choice(["disaggregated", "disaggregated", "disaggregated", "e_pd", "monolithic"])
    tp = rng.choice([1, 1, 2, 4])
    data: dict[str, Any] = {
        "version": 1,
        "model": MODEL,
        "topology": topology,
        "dispatch": rng.choice(["random", "round_robin", "shortest_queue"]),
        "rate": 4.0,
        "slo": {"ttft_ms": 2000.0, "tpot_ms": 50.0},
        "max_num_seqs": rng.choice([64, 256]),
        "gpu_memory_utilization": rng.choice([0.85, 0.9]),
    }
    if rng.random() < 0.3:
        data["dtype"] = "bfloat16"
    if topology == "monolithic":
        data |= {"alloc": {"all": tp * rng.randint(1, 6)}, "tensor_parallel": {"all": tp}}
    else:
        data["encode_batch"] = rng.choice([1, 2, 4, 8, 16])
        if topology == "e_pd":
            data["alloc"] = {"encode": rng.randint(1, 6), "prefill_decode": tp * rng.randint(1, 4)}
            data["tensor_parallel"] = {"prefill_decode": tp}
        else:
            share = rng.choice([0.0, 0.3, 0.5, 1.0])
            span = rng.choice([1, 2]) if share < 1 else 1
            data["prefill_offload"] = share
            data["alloc"] = {
                "encode": span * rng.randint(1, 4),
                "prefill": 0 if share == 0 else tp * rng.randint(1, 3),
                "decode": rng.choice([1, 2]) * rng.randint(1, 4),
            }
            decode_tp = 2 if data["alloc"]["decode"] % 2 == 0 and rng.random() < 0.5 else 1
            data["tensor_parallel"] = {"prefill": tp, "local_prefill": span, "decode": decode_tp}
            if rng.random() < 0.7:
                data["sm_table"] = [{"batch": 1, "encode_sm": 25.0}, {"batch": 4, "encode_sm": 60.0}]
            if rng.random() < 0.4:
                data["max_prefill_requests"] = rng.randint(1, 8)
    data["gpus"] = sum(data["alloc"].values())
    if rng.random() < 0.5:
        data["max_queue"] = rng.randint(8, 512)
    if topology != "monolithic" and rng.random() < 0.5:
        data["encode_fanout"] = rng.randint(1, 4)
    if rng.random() < 0.3:
        data["kv_tokens"] = rng.choice([50_000, 400_000])
    if rng.random() < 0.2:
        data["preprocess_workers"] = rng.randint(1, 4)
    if rng.random() < 0.2:
        data["dtype"] = "fp8"
    return Deployment.model_validate(data)


def sizes(seed: int) -> Sizes:
    rng = random.Random(1000 + seed)
    item, items = rng.choice([400, 2691, 6042, 16384]), rng.randint(1, 8)
    return Sizes(item, item * items, item * items + 600, {"image": items})


def runs_on(engine: EngineName, seed: int, *, sm_split: bool = False) -> bool:
    """Whether `engine` can run the deployment: on vLLM, our gateway cannot tell encode and prefill in one process apart."""
    asked = deployment(seed)
    one_process = asked.topology == "disaggregated" and not asked.alloc["prefill"]
    return engine != "vllm" or sm_split or not one_process


SEEDS = range(32)
RUNS: list[tuple[EngineName, int]] = [
    (engine, seed) for engine in VERSIONS for seed in SEEDS if runs_on(engine, seed)
]
VLLM_RUNS = [
    (seed, split) for seed in SEEDS for split in (False, True) if runs_on("vllm", seed, sm_split=split)
]


def plan(seed: int, engine: EngineName, *, sm_split: bool = False) -> Plan:
    return make_plan(deployment(seed), engine, sizes(seed), sm_split=sm_split)


@dataclass
class Started:
    """One instance as an artefact starts it."""

    name: str
    node: int
    gpus: tuple[str, ...]
    env: dict[str, str]
    argv: list[str]
    replicas: int = 1
    gpu_limit: int = 0

    def value(self, flag: str) -> str | None:
        return self.argv[self.argv.index(flag) + 1] if flag in self.argv else None

    def values(self, flag: str) -> list[str]:
        """Everything between `flag` and the next flag."""
        rest = self.argv[self.argv.index(flag) + 1 :]
        end = next((i for i, word in enumerate(rest) if word.startswith("--")), len(rest))
        return rest[:end]

    def json(self, flag: str) -> dict[str, Any]:
        return json.loads(self.value(flag) or "{}")


@dataclass
class Script:
    started: dict[str, Started] = field(default_factory=dict)
    front: list[str] = field(default_factory=list)


def read_script(text: str) -> Script:
    """The `start` lines of a launch script, as a shell reads them."""
    script = Script()
    for line in text.splitlines():
        if not line.startswith("start ") or line.startswith("start()"):
            continue
        _, node, name, *words = shlex.split(line)
        if words[0] != "env":
            script.front = words
            continue
        env = {}
        while "=" in words[1]:
            key, _, value = words.pop(1).partition("=")
            env[key] = value
        gpus = tuple(env.pop("CUDA_VISIBLE_DEVICES").split(","))
        script.started[name] = Started(name, int(node), gpus, env, words[1:])
    return script


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def port_of(url: str) -> int:
    return int(re.search(r":(\d+)$", url)[1])  # type: ignore[index]  # a URL without a port fails the test

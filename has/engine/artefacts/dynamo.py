"""Dynamo: a DynamoGraphDeployment (nvidia.com/v1beta1) of vLLM workers.

Its component types are frontend, worker, prefill, decode, planner and epp; there is none for encode,
so encode is a worker. Encode workers run one request a forward; B is 1 there.
"""

from __future__ import annotations

import json
import re
from typing import Any

from has.engine.artefacts.artefact import Artefact, emitted_file, header, one_document
from has.engine.dtypes import dtype_flags
from has.engine.engines import VERSIONS
from has.engine.flags import check_flags, known_flags
from has.engine.plan import Instance, Plan, Role

STATUS = "Arguments are checked with this version's own parsers, fields with the types of its operator; not run on a cluster by us."
IMAGE = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:{version}"
COMPONENTS: dict[Role, str] = {
    "encode": "worker",
    "prefill": "prefill",
    "encode_prefill": "prefill",
    "decode": "decode",
    "prefill_decode": "worker",
    "all": "worker",
}
MODES: dict[Role, str] = {
    "encode": "encode",
    "prefill": "prefill",
    "encode_prefill": "prefill",
    "decode": "decode",
    "prefill_decode": "agg",
    "all": "agg",
}
KV_ROLES: dict[Role, str] = {
    "prefill": "kv_producer",
    "encode_prefill": "kv_producer",
    "decode": "kv_consumer",
}
"""Without an explicit KV transfer a prefill worker does not start."""


def render(plan: Plan) -> list[Artefact]:
    for role in dict.fromkeys(i.role for i in plan.instances):
        argv = arguments(plan.of(role)[0], plan)
        check_flags(argv, known_flags("dynamo", plan.version), known_flags("vllm", VERSIONS["vllm"]))
    text = one_document(header(plan, status=STATUS), graph(plan))
    return [Artefact("dynamo.yaml", text), emitted_file(plan)]


def graph(plan: Plan) -> dict[str, Any]:
    components = [
        _component("Frontend", "frontend", 1, _container(plan, ["python3", "-m", "dynamo.frontend"]))
    ]
    for role in dict.fromkeys(i.role for i in plan.instances):
        pool = plan.of(role)
        container = _container(plan, ["python3", "-m", "dynamo.vllm"])
        container["args"] = arguments(pool[0], plan)
        gpus = str(pool[0].tensor_parallel)
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}, "requests": {"nvidia.com/gpu": gpus}}
        name = "".join(word.capitalize() for word in role.split("_")) + "Worker"
        components.append(_component(name, COMPONENTS[role], len(pool), container))
    name = (
        re.sub(r"[^a-z0-9]+", "-", f"has-{plan.emitted.model.rpartition('/')[2]}".lower())
        .strip("-")[:40]
        .strip("-")
    )
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {"backendFramework": "vllm", "components": components},
    }


def arguments(instance: Instance, plan: Plan) -> list[str]:
    """Arguments of `python -m dynamo.vllm` for one role: Dynamo's own, then vLLM's."""
    argv = ["--model", plan.emitted.model, "--served-model-name", plan.emitted.model]
    argv += ["--disaggregation-mode", MODES[instance.role]]
    if plan.sizes.items:
        argv.append("--enable-multimodal")
    if instance.role in ("prefill", "prefill_decode") and plan.of("encode"):
        argv += ["--route-to-encoder", "--enable-mm-embeds"]
    if instance.tensor_parallel > 1:
        argv += ["--tensor-parallel-size", str(instance.tensor_parallel)]
    argv += dtype_flags(plan.emitted.dtype, language=instance.is_language)
    if instance.role == "encode":
        return [*argv, "--enforce-eager"]
    argv += ["--max-num-seqs", str(instance.max_num_seqs)]
    argv += ["--max-num-batched-tokens", str(instance.max_num_batched_tokens)]
    argv += ["--gpu-memory-utilization", f"{plan.emitted.gpu_memory_utilization:g}"]
    if plan.sizes.items:
        argv += [
            "--limit-mm-per-prompt",
            json.dumps(plan.sizes.limits, separators=(",", ":")),
        ]
    if instance.role in KV_ROLES:
        config = {"kv_connector": "NixlConnector", "kv_role": KV_ROLES[instance.role]}
        argv += ["--kv-transfer-config", json.dumps(config, separators=(",", ":"))]
    return argv


def _container(plan: Plan, command: list[str]) -> dict[str, Any]:
    return {"name": "main", "image": IMAGE.format(version=plan.version), "command": command}


def _component(name: str, kind: str, replicas: int, container: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "type": kind,
        "replicas": replicas,
        "podTemplate": {"spec": {"containers": [container]}},
    }

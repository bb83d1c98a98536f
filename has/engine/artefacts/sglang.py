"""SGLang: a script and a compose file a node, with SGLang's router in front.

Prefill instances pick encoders themselves. Every one has its own bootstrap ports: the defaults, 8998
and 8997, clash as soon as two stand on a host. Servers bind to the address by which others reach
them, as an encoder bound to 0.0.0.0 gives that as its address.
"""

from __future__ import annotations

from typing import Any

from has.engine.artefacts.artefact import (
    SCRIPT_TAIL,
    Artefact,
    emitted_file,
    gpu_list,
    header,
    host_variable,
    one_document,
    script_head,
    shell_line,
)
from has.engine.dtypes import dtype_flags
from has.engine.engines import ROUTER_OF_SGLANG
from has.engine.flags import check_flags, known_flags
from has.engine.plan import Instance, Plan

STATUS = (
    f"Commands are checked with the own argument parsers of this version and of sglang-router {ROUTER_OF_SGLANG};"
    " they have not been run on GPUs by us."
)
IMAGE = "lmsysorg/sglang:v{version}"
TRANSFER = "nixl"
"""Mooncake, the default, needs RDMA."""


def render(plan: Plan) -> list[Artefact]:
    for instance in plan.instances:
        check_flags(command(instance, plan), known_flags("sglang", plan.version))
    check_flags(router_command(plan), known_flags("sglang-router", ROUTER_OF_SGLANG))
    files = [Artefact("launch.sh", _script(plan), executable=True), emitted_file(plan)]
    for node in range(plan.nodes):
        name = "compose.yaml" if plan.nodes == 1 else f"compose-node{node}.yaml"
        files.append(Artefact(name, _compose(plan, node)))
    return files


def command(instance: Instance, plan: Plan) -> list[str]:
    """`python -m sglang.launch_server ...` of one instance."""
    host = host_variable(instance.node)
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", plan.emitted.model]
    argv += ["--host", host, "--port", str(instance.port), "--nccl-port", str(instance.ports["nccl"])]
    argv += ["--served-model-name", plan.emitted.model, "--enable-metrics"]
    if instance.tensor_parallel > 1:
        argv += ["--tp-size", str(instance.tensor_parallel)]
    argv += dtype_flags(plan.emitted.dtype, language=instance.is_language)
    if instance.role == "encode":
        return [*argv, "--encoder-only", "--encoder-transfer-backend", "zmq_to_scheduler"]
    argv += ["--mem-fraction-static", f"{plan.emitted.gpu_memory_utilization:g}"]
    argv += ["--max-running-requests", str(instance.max_num_seqs)]
    argv += ["--chunked-prefill-size", str(instance.max_num_batched_tokens)]
    if plan.emitted.kv_tokens is not None and instance.role in ("decode", "prefill_decode", "all"):
        argv += ["--max-total-tokens", str(plan.emitted.kv_tokens)]
    if instance.role in ("prefill", "prefill_decode"):
        argv += ["--language-only", "--encoder-transfer-backend", "zmq_to_scheduler"]
        argv += ["--encoder-urls", *(f"http://{host_variable(e.node)}:{e.port}" for e in plan.of("encode"))]
        argv += ["--encoder-bootstrap-port", str(instance.ports["encoder_bootstrap"])]
    if instance.role in ("prefill", "encode_prefill"):
        argv += ["--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", TRANSFER]
        argv += ["--disaggregation-bootstrap-port", str(instance.ports["bootstrap"])]
    if instance.role == "decode":
        argv += ["--disaggregation-mode", "decode", "--disaggregation-transfer-backend", TRANSFER]
    return argv


def environment(instance: Instance) -> dict[str, str]:
    """B reaches an encoder by its environment alone."""
    if instance.role != "encode":
        return {}
    return {"SGLANG_ENCODER_MAX_BATCH_SIZE": str(instance.max_num_seqs)}


def router_command(plan: Plan) -> list[str]:
    host = host_variable(0)
    argv = ["python3", "-m", "sglang_router.launch_router", "--host", host, "--port", str(plan.front_port)]
    argv += ["--prometheus-host", host, "--prometheus-port", str(plan.front_ports["prometheus"])]
    argv += [
        "--policy",
        {"round_robin": "round_robin", "shortest_queue": "power_of_two"}.get(plan.emitted.dispatch, "random"),
    ]
    if plan.asked.topology != "disaggregated":
        served = plan.of("prefill_decode", "all")
        return [*argv, "--worker-urls", *(f"http://{host_variable(i.node)}:{i.port}" for i in served)]
    argv.append("--pd-disaggregation")
    for instance in plan.of("prefill", "encode_prefill"):
        url = f"http://{host_variable(instance.node)}:{instance.port}"
        argv += ["--prefill", url, str(instance.ports["bootstrap"])]
    for instance in plan.of("decode"):
        argv += ["--decode", f"http://{host_variable(instance.node)}:{instance.port}"]
    return argv


def _script(plan: Plan) -> str:
    text = script_head(plan, status=STATUS)
    for instance in plan.instances:
        env = {"CUDA_VISIBLE_DEVICES": gpu_list(instance.gpus)} | environment(instance)
        words = ["start", str(instance.node), instance.name, "env", *(f"{k}={v}" for k, v in env.items())]
        text += shell_line([*words, *command(instance, plan)]) + "\n"
    text += "\n" + "".join(
        shell_line(["ready", i.name, f"http://{host_variable(i.node)}:{i.port}/health"]) + "\n"
        for i in plan.instances
    )
    return text + "\n" + shell_line(["start", "0", "router", *router_command(plan)]) + "\n" + SCRIPT_TAIL


def _compose(plan: Plan, node: int) -> str:
    services: dict[str, Any] = {}
    for instance in plan.instances:
        if instance.node != node:
            continue
        devices = {
            "driver": "nvidia",
            "device_ids": [str(gpu) for gpu in instance.gpus],
            "capabilities": ["gpu"],
        }
        services[instance.name] = _container(plan) | {
            "environment": environment(instance),
            "command": command(instance, plan),
            "deploy": {"resources": {"reservations": {"devices": [devices]}}},
        }
    if node == 0:
        services["router"] = _container(plan) | {"command": router_command(plan)}
    hosts = [f"HOST{n}: the address of node {n}" for n in range(plan.nodes)]
    return one_document(
        [*header(plan, status=STATUS), f"Set in .env: {'; '.join(hosts)}"], {"services": services}
    )


def _container(plan: Plan) -> dict[str, Any]:
    return {
        "image": IMAGE.format(version=plan.version),
        "network_mode": "host",
        "ipc": "host",
        "volumes": ["${HF_HOME:-~/.cache/huggingface}:/root/.cache/huggingface"],
    }

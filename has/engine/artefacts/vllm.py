"""vLLM: a script and a compose file a node, with our gateway in front."""

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
from has.engine.flags import check_flags, known_flags
from has.engine.plan import Instance, Plan
from has.engine.vllm.commands import Site, command, environment
from has.version import __version__

STATUS = "Commands are checked with this version's own argument parser; they have not been run on GPUs by us."
IMAGE = "vllm/vllm-openai:v{version}"
EC_DIR = "${EC_DIR}"
MPS_DIR = "/tmp/has-mps"


def render(plan: Plan) -> list[Artefact]:
    """launch.sh and, a node each, a compose file."""
    site = Site(plan.emitted.model, plan.emitted.model, EC_DIR)
    for instance in plan.instances:
        argv = command(instance, plan, site, host_variable(instance.node))
        check_flags(argv, known_flags("vllm", plan.version))
    files = [Artefact("launch.sh", _script(plan, site), executable=True), emitted_file(plan)]
    for node in range(plan.nodes):
        name = "compose.yaml" if plan.nodes == 1 else f"compose-node{node}.yaml"
        files.append(Artefact(name, _compose(plan, site, node)))
    return files


def gateway_command(plan: Plan) -> list[str]:
    """Our gateway on engines that run already: pools in order, as the deployment counts them.

    It removes embeddings when requests are over, and refuses a medium that no encoder takes.
    """
    attached = ",".join(
        f"{instance.role}=http://{host_variable(instance.node)}:{instance.port}"
        for instance in plan.instances
    )
    budget = plan.encoder_budget
    return [
        *("has", "deploy", "deployment.yaml", "--engine", "vllm", "--attach", attached),
        *(("--ec-dir", EC_DIR, "--encoder-budget", str(budget)) if budget is not None else ()),
        *("--host", host_variable(0), "--port", str(plan.front_port)),
    ]  # fmt: skip


def _script(plan: Plan, site: Site) -> str:
    text = script_head(plan, status=STATUS)
    if plan.of("encode"):
        shared = ":-/dev/shm" if plan.nodes == 1 else ":?set EC_DIR to a folder that all nodes share"
        text += f"""# Embeddings pass through files, in a folder of our own below EC_DIR.
EC_DIR=${{EC_DIR{shared}}}/has-ec-$HOST0-{plan.front_port}
mkdir -p "$EC_DIR"
[ "$NODE" != 0 ] || rm -rf "${{EC_DIR:?}}"/*  # what an earlier run left

"""
    if any(instance.sm_percent is not None for instance in plan.instances):
        text += f"# EXPERIMENTAL: two processes share a GPU under MPS.\nexport CUDA_MPS_PIPE_DIRECTORY={MPS_DIR}\n"
        text += "mkdir -p $CUDA_MPS_PIPE_DIRECTORY; nvidia-cuda-mps-control -d || true\n\n"
    for instance in plan.instances:
        host = host_variable(instance.node)
        env = {"CUDA_VISIBLE_DEVICES": gpu_list(instance.gpus)} | environment(instance, site, host)
        words = ["start", str(instance.node), instance.name, "env", *(f"{k}={v}" for k, v in env.items())]
        text += shell_line([*words, *command(instance, plan, site, host)]) + "\n"
    text += "\n" + "".join(
        shell_line(["ready", i.name, f"http://{host_variable(i.node)}:{i.port}/health"]) + "\n"
        for i in plan.instances
    )
    return text + "\n" + shell_line(["start", "0", "gateway", *gateway_command(plan)]) + "\n" + SCRIPT_TAIL


def _compose(plan: Plan, site: Site, node: int) -> str:
    services: dict[str, Any] = {}
    for instance in plan.instances:
        if instance.node == node:
            services[instance.name] = _service(instance, plan, site)
    if node == 0:
        services["gateway"] = {
            "image": "python:3.12-slim",
            "network_mode": "host",
            "volumes": ["./deployment.yaml:/deployment.yaml:ro", *_shared(plan)],
            "depends_on": {i.name: {"condition": "service_healthy"} for i in plan.instances if i.node == 0},
            "entrypoint": ["/bin/sh", "-c"],
            "command": [
                f"pip install -q 'has-epd[runtime]=={__version__}' && cd / && exec "
                + shell_line(gateway_command(plan))
            ],
        }
    hosts = [f"HOST{n}: the address of node {n}" for n in range(plan.nodes)]
    lines = [
        *header(plan, status=STATUS),
        f"Set in .env: {'; '.join([*hosts, *(['EC_DIR: a folder for embeddings'] if plan.of('encode') else [])])}",
    ]
    return one_document(lines, {"services": services})


def _shared(plan: Plan) -> list[str]:
    """What all containers see: the folder of embeddings, if there are any."""
    return [f"{EC_DIR}:{EC_DIR}"] if plan.of("encode") else []


def _service(instance: Instance, plan: Plan, site: Site) -> dict[str, Any]:
    host = host_variable(instance.node)
    service: dict[str, Any] = {
        "image": IMAGE.format(version=plan.version),
        "network_mode": "host",
        "ipc": "host",
        "environment": environment(instance, site, host),
        "volumes": [*_shared(plan), "${HF_HOME:-~/.cache/huggingface}:/root/.cache/huggingface"],
        # The image's entrypoint is `vllm serve`.
        "command": command(instance, plan, site, host)[2:],
        "healthcheck": {
            "test": ["CMD", "curl", "-sf", f"http://{host}:{instance.port}/health"],
            "interval": "5s",
            "start_period": "900s",
            "retries": 3,
        },
        "deploy": {
            "resources": {
                "reservations": {
                    "devices": [
                        {
                            "driver": "nvidia",
                            "device_ids": [str(gpu) for gpu in instance.gpus],
                            "capabilities": ["gpu"],
                        }
                    ]
                }
            }
        },
    }
    if instance.sm_percent is not None:
        service["environment"]["CUDA_MPS_PIPE_DIRECTORY"] = MPS_DIR
        service["volumes"].append(f"{MPS_DIR}:{MPS_DIR}")
    return service

"""llm-d: an EndpointPickerConfig and a Deployment of vLLM a role.

Every instance is a pod, so every one has an address and ports of its own. A routing sidecar in the
decode pods talks to encoders and prefill instances, which is why it needs to know the connectors.
llm-d calls encode disaggregation a proof of concept.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from has.engine.artefacts.artefact import Artefact, emitted_file, header, one_document
from has.engine.engines import VERSIONS
from has.engine.flags import check_flags, known_flags
from has.engine.plan import Instance, Plan, Role
from has.engine.vllm.commands import Site, command

STATUS = (
    "Arguments are vLLM {vllm}'s, checked with its own parser; fields are checked against llm-d-router's types."
    " llm-d marks encode disaggregation a proof of concept; not run on a cluster by us."
)
IMAGE = "vllm/vllm-openai:v{version}"
SIDECAR = "ghcr.io/llm-d/llm-d-router-disagg-sidecar:v{version}"
EC_DIR = "/ec"
SERVED_PORT, BEHIND_SIDECAR = 8000, 8200
NIXL_PORT = 5600
ROLES: dict[Role, str] = {
    "encode": "encode",
    "prefill": "prefill",
    "encode_prefill": "encode-prefill",
    "decode": "decode",
    "prefill_decode": "prefill-decode",
    "all": "encode-prefill-decode",
}
"""Role of an instance -> value of the label `llm-d.ai/role`."""
LAST = ("decode", "prefill_decode", "all")


def render(plan: Plan) -> list[Artefact]:
    pools = [plan.of(role) for role in dict.fromkeys(i.role for i in plan.instances)]
    for pool in pools:
        check_flags(arguments(pool[0], plan), known_flags("vllm", VERSIONS["vllm"]))
    lines = header(plan, status=STATUS.format(vllm=VERSIONS["vllm"]))
    deployments = [_deployment(pool, plan) for pool in pools]
    if plan.of("encode"):
        deployments.insert(0, _claim(plan))
    return [
        Artefact("epp-config.yaml", one_document(lines, picker(plan))),
        Artefact("deployments.yaml", one_document(lines, *deployments)),
        emitted_file(plan),
    ]


def picker(plan: Plan) -> dict[str, Any]:
    """The EndpointPickerConfig: which pods take part in a request, in which order."""
    encodes, prefills = bool(plan.of("encode")), bool(plan.of("prefill", "encode_prefill"))
    plugins: list[dict[str, Any]] = [{"type": "queue-scorer"}, {"type": "decode-filter"}]
    deciders: dict[str, str] = {}
    profiles = []
    if encodes:
        deciders["encode"] = "always-disagg-multimodal-decider"
        plugins += [{"type": "encode-filter"}, {"type": deciders["encode"]}]
        profiles.append(_profile("encode", "encode-filter"))
    if prefills:
        # Every prefill goes to its pool, as the deployment says; the decider by prefix would keep some.
        deciders["prefill"] = "always-disagg-pd-decider"
        plugins += [{"type": "prefill-filter"}, {"type": deciders["prefill"]}]
        profiles.append(_profile("prefill", "prefill-filter"))
    profiles.append(_profile("decode", "decode-filter"))
    if deciders:
        plugins.append({"type": "disagg-profile-handler", "parameters": {"deciders": deciders}})
    else:
        plugins.append({"type": "single-profile-handler"})
    return {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": plugins,
        "schedulingProfiles": profiles,
    }


def arguments(instance: Instance, plan: Plan) -> list[str]:
    """Arguments of vLLM in a pod of this role."""
    behind = instance.role in LAST and plan.asked.topology != "monolithic"
    in_pod = replace(instance, ports={"http": BEHIND_SIDECAR if behind else SERVED_PORT})
    site = Site(plan.emitted.model, plan.emitted.model, EC_DIR)
    argv = command(in_pod, plan, site, "0.0.0.0")
    return ["--model", site.model, *argv[3:]]


def _profile(name: str, picks: str) -> dict[str, Any]:
    return {"name": name, "plugins": [{"pluginRef": picks}, {"pluginRef": "queue-scorer", "weight": 1}]}


def _name(plan: Plan) -> str:
    return (
        re.sub(r"[^a-z0-9]+", "-", f"has-{plan.emitted.model.rpartition('/')[2]}".lower())
        .strip("-")[:40]
        .strip("-")
    )


def _claim(plan: Plan) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{_name(plan)}-ec"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "50Gi"}}},
    }


def _deployment(pool: list[Instance], plan: Plan) -> dict[str, Any]:
    first, name = pool[0], _name(plan)
    component = ROLES[first.role]
    behind = first.role in LAST and plan.asked.topology != "monolithic"
    port = BEHIND_SIDECAR if behind else SERVED_PORT
    gpus = str(first.tensor_parallel)
    health = {"httpGet": {"path": "/health", "port": port}}
    container: dict[str, Any] = {
        "name": "vllm",
        "image": IMAGE.format(version=VERSIONS["vllm"]),
        "args": arguments(first, plan),
        "ports": [{"name": "http", "containerPort": port}],
        "resources": {"limits": {"nvidia.com/gpu": gpus}, "requests": {"nvidia.com/gpu": gpus}},
        "startupProbe": health | {"periodSeconds": 10, "failureThreshold": 90},
        "readinessProbe": health | {"periodSeconds": 10},
    }
    if first.role in ("prefill", "encode_prefill", "decode"):
        address = {
            "name": "VLLM_NIXL_SIDE_CHANNEL_HOST",
            "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
        }
        container["env"] = [address, {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(NIXL_PORT)}]
    spec: dict[str, Any] = {"containers": [container]}
    if plan.of("encode"):
        container["volumeMounts"] = [{"name": "ec", "mountPath": EC_DIR}]
        spec["volumes"] = [{"name": "ec", "persistentVolumeClaim": {"claimName": f"{name}-ec"}}]
    if behind:
        spec["initContainers"] = [_sidecar(plan)]
    labels = {"app": name, "llm-d.ai/component": component, "llm-d.ai/role": component}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"{name}-{component}", "labels": {"app": name}},
        "spec": {
            "replicas": len(pool),
            "selector": {"matchLabels": {"app": name, "llm-d.ai/component": component}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def _sidecar(plan: Plan) -> dict[str, Any]:
    args = [f"--port={SERVED_PORT}", f"--vllm-port={BEHIND_SIDECAR}", "--secure-proxy=false"]
    if plan.of("prefill", "encode_prefill"):
        args.append("--kv-connector=nixlv2")
    if plan.of("encode"):
        args.append("--ec-connector=ec-example")
    return {
        "name": "routing-sidecar",
        "image": SIDECAR.format(version=plan.version),
        "args": args,
        "ports": [{"name": "sidecar", "containerPort": SERVED_PORT}],
        "restartPolicy": "Always",
    }

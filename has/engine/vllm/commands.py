"""Command lines of vLLM instances: the same for artefacts and for the launcher.

A GPU deployment leaves memory to vLLM; an encoder takes next to none for KV. On the CPU the KV cache
is given in bytes, blocks have 32 tokens, and nothing may be pinned to cores (see `CPU`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from has.engine.dtypes import dtype_flags
from has.engine.engines import VERSIONS
from has.engine.plan import Instance, Plan, Role

KV_ROLES: dict[Role, str] = {
    "prefill": "kv_producer",
    "local_prefill": "kv_producer",
    "encode_prefill": "kv_producer",
    "decode": "kv_consumer",
}
EC_ROLES: dict[Role, str] = {
    "encode": "ec_producer",
    "prefill": "ec_consumer",
    "local_prefill": "ec_consumer",
    "decode": "ec_consumer",
    "prefill_decode": "ec_consumer",
}
"""A decode instance without the consumer's role dies on the first prompt whose media are given as embeddings."""
NO_PREFIX_CACHING = {"0.32.0": "--no-enable-prefix-caching"}
"""Until 0.33 renamed all flags that switch something off."""
ENCODER_MEMORY = 0.01
"""Share of memory an encoder may use for KV, which it has none of."""
SPLIT_ENCODER_MEMORY = 0.1
"""Share of memory left to the encoder beside a local prefill."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where instances run, as far as their commands differ by it.

    model      what is served: an id or a folder
    name       the name requests use
    ec_dir     where embeddings pass from encoders to language instances (ECExampleConnector)
    context    most tokens of one request, None: the model's own
    extra      further arguments of every instance
    swappable  language instances can produce and consume KV, so that prefill and decode swap by routing
    """

    model: str
    name: str
    ec_dir: str
    context: int | None = None
    extra: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    swappable: bool = False
    version: str = VERSIONS["vllm"]
    kv_buffer_device: str | None = None
    kv_extra: dict[str, int] = field(default_factory=dict)


def command(instance: Instance, plan: Plan, site: Site, host: str) -> list[str]:
    """`vllm serve ...` of one instance that listens on `host`."""
    argv = ["vllm", "serve", site.model, "--host", host, "--port", str(instance.port)]
    argv += ["--served-model-name", site.name]
    argv += ["--max-num-seqs", str(instance.max_num_seqs)]
    argv += ["--max-num-batched-tokens", str(instance.max_num_batched_tokens)]
    if plan.sizes.items:
        argv += ["--limit-mm-per-prompt", _json(plan.sizes.limits)]
    if site.context is not None:
        argv += ["--max-model-len", str(site.context)]
    if instance.tensor_parallel > 1:
        argv += ["--tensor-parallel-size", str(instance.tensor_parallel)]
    if "--dtype" not in site.extra:
        argv += dtype_flags(plan.emitted.dtype, language=instance.is_language)
    argv += _memory(instance, plan, site)
    if instance.role == "encode":
        argv += [
            "--mm-encoder-only",
            "--enforce-eager",
            NO_PREFIX_CACHING.get(site.version, "--disable-prefix-caching"),
        ]
    ec_role, kv_role = _connections(instance, plan, site)
    if ec_role or kv_role:
        argv.append("--enable-request-id-headers")
    if ec_role:
        argv += ["--ec-transfer-config", _json(ec_config(ec_role, site.ec_dir))]
    if kv_role:
        argv += ["--kv-transfer-config", _json(kv_config(kv_role, site))]
    return [*argv, *site.extra]


def environment(instance: Instance, site: Site, host: str) -> dict[str, str]:
    """What the instance needs in its environment besides `CUDA_VISIBLE_DEVICES`."""
    env = dict(site.env)
    if "nixl" in instance.ports:
        env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = host
        env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(instance.ports["nixl"])
    if instance.sm_percent is not None:
        env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{instance.sm_percent:g}"
    return env


def _connections(instance: Instance, plan: Plan, site: Site) -> tuple[str | None, str | None]:
    if site.swappable and instance.is_language:
        return "ec_consumer", "kv_both"
    encodes_apart = bool(plan.of("encode"))
    return (EC_ROLES.get(instance.role) if encodes_apart else None), KV_ROLES.get(instance.role)


def ec_config(role: str, ec_dir: str) -> dict[str, object]:
    return {
        "ec_connector": "ECExampleConnector",
        "ec_role": role,
        "ec_connector_extra_config": {"shared_storage_path": ec_dir},
    }


def kv_config(role: str, site: Site) -> dict[str, object]:
    config: dict[str, object] = {"kv_connector": "NixlConnector", "kv_role": role}
    if site.kv_buffer_device is not None:
        config["kv_buffer_device"] = site.kv_buffer_device
    if site.kv_extra:
        config["kv_connector_extra_config"] = site.kv_extra
    return config


def _memory(instance: Instance, plan: Plan, site: Site) -> list[str]:
    if "--kv-cache-memory-bytes" in site.extra:
        return []
    share = plan.emitted.gpu_memory_utilization
    if instance.role == "encode":
        share = ENCODER_MEMORY
    elif instance.role == "local_prefill":
        share = round(max(share - SPLIT_ENCODER_MEMORY, 0.05), 4)
    return ["--gpu-memory-utilization", f"{share:g}"]


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))

